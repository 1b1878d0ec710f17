package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/shared/process"
)

const (
	startRounds = 15
	startMost   = 100.0 // ms
)

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
	`"clientInfo":{"name":"bench","version":"1.0.0"}}}` + "\n"

// start takes the time from the start of the process to the answer to
// initialize, of bridge with an existing Store and of a bare MCP server.
func start(_ context.Context, s *stand) ([]Figure, error) {
	var ours, base samples
	for i := -1; i < startRounds; i++ { // the first makes the Store
		bridge, err := s.bridge("start")
		if err != nil {
			return nil, err
		}
		for _, side := range []struct {
			cmd  *exec.Cmd
			into *samples
		}{{bridge, &ours}, {exec.Command(s.opts.Self, "role", roleEcho), &base}} {
			srv, err := s.spawn(side.cmd)
			if err != nil {
				return nil, err
			}
			if err := srv.end(nil); err != nil {
				return nil, err
			}
			if i >= 0 {
				*side.into = append(*side.into, srv.took)
			}
		}
	}
	return []Figure{newFigure("start", "ms", startRounds, ours.median(), base.median()).oursMost(startMost)}, nil
}

// bridge gives the command of a bridge with a Store of its own.
func (s *stand) bridge(name string) (*exec.Cmd, error) {
	return demohost.Command(demohost.Options{
		Bridge: filepath.Join(s.opts.Bin, "bridge"), Inbox: s.opts.Stamp, Dir: s.below(name, "host"), Session: "bench-" + name,
		Home: s.rig.Home(), StoreDir: s.below(name, "store"), RuntimeDir: s.below(name, "run"), TmuxSockets: []string{s.rig.Socket},
	})
}

// A server is one MCP server that has answered initialize, spoken to by hand.
type server struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
	took  float64 // milliseconds from the start of the process to the answer
}

// spawn starts cmd and initializes it by hand, so that no client library is in
// the figure.
func (s *stand) spawn(cmd *exec.Cmd) (*server, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(cmd.Path), err)
	}
	srv := &server{cmd: cmd, stdin: stdin, out: bufio.NewReaderSize(stdout, 1<<20)}
	err = srv.ask(initialize, `"serverInfo"`)
	srv.took = milliseconds(time.Since(begin))
	if err == nil {
		_, err = io.WriteString(stdin, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	}
	if err != nil {
		return nil, srv.end(err)
	}
	return srv, nil
}

// ask sends one line and waits for the whole of the answer, which must hold want.
func (srv *server) ask(line, want string) error {
	if _, err := io.WriteString(srv.stdin, line); err != nil {
		return err
	}
	answer, err := srv.out.ReadString('\n')
	if err == nil && !strings.Contains(answer, want) {
		err = fmt.Errorf("asked %.60s, it answered %.200s", line, answer)
	}
	return err
}

// end closes stdin, waits for the server and for what it started, and gives err
// or what went wrong.
func (srv *server) end(err error) error {
	tree, _ := process.Descendants(srv.cmd.Process.Pid) // it may have ended already
	_ = srv.stdin.Close()
	timer := time.AfterFunc(patience, func() { _ = srv.cmd.Process.Kill() })
	defer timer.Stop()
	ended := srv.cmd.Wait()
	for _, p := range tree {
		inc, e := process.Of(p.PID)
		if e != nil || inc.Start != p.Start {
			continue
		}
		for begin := time.Now(); inc.Alive() && time.Since(begin) < patience; {
			time.Sleep(pollEvery)
		}
	}
	return errors.Join(err, ended)
}

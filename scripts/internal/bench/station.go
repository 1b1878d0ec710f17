package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"drawbridge/scripts/internal/stationrig"
)

const (
	readyRounds = 15
	readyMost   = 300 // ms to ready, more than a bare daemon takes

	stopPlain  = 150 // descendants that end when they are told to
	stopDeaf   = 50  // and those that do not
	stopGrace  = time.Second
	stopRounds = 5
	stopMost   = 500 // ms beyond the grace time
)

// station measures the real stationd, its shim and its gate, with the harness of
// stationd's own tests as the daemon: what the gate costs, how much later a daemon is
// ready than without all that, and how fast a crowd of descendants ends.
func station(ctx context.Context, s *stand) (out []Figure, err error) {
	st, err := s.newStation(stationrig.Options{})
	if err != nil {
		return nil, err
	}
	defer st.Stop()
	for _, measure := range []func(context.Context) ([]Figure, error){st.gate, st.ready, st.tree} {
		figures, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, figures...)
	}
	return out, nil
}

// stationStand is a stationd, and the program of its daemons.
type stationStand struct {
	*stationrig.Rig
	harness, sum string
}

func (s *stand) newStation(o stationrig.Options) (*stationStand, error) {
	st := &stationStand{harness: filepath.Join(s.opts.Bin, "testharness")}
	data, err := os.ReadFile(st.harness)
	if err != nil {
		return nil, fmt.Errorf("find the harness, which scripts/bench builds: %w", err)
	}
	sum := sha256.Sum256(data)
	st.sum = hex.EncodeToString(sum[:])
	o.Bin, o.Args = s.opts.Bin, append(o.Args, "-log-level", "warn")
	st.Rig = stationrig.New(s.tb, o)
	return st, nil
}

// spec is a station whose daemon is the harness.
func (st *stationStand) spec() stationrig.Spec {
	spec := stationrig.Spec{
		"name": "bench", "profile": "agent", "command": map[string]any{"argv": []string{"testharness", "-port", "{port}"}},
		"harness":   map[string]any{"name": "testharness", "artifact": map[string]any{"path": st.harness, "sha256": st.sum}},
		"readiness": map[string]any{"http_path": "/health"}, "ttl": "30m", "graceMs": stopGrace.Milliseconds(),
		"bridge": map[string]any{"limits": map[string]any{"requests": 2 * crowd, "streams": 2 * crowd, "ticketStreams": 2 * crowd}},
	}
	if os.Getuid() == 0 {
		spec["run_as"] = map[string]any{"uid": stationrig.Nobody, "gid": stationrig.Nobody}
	}
	return spec
}

// daemon is the harness outside of any station.
type daemon struct {
	cmd  *exec.Cmd
	base string
}

// bare starts one, and returns when it answers.
func (st *stationStand) bare(ctx context.Context) (*daemon, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(address)
	d := &daemon{cmd: exec.CommandContext(ctx, st.harness, "-port", port), base: "http://" + address}
	d.cmd.Env = []string{}
	if err := d.cmd.Start(); err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	err = until(ctx, patience, "the bare daemon answers", func() (bool, error) {
		resp, err := client.Get(d.base + "/health")
		if err != nil {
			return false, nil
		}
		return true, resp.Body.Close()
	})
	if err != nil {
		return nil, errors.Join(err, d.end())
	}
	return d, nil
}

func (d *daemon) end() error {
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return d.cmd.Wait()
}

// ready compares the whole command `stationd start -wait` with the start of the bare
// daemon, to its first answer.
func (st *stationStand) ready(ctx context.Context) ([]Figure, error) {
	var ours, base samples
	for i := range readyRounds + 1 {
		begin := time.Now()
		open := st.Start(st.spec())
		took := milliseconds(time.Since(begin))
		open.End()
		begin = time.Now()
		d, err := st.bare(ctx)
		if err != nil {
			return nil, err
		}
		alone := milliseconds(time.Since(begin))
		if err := d.end(); err != nil {
			return nil, err
		}
		if i > 0 { // the first is for warming up
			ours, base = append(ours, took), append(base, alone)
		}
	}
	return []Figure{newFigure("station_ready", "ms", readyRounds, ours.median(), base.median()).addedMost(readyMost)}, nil
}

// treeScript starts descendants, half of them in sessions of their own, and becomes
// the harness. What is ignored stays so in what is executed.
const treeScript = `i=0
while [ $i -lt %[1]d ]; do sleep 600 & setsid sleep 600 & i=$((i+2)); done
trap '' TERM HUP INT
i=0
while [ $i -lt %[2]d ]; do setsid sleep 600 & i=$((i+1)); done
trap - TERM HUP INT
exec ./testharness -port "$1"
`

// tree measures `stationd stop -wait` of a daemon with many descendants, some of them
// deaf, beyond the grace time: it returns when none is left and the lease is given
// back. Beside it stands the same for a daemon that has none and listens.
func (st *stationStand) tree(context.Context) ([]Figure, error) {
	if err := st.treeWorkspace(); err != nil {
		return nil, err
	}
	crowded := st.spec()
	crowded["workspace"] = map[string]any{"source": st.Path("work")}
	crowded["harness"] = map[string]any{"name": "testharness"}
	crowded["command"] = map[string]any{"argv": []string{"/bin/sh", "tree.sh", "{port}"}}
	var ours, base samples
	for range stopRounds {
		many, err := st.stopped(crowded, stopPlain+stopDeaf)
		if err != nil {
			return nil, err
		}
		one, err := st.stopped(st.spec(), 0)
		if err != nil {
			return nil, err
		}
		ours, base = append(ours, milliseconds(many-stopGrace)), append(base, milliseconds(one))
	}
	return []Figure{newFigure("station_stop", "ms", stopRounds, ours.quantile(1), base.median()).oursMost(stopMost)}, nil
}

// stopped starts a station with so many descendants, and times its stop.
func (st *stationStand) stopped(spec stationrig.Spec, descendants int) (time.Duration, error) {
	open := st.Start(spec)
	space, err := stationrig.Namespace(open.Status().Detail.DaemonPID)
	if err != nil {
		return 0, err
	}
	if n := len(stationrig.Members(space)); n < descendants {
		return 0, fmt.Errorf("the tree has %d processes", n)
	}
	begin := time.Now()
	open.End()
	took := time.Since(begin)
	if n := len(stationrig.Members(space)); n > 0 {
		return 0, fmt.Errorf("%d processes are left", n)
	}
	return took, nil
}

// treeWorkspace makes a work tree with the script and the harness.
func (st *stationStand) treeWorkspace() error {
	data, err := os.ReadFile(st.harness)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{"tree.sh": fmt.Appendf(nil, treeScript, stopPlain, stopDeaf), "testharness": data} {
		if err := os.WriteFile(filepath.Join(st.Path("work"), name), content, 0o755); err != nil {
			return err
		}
	}
	st.Commit("work")
	return nil
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"drawbridge/shared/process"
	"drawbridge/stationd/internal/wire"
)

// Descriptors of the stage besides 0 to 2.
const (
	planFD     = 3
	verdictFD  = 4
	artifactFD = 5
)

const (
	maxVerdict = 4 << 10
	maxInfo    = 4 << 10
)

// launch starts the daemon, once: as a stage of this program that gives up
// everything and then becomes it. The answer comes when it has.
func (s *shim) launch(l wire.Launch) (*wire.Started, *wire.Error) {
	if err := checkLaunch(l, s.spec); err != nil {
		return nil, &wire.Error{Code: wire.CodeRequest, Message: err.Error()}
	}
	s.mu.Lock()
	again := s.launched
	if s.launched = true; !again {
		s.credential = l.Credential
	}
	s.mu.Unlock()
	if again {
		return nil, &wire.Error{Code: wire.CodeLaunched, Message: "the daemon was launched already; it is never launched again"}
	}
	if err := s.writeCredential(l); err != nil {
		return nil, &wire.Error{Code: wire.CodeStart, Message: err.Error()}
	}
	started, err := s.start(l)
	if err != nil {
		return nil, &wire.Error{Code: wire.CodeStart, Message: err.Error()}
	}
	return started, nil
}

func checkLaunch(l wire.Launch, spec wire.Spec) error {
	switch {
	case len(l.Args) == 0:
		return errors.New("launch: no arguments")
	case spec.Artifact == nil && !filepath.IsAbs(l.Args[0]):
		return errors.New("launch: the program's path is not absolute")
	case !within(filepath.Clean(l.Dir), spec.Workspace):
		return errors.New("launch: the directory is not in the workspace")
	case l.File != "" && filepath.Base(l.File) != l.File:
		return errors.New("launch: the credential's file has a path")
	}
	return nil
}

// writeCredential fills and closes the directory of the credential's file.
func (s *shim) writeCredential(l wire.Launch) error {
	if l.File != "" {
		path := filepath.Join(wire.CredentialDir, l.File)
		if err := os.WriteFile(path, []byte(l.Credential), 0o600); err != nil {
			return fmt.Errorf("write the credential: %w", err)
		}
		if u := s.spec.RunAs; u != nil {
			if err := os.Chown(path, u.UID, u.GID); err != nil {
				return fmt.Errorf("write the credential: %w", err)
			}
		}
	}
	return readOnly(wire.CredentialDir)
}

// start makes the stage and waits until it has become the daemon.
func (s *shim) start(l wire.Launch) (*wire.Started, error) {
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	var pipes [8]*os.File // reading and writing ends of stdout, stderr, plan, verdict
	files := []*os.File{null}
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	for i := 0; i < len(pipes); i += 2 {
		if pipes[i], pipes[i+1], err = os.Pipe(); err != nil {
			return nil, err
		}
		files = append(files, pipes[i], pipes[i+1])
	}
	outR, outW, errR, errW, planR, planW, verdictR, verdictW := pipes[0], pipes[1], pipes[2], pipes[3], pipes[4], pipes[5], pipes[6], pipes[7]
	given := []uintptr{null.Fd(), outW.Fd(), errW.Fd(), planR.Fd(), verdictW.Fd()}
	if s.artifact != nil {
		given = append(given, s.artifact.Fd())
	}

	s.reaping.Lock()
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"station-shim", "exec"}, &syscall.ProcAttr{
		Dir: "/", Env: []string{}, Files: given, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		s.reaping.Unlock()
		return nil, fmt.Errorf("start the stage: %w", err)
	}
	started := s.name(pid)
	s.mu.Lock()
	s.started = started
	s.mu.Unlock()
	s.reaping.Unlock()

	for _, f := range []*os.File{outW, errW, planR, verdictW} {
		f.Close()
	}
	p := plan{Args: l.Args, Env: l.Env, Dir: l.Dir, User: s.spec.RunAs, Limits: s.spec.Limits, Artifact: s.artifact != nil}
	if p.Artifact && isScript(s.artifact) {
		p.Script = s.spec.Artifact.Path
	}
	go func() { _ = json.NewEncoder(planW).Encode(p); planW.Close() }()
	verdict, _ := io.ReadAll(io.LimitReader(verdictR, maxVerdict))
	if len(verdict) > 0 {
		return nil, errors.New(string(verdict))
	}
	files = slices.DeleteFunc(files, func(f *os.File) bool { return f == outR || f == errR })
	for stream, f := range map[*ring]*os.File{s.stdout: outR, s.stderr: errR} {
		go func() { _, _ = io.Copy(stream, f); f.Close() }() // until all who write have ended
	}
	return started, nil
}

// name finds out how the starter's namespace calls a child: the fdinfo of a pidfd,
// seen through the starter's /proc, says so. The child cannot be reaped meanwhile.
func (s *shim) name(pid int) *wire.Started {
	out := &wire.Started{Inner: pid}
	if info, err := process.Stat(pid); err == nil {
		out.Start = info.Start
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return out
	}
	defer unix.Close(fd)
	at, err := unix.Openat(s.fdinfo, strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return out
	}
	f := os.NewFile(uintptr(at), "fdinfo")
	defer f.Close()
	data, _ := io.ReadAll(io.LimitReader(f, maxInfo))
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "Pid:"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil && n > 0 {
				out.PID, out.Group = n, n
			}
		}
	}
	return out
}

// isScript reports whether the kernel would hand the file's name to an interpreter,
// which a descriptor has not.
func isScript(f *os.File) bool {
	head := make([]byte, 2)
	_, err := f.ReadAt(head, 0)
	return err == nil && bytes.Equal(head, []byte("#!"))
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/stationd/internal/wire"
)

// reapEvery is how long a missed SIGCHLD can leave a zombie.
const reapEvery = time.Second

// reap waits for every child: the daemon, and all orphans of the namespace.
func (s *shim) reap() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	tick := time.NewTicker(reapEvery)
	for {
		s.reaping.Lock()
		for {
			var how unix.WaitStatus
			pid, err := unix.Wait4(-1, &how, unix.WNOHANG, nil)
			if err == unix.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			s.ended(pid, how)
		}
		s.reaping.Unlock()
		select {
		case <-ended:
		case <-tick.C:
		}
	}
}

// ended notes the end of the daemon; the ends of others are their own.
func (s *shim) ended(pid int, how unix.WaitStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started == nil || pid != s.started.Inner || s.exit != nil {
		return
	}
	s.exit = &wire.End{Reason: wire.ReasonExited, EndedAt: time.Now().UnixMilli()}
	if how.Signaled() {
		s.exit.Signal = unix.SignalName(how.Signal())
	} else {
		code := how.ExitStatus()
		s.exit.Code = &code
	}
	_ = s.writeJSON(wire.Exit, s.exit) // without the file it is still an event
	if s.current != nil {
		s.current.tell(wire.Message{Event: wire.EventExit, Exit: s.exit})
	}
}

// end writes exit.json and ends, and everything in the namespace with it. A daemon
// that ended before keeps its own reason.
func (s *shim) end(reason string) {
	s.mu.Lock()
	last := wire.End{Reason: reason, EndedAt: time.Now().UnixMilli()}
	if s.exit != nil {
		last = *s.exit
	}
	last.Final = true
	_ = s.writeJSON(wire.Exit, last)
	os.Exit(0)
}

func (s *shim) writeJSON(name string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.write(name, append(data, '\n'))
}

// write makes a file of the runtime directory, whole or not at all.
func (s *shim) write(name string, data []byte) error {
	temp := name + ".new"
	fd, err := unix.Openat(s.runtime, temp, unix.O_CREAT|unix.O_TRUNC|unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = unix.Renameat(s.runtime, temp, s.runtime, name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

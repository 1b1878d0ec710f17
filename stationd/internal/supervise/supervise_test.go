package supervise_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/wire"
)

// A good daemon from its start to its end.
func TestProcess(t *testing.T) {
	w := newWorld(t).start()
	started := w.launch("-print", "hello from inside", "-term-exit", "7")
	info, err := process.Stat(started.PID)
	if err != nil || info.Start != started.Start || info.PGRP != started.Group || info.Session != started.PID {
		t.Errorf("%+v is not %+v, %v", started, info, err)
	}
	c := w.process.Client()
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, patience, func() bool { return strings.Contains(w.events.of(wire.Stdout), "hello from inside\n") }, "output")
	if err := c.Signal(t.Context(), wire.Group, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() bool { return w.events.exited() != nil }, "exit")
	if e := w.events.exited(); e.Code == nil || *e.Code != 7 || e.Reason != wire.ReasonExited {
		t.Errorf("%+v", e)
	}
	cleanup, err := w.process.End(t.Context())
	if err != nil || !cleanup.Signalled || len(cleanup.Left) != 0 {
		t.Errorf("%+v, %v", cleanup, err)
	}
	if _, err := os.Stat(w.spec.Runtime + "/" + wire.Exit); err != nil {
		t.Error(err)
	}
}

package testkit_test

import (
	"os/exec"
	"syscall"
	"testing"

	"drawbridge/shared/testkit"
)

func TestProcess(t *testing.T) {
	p := testkit.Start(t, exec.Command("sh", "-c", "echo out; echo ready >&2; read line; exit 3"))
	p.Exits(3)
	if p.Stdout.String() != "out\n" || p.Stdout.Len() != 4 || p.Stderr.String() != "ready\n" {
		t.Errorf("%q, %q", p.Stdout, p.Stderr)
	}
	p = testkit.Start(t, exec.Command("sh", "-c", "echo ready >&2; exec sleep 1000"))
	p.Says("ready")
	p.Signal(syscall.SIGTERM)
	p.Exits(-1)
}

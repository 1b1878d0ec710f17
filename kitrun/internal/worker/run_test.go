package worker_test

import (
	"testing"
)

func TestRun_OneTurn(t *testing.T) {
	r := newDocker(t)
	r.words("text out.txt made", "status", "interfaces", "mounts", "args", "config", "limits")
	receipt := r.run()
	t.Logf("%s", r.file(".receipt.json"))
	t.Logf("%s", r.file(".stdout.jsonl"))
	t.Logf("%s", r.file(".stderr.log"))
	_ = receipt
}

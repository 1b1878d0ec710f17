package nodehost_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"drawbridge/kitrun/internal/nodehost"
)

type echo struct{}

func (echo) Call(ctx context.Context, p *nodehost.Peer, method string, params json.RawMessage) (any, error) {
	return map[string]any{"method": method, "params": params}, nil
}

func TestRun_Result(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "s")
	if err := nodehost.WriteSupport(dir); err != nil {
		t.Fatal(err)
	}
	entry := filepath.Join(t.TempDir(), "entry.mjs")
	os.WriteFile(entry, []byte(`import { admitStorage } from '@kontourai/flow-agents/storage-admission';
export async function run({ requestFile, signal }) { const a = await admitStorage({ max_bytes: 1 }); console.log('noise'); return { status: 'completed', a, requestFile, big: 'x'.repeat(8*1024*1024) }; }`), 0o600)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	begin := time.Now()
	out, err := nodehost.Run(ctx, nodehost.Options{Node: node, Support: dir, Env: []string{"PATH=" + os.Getenv("PATH")}, Module: entry, Export: "run",
		Args: map[string]any{"requestFile": "/x"}, Ports: echo{}, DeliveryID: "d"})
	t.Log(time.Since(begin), err, out.Err, out.Thrown, len(out.Result), string(out.Stderr), out.Node)
	if err != nil || out.Err != nil || len(out.Result) < 8<<20 {
		t.Fatal(string(out.Result[:min(len(out.Result), 300)]))
	}
}

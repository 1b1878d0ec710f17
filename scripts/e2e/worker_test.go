package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/scripts/internal/demoworker"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

// The story of scripts/demo worker: a real Codex in a locked container edits a file
// on a lent credential. Neither the credential nor, where it does not belong, the
// capability is anywhere in the container's reach, in its processes, in the
// receipt, the logs or the Store; and what was searched for would have been found.
//
// Proves worker 17.26, worker 17.28 and worker 17.35
func TestWorker_Demo(t *testing.T) {
	needAgents(t)
	host := dockertest.Host(t)
	for _, network := range []string{"isolated", "socket"} {
		t.Run(network, func(t *testing.T) { demoWorker(t, host, network) })
	}
}

func demoWorker(t *testing.T, host, network string) {
	out := demoworker.Run(t, t.Logf, demoworker.Options{
		Brokerd: testkit.BuildProgram(t, "brokerd"), Kitrun: kitrunWithRelay(t), Host: host, Network: network,
	})
	if len(out.Found) > 0 {
		t.Errorf("found: %v", out.Found)
	}
	for _, where := range []string{
		"what the engine says of the container", "environment of the worker's processes", "arguments of the worker's processes",
		"memory of the worker's processes", "all files that the container reaches", "the workspace", "receipt and output", "the Store",
		"logs of brokerd and kitrun",
	} {
		if !strings.Contains(strings.Join(out.Searched, "\n"), where) {
			t.Errorf("%s: was not searched", where)
		}
	}
	var receipt struct {
		Completed bool
		Observed  struct {
			Harness string `json:"harness_version"`
			Network string `json:"network_mode"`
			Lent    *bool  `json:"credentials_mounted"`
		}
		Usage struct {
			Input  int64 `json:"input_tokens"`
			Output int64 `json:"output_tokens"`
		}
		Removed bool `json:"container_removed"`
	}
	if err := json.Unmarshal(out.Receipt, &receipt); err != nil {
		t.Fatal(err)
	}
	if !receipt.Completed || !receipt.Removed || receipt.Observed.Harness != "0.171.0" || receipt.Observed.Network != network ||
		receipt.Observed.Lent == nil || *receipt.Observed.Lent {
		t.Errorf("receipt:\n%s", out.Receipt)
	}
	g := out.Grant
	if g.State != store.GrantClosed || out.Provider < 2 || g.Forwarded != out.Provider || g.MeasuredInput != receipt.Usage.Input || g.MeasuredOutput != receipt.Usage.Output {
		t.Errorf("the grant is %+v, the provider saw %d requests, the receipt says %+v", g, out.Provider, receipt.Usage)
	}
}

// kitrunWithRelay puts kitrun and the relay side by side, as scripts/build does.
func kitrunWithRelay(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, program := range map[string]string{"kitrun": testkit.BuildProgram(t, "kitrun"), "station-shim": dockertest.Relay(t)} {
		data, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "kitrun")
}

package e2e

import (
	"encoding/json"
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
// Proves worker 17.26 and worker 17.35
func TestWorker_Demo(t *testing.T) {
	needAgents(t)
	host := dockertest.Host(t)
	out := demoworker.Run(t, t.Logf, demoworker.Options{Brokerd: testkit.BuildProgram(t, "brokerd"), Kitrun: testkit.BuildProgram(t, "kitrun"), Host: host})
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
	if !receipt.Completed || !receipt.Removed || receipt.Observed.Harness != "0.171.0" || receipt.Observed.Network != "isolated" ||
		receipt.Observed.Lent == nil || *receipt.Observed.Lent {
		t.Errorf("receipt:\n%s", out.Receipt)
	}
	g := out.Grant
	if g.State != store.GrantClosed || out.Provider < 2 || g.Forwarded != out.Provider || g.MeasuredInput != receipt.Usage.Input || g.MeasuredOutput != receipt.Usage.Output {
		t.Errorf("the grant is %+v, the provider saw %d requests, the receipt says %+v", g, out.Provider, receipt.Usage)
	}
}

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"drawbridge/scripts/internal/demoworker"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

// TestKit_Demo is the story of scripts/demo kit: the example kit is installed and
// run, with one real Codex and a broker that kitrun starts beside itself.
func TestKit_Demo(t *testing.T) {
	needAgents(t)
	host := dockertest.Host(t)
	bin := t.TempDir()
	for _, name := range []string{"kitrun", "brokerd"} { // siblings lie in one directory
		data, err := os.ReadFile(testkit.BuildProgram(t, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(bin, name), data, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	out := demoworker.RunKit(t, t.Logf, demoworker.Options{
		Brokerd: filepath.Join(bin, "brokerd"), Kitrun: filepath.Join(bin, "kitrun"), Host: host,
	}, testkit.Root())
	var result struct {
		Status   string
		Requests int64
	}
	if err := json.Unmarshal(out.Result, &result); err != nil || result.Status != "completed" || result.Requests != out.Provider || out.Provider == 0 {
		t.Errorf("%v in %s; %d requests at the provider", err, out.Result, out.Provider)
	}
}

package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"drawbridge/scripts/internal/rig"
	"drawbridge/scripts/internal/stationrig"
	"drawbridge/shared/testkit"
)

// The commands of the first part of docs/station.md work as they stand there, for an
// ordinary user, but for the two that fetch a harness and start stationd: the harness
// lies where npm would put it, and stationd runs.
func TestDocs_Station(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "bash", "curl", "awk")
	needHarness(t, rig.SandboxAgent)
	var user *syscall.Credential
	if os.Getuid() == 0 {
		user = &syscall.Credential{Uid: stationrig.Nobody, Gid: stationrig.Nobody}
	}
	bin := stationBin(t)
	r := stationrig.New(t, stationrig.Options{Bin: bin, User: user})
	harness, err := rig.FindHarness(rig.SandboxAgent)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join("work", "harness", "node_modules", "@sandbox-agent", "cli-linux-x64", "bin", "sandbox-agent")
	if err := os.MkdirAll(filepath.Dir(r.Path(program)), 0o755); err != nil {
		t.Fatal(err)
	}
	open(t, filepath.Dir(r.Path(program)), r.Path("work"))
	copyProgram(t, harness.Path, r.Path(program))

	page, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "station.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, first, _ := strings.Cut(string(page), "\n## Your first station")
	first, _, ok := strings.Cut(first, "\n## ")
	var script strings.Builder
	for _, part := range strings.Split(first, "```sh\n")[1:] {
		block, _, _ := strings.Cut(part, "```\n")
		if strings.HasPrefix(block, "npm install") || block == "stationd serve\n" {
			continue
		}
		script.WriteString(block)
	}
	if !ok || strings.Count(script.String(), "\n") < 30 {
		t.Fatalf("docs/station.md has no commands:\n%s", script.String())
	}
	ctx, cancel := context.WithTimeout(t.Context(), callWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script.String())
	cmd.Dir = r.Path("work")
	cmd.Env = []string{"HOME=" + r.Path("home"), "PATH=" + bin + ":" + os.Getenv("PATH"), "STATIOND_RUNTIME_DIR=" + r.Path("run")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, r.Log())
	}
	for _, want := range []string{
		"\nready ", `{"status":"ok"}`, `"already_installed":false`, `"echoed":{"id":1`, "\nid: 1\n", `{"error":"unauthorized"}`,
		"operator_stop", `"drawbridge/station-evidence"`, "everything is as it was written",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

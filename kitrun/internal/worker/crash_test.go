package worker_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/testkit"
)

// command is `kitrun worker run` on the rig, as an operator starts it.
func (r *rig) command(program string, env ...string) *exec.Cmd {
	r.Helper()
	options, err := json.Marshal(map[string]any{
		"image": r.opts.Image, "workspace": r.opts.Workspace, "sourceRoot": r.opts.SourceRoot, "contextFile": r.opts.ContextFile,
		"artifactRoot": r.opts.ArtifactRoot, "model": r.opts.Model, "timeoutMs": r.opts.Timeout.Milliseconds(), "network": r.opts.Network,
		"invocationId": r.opts.InvocationID, "runId": r.opts.RunID,
		"providerProxy":  map[string]string{"baseUrl": r.opts.ProviderProxy.BaseURL, "model": r.opts.Model},
		"workspaceSetup": map[string]string{"prompt": r.opts.Setup.Prompt},
	})
	if err != nil {
		r.Fatal(err)
	}
	r.write("private/options.json", string(options))
	r.write("private/capability", r.capability()+"\n")
	mkdir(r, r.deps.RuntimeDir)
	cmd := exec.Command(program, "worker", "run", "--options", r.path("private/options.json"), "--capability-file", r.path("private/capability"),
		"--store-dir", r.deps.Store.Dir(), "--runtime-dir", r.deps.RuntimeDir, "--docker-host", r.deps.Engine.Host(), "--json")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir}, env...)
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	return cmd
}

// swept wants that one sweep leaves nothing, and invents nothing.
func (r *rig) swept(receipt bool) {
	r.Helper()
	before, err := os.ReadDir(r.opts.ArtifactRoot)
	if err != nil {
		r.Fatal(err)
	}
	if _, err := worker.Sweep(r.ctx(), r.deps); err != nil {
		r.Fatal(err)
	}
	r.gone()
	row, err := r.deps.Store.Worker(r.ctx(), r.opts.InvocationID)
	if err != nil {
		r.Fatal(err)
	}
	if row.State != "removed" {
		r.Errorf("the row is %s", row.State)
	}
	after, err := os.ReadDir(r.opts.ArtifactRoot)
	if err != nil {
		r.Fatal(err)
	}
	if len(after) != len(before) {
		r.Errorf("the sweep left %d files where there were %d", len(after), len(before))
	}
	has := slices.ContainsFunc(after, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), ".receipt.json") })
	if has != receipt {
		r.Errorf("receipt: %t, want %t", has, receipt)
	}
	again, err := worker.Sweep(r.ctx(), r.deps)
	if err != nil || again != (worker.Swept{}) {
		r.Errorf("the second sweep did %+v, %v", again, err)
	}
}

// A kitrun that dies between any two steps leaves what one sweep removes: at no
// step is there a container without a row or a label that leads to it.
//
// Proves worker 17.20
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		at        string
		container bool // there is one to remove
		receipt   bool
	}{
		{"worker_admitted", false, false},
		{"worker_made", true, false},
		{"worker_created", true, false},
		{"worker_running", true, false},
		{"worker_started", true, false},
		{"worker_turn", true, false},
		{"worker_gone", false, false},
		{"worker_receipt", false, true},
		{"worker_ended", false, true},
	} {
		t.Run(tc.at, func(t *testing.T) {
			t.Parallel()
			r := newDocker(t)
			r.words("text a.txt a")
			if tc.at == "worker_turn" || tc.at == "worker_started" {
				r.words("hang")
			}
			program := testkit.BuildProgram(t, "kitrun", "drawbridge_crashpoints")
			out, err := r.command(program, "DRAWBRIDGE_TEST_EXIT_AT="+tc.at).CombinedOutput()
			if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != crashpoint.ExitCode {
				t.Fatalf("kitrun: %v\n%s", err, out)
			}
			if got := r.state("kontour-worker-"+r.opts.InvocationID) != ""; got != tc.container {
				t.Errorf("a container is there: %t, want %t", got, tc.container)
			}
			r.swept(tc.receipt)
		})
	}
}

// The same with the signal that nobody can catch, in the middle of a turn.
//
// Proves worker 17.20
func TestCrash_Killed(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("hang")
	cmd := r.command(testkit.BuildProgram(t, "kitrun", "drawbridge_crashpoints"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	seen := false
	for lines := bufio.NewScanner(stdout); !seen && lines.Scan(); {
		seen = strings.Contains(lines.Text(), "turn.started")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // killed
	if !seen {
		t.Fatalf("no turn was seen: %s", stderr.String())
	}
	if got := r.state("kontour-worker-" + r.opts.InvocationID); got != "running" {
		t.Errorf("the container is %q after its kitrun died", got)
	}
	r.swept(false)
	if _, err := os.Lstat(filepath.Join(r.opts.ArtifactRoot, r.opts.InvocationID+".stdin.txt")); err != nil {
		t.Errorf("what went in is not kept: %v", err)
	}
}

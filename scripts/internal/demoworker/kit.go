package demoworker

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"drawbridge/scripts/internal/engine"
	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/store"
)

// exampleKit is the kit of the story, from the root of the repository.
const exampleKit = "kitrun/examples/hello-kit"

// KitOutcome is what the story of a kit ended with.
type KitOutcome struct {
	Result       []byte // as kitrun printed it
	File         string // what the agent wrote
	Observations []byte // what the kit kept of the broker's evidence
	Provider     int64  // requests that reached the provider with the credential
	Grant        store.Grant
}

// RunKit tells the story of scripts/demo kit: the example kit is installed and run;
// it takes out a capability, and one real Codex edits a file. kitrun starts the
// broker itself. root is the top of the repository.
func RunKit(tb rig.TB, say func(format string, args ...any), o Options, root string) KitOutcome {
	id := make([]byte, 8)
	_, _ = rand.Read(id)
	name := hex.EncodeToString(id)
	s := &story{TB: tb, Options: o, say: say, credential: "test-demo-credential-" + name, network: "drawbridge-demo-" + name, run: "demo-" + name}
	var err error
	if s.client, err = engine.NewClient(o.Host); err != nil {
		tb.Fatalf("%v", err)
	}
	img := s.image()
	s.folders()
	s.provider()
	if err := os.MkdirAll(s.path("home/.config/drawbridge"), 0o700); err != nil {
		tb.Fatalf("%v", err)
	}
	s.write("home/.config/drawbridge/brokerd.json", fmt.Sprintf("{%q:%q}\n", "test-upstream", s.upstream))
	tb.Cleanup(s.removeNetwork)

	var out KitOutcome
	dest := s.path("kits")
	s.say("%s", bytes.TrimSpace(s.kitrun(false, "install", filepath.Join(root, exampleKit), "--dest", dest, "--store-dir", s.path("store"))))
	s.say("%s", bytes.TrimSpace(s.kitrun(false, "verify", "hello-kit", "--dest", dest)))
	out.Result = s.kitrun(true, "run", "hello-kit", "--dest", dest, "--request", s.kitRequest(img), "--controller-root", s.path("private"),
		"--auth-file", s.path("secret/auth.json"), "--store-dir", s.path("store"), "--runtime-dir", s.path("run"), "--network", s.network)
	file, err := os.ReadFile(s.path("workspace/" + edited))
	if err != nil || string(file) != want {
		s.Fatalf("the workspace has not the file that the agent was told to write: %q, %v", file, err)
	}
	out.File = string(file)
	if out.Observations, err = os.ReadFile(s.path("private/provider-observations.json")); err != nil {
		s.Fatalf("%v", err)
	}
	s.nothingLeft(&out)
	out.Provider = s.arrived.Load()
	return out
}

// kitRequest writes the request.
func (s *story) kitRequest(img string) string {
	request, err := json.Marshal(map[string]any{
		"schema": "kontour.kit.execution_request", "version": "1.0", "kit_id": "hello-kit", "workspace": s.path("workspace"), "prompt": task,
		"engine_sandbox": map[string]any{"image": img, "worker_root": s.path("context")},
		"execution":      map[string]any{"model": rig.Model, "timeout_s": turnWait.Seconds()},
		"parameters":     map[string]any{"storage_budget": map[string]any{"min_free_bytes": 0}},
	})
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.write("request.json", string(request)+"\n")
	return s.path("request.json")
}

// kitrun runs one command to its end and gives what it printed.
func (s *story) kitrun(show bool, args ...string) []byte {
	ctx, cancel := context.WithTimeout(s.Context(), turnWait+readyWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Kitrun, args...)
	cmd.Env = s.env
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = readyWait
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if show {
		cmd.Stderr = io.MultiWriter(&log, &lines{say: s.say})
	}
	if err := cmd.Run(); err != nil {
		s.Fatalf("kitrun %s: %v\n%s%s", args[0], err, out.String(), log.String())
	}
	return out.Bytes()
}

// nothingLeft demands that the run's grant, containers and broker are gone.
func (s *story) nothingLeft(out *KitOutcome) {
	db, err := store.Open(s.Context(), store.Options{Dir: s.path("store"), Program: "demo", ReadOnly: true})
	if err != nil {
		s.Fatalf("%v", err)
	}
	defer db.Close()
	runs, err := db.KitRuns(s.Context())
	if err != nil || len(runs) != 1 {
		s.Fatalf("%d runs, %v, want one", len(runs), err)
	}
	grants, err := db.GrantsOfRun(s.Context(), runs[0].InvocationID)
	if err != nil || len(grants) != 1 || grants[0].Open() {
		s.Fatalf("grants of the run: %+v, %v, want one that is closed", grants, err)
	}
	out.Grant = grants[0]
	left, err := s.client.Call(s.Context(), "GET", `/containers/json?all=1&filters={"label":["kontour.worker.owner=`+runs[0].OwnerID+`"]}`, nil)
	if err != nil || strings.TrimSpace(string(left)) != "[]" {
		s.Fatalf("containers of the run: %s, %v", left, err)
	}
	for end := time.Now().Add(readyWait); ; time.Sleep(lookEvery) {
		leases, err := db.Leases(s.Context(), store.BrokerdLease())
		if err != nil {
			s.Fatalf("%v", err)
		}
		if len(leases) == 0 || !leases[0].Live {
			break
		}
		if time.Now().After(end) {
			s.Fatalf("the broker that kitrun started has not ended")
		}
	}
	s.say("run %s is %s, grant %s is closed, no container carries its owner, and the broker has ended", runs[0].InvocationID, runs[0].State, out.Grant.ID)
}

// Print writes what the story ended with.
func (o KitOutcome) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "\nresult\n%s\n%s\n%s\nthe broker's observations, as the kit kept them\n%s\n\nthe provider got the credential, %d times\n",
		indent(string(o.Result)), edited, indent(o.File), indent(string(o.Observations)), o.Provider)
	return err
}

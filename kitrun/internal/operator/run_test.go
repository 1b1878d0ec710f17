package operator_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

// One run from nothing: brokerd is started, the worker's request reaches the
// provider with the credential, the receipt is printed, and nothing stays.
func TestRun(t *testing.T) {
	for _, tc := range []struct {
		network string
		prepare func(*world)
	}{
		{"isolated", func(*world) {}},
		{"socket", func(w *world) { testkit.PutProgram(t, dockertest.Relay(t), w.path("bin/station-shim")) }},
		{"bridge", func(*world) {}},
	} {
		t.Run(tc.network, func(t *testing.T) {
			w := newWorld(t).prompt("respond hello", "write a.txt 1000", "final done")
			tc.prepare(w)
			w.options["network"] = tc.network
			p := w.start("kitrun", w.withAuth()).exits(0)
			r := p.receipt()
			if !r.Completed || r.Final == nil || *r.Final != "done" || !r.ContainerRemoved || r.Observed.NetworkMode != tc.network {
				t.Errorf("receipt: %s", p.Stdout)
			}
			if r.Observed.Credentials == nil || *r.Observed.Credentials {
				t.Error("the credential file was not checked against the mounts")
			}
			file, err := os.ReadFile(w.path("artifacts/" + w.options["invocationId"].(string) + ".receipt.json"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(file), p.Stdout.String()); diff != "" {
				t.Errorf("not the receipt that is kept: %s", diff)
			}
			for _, want := range []string{"kitrun: 0:0", " admitted; disk ", " running; ", ": completed after 0:", "tokens 20 in, 10 out; receipt "} {
				if !strings.Contains(p.Stderr.String(), want) {
					t.Errorf("stderr lacks %q", want)
				}
			}
			if strings.Contains(p.Stderr.String(), "\x1b") || strings.Contains(p.Stderr.String(), "\r") {
				t.Error("stderr is no terminal and gets control characters")
			}
			g := w.grants(1)[0]
			if g.State != store.GrantClosed || g.CloseReason != "run_ended" || g.Forwarded != 1 || g.MeasuredInput != 100 || g.Request.Model != model ||
				g.Request.ReasoningEffort != "" || g.ExpiresAt-g.CreatedAt != 120_000 {
				t.Errorf("grant: %+v", g)
			}
			if !strings.Contains(p.Stderr.String(), ".receipt.json; grant "+g.ID+"\n") {
				t.Error("the last line does not name the grant")
			}
			if diff := cmp.Diff([]string{"Bearer " + credential}, w.upstream.auth); diff != "" {
				t.Error(diff)
			}
			if n := w.containers(); n != 0 {
				t.Errorf("%d containers are left", n)
			}
			w.quiet()
			w.noSecrets(p.Stdout.String(), p.Stderr.String())
		})
	}
}

func TestRun_JSON(t *testing.T) {
	w := newWorld(t).prompt("respond hello", "sleep 1500ms", "final done")
	p := w.start("kitrun", w.withAuth("-json")).exits(0)
	var events []map[string]any
	for line := range strings.Lines(p.Stdout.String()) {
		var e map[string]any
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		events = append(events, e)
	}
	var states []string
	lent := false
	for _, e := range events[:len(events)-1] {
		if e["event"] != "progress" {
			t.Errorf("got %v", e)
		}
		if s := e["state"].(string); len(states) == 0 || states[len(states)-1] != s {
			states = append(states, s)
		}
		if l, ok := e["lent"].(map[string]any); ok && l["requests"] == 1.0 && l["input_tokens"] == 100.0 {
			lent = true
		}
	}
	if diff := cmp.Diff([]string{"admitted", "created", "running", "ending", "removed", "completed"}, states); diff != "" {
		t.Error(diff)
	}
	if !lent {
		t.Error("no event says what the broker has counted")
	}
	last := events[len(events)-1]
	if last["event"] != "receipt" || last["receipt"].(map[string]any)["completed"] != true {
		t.Errorf("the last line is %v", last)
	}
	if p.Stderr.String() != "" {
		t.Errorf("stderr: %s", p.Stderr)
	}
}

// A turn that does not complete is status 1 with a receipt, and its grant ends too.
func TestRun_Fails(t *testing.T) {
	w := newWorld(t).prompt("fail no luck")
	receipt := w.path("receipt.json")
	p := w.start("kitrun", w.withAuth("--receipt", receipt)).exits(1)
	if p.Stdout.Len() != 0 || !strings.Contains(p.Stderr.String(), ": failed with status 1 after ") {
		t.Errorf("stdout %s", p.Stdout)
	}
	id := w.options["invocationId"].(string)
	output := w.path("artifacts/" + id + ".stdout.jsonl")
	p.Says(`: Codex says "no luck"; output ` + output + "; receipt ")
	w.start("kitrun", []string{"worker", "events", output}).exits(1).
		Says(`read codex events: 1 of turn.failed, not 0; Codex says "no luck" [events_invalid]`)
	if data, err := os.ReadFile(receipt); err != nil || !strings.Contains(string(data), `"completed": false`) {
		t.Errorf("%s, %v", data, err)
	}
	w.grants(1)
	w.start("kitrun", w.withAuth("--receipt", receipt)).exits(1).Says("exists already")
}

// Interrupted once, by a signal or the end of the session: the container is gone,
// the receipt says cancelled, the grant is closed. Proves worker 17.18 for the
// command line.
func TestRun_Interrupted(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			w := newWorld(t).prompt("ignore", "hang")
			p := w.start("kitrun", w.withAuth())
			p.Says(" running")
			p.Says(" 2 events")
			p.Signal(sig)
			p.exits(1)
			if r := p.receipt(); !r.Terminal.Cancelled || !r.ContainerRemoved {
				t.Errorf("receipt: %s", p.Stdout)
			}
			p.Says("cancelling the run; a second signal ends kitrun at once")
			p.Says(": cancelled after ")
			if g := w.grants(1)[0]; g.CloseReason != "run_ended" {
				t.Errorf("grant: %+v", g)
			}
			if n := w.containers(); n != 0 {
				t.Errorf("%d containers are left", n)
			}
			w.quiet()
		})
	}
}

// SIGKILL of kitrun while a worker runs on a grant: its brokerd closes the grant
// and goes; the next sweep removes the container and invents no receipt. Proves
// worker 17.20 for the command line.
func TestRun_Killed(t *testing.T) {
	w := newWorld(t).prompt("hang")
	p := w.start("kitrun", w.withAuth())
	p.Says(" running")
	p.Signal(syscall.SIGKILL)
	p.exits(-1)
	if g := w.grants(1)[0]; g.State != store.GrantClosed || g.CloseReason != "creator_gone" {
		t.Errorf("grant: %+v", g)
	}
	w.quiet()
	if n := w.containers(); n != 1 {
		t.Fatalf("%d containers", n)
	}
	list := w.start("kitrun", []string{"worker", "list", "--store-dir", w.path("store")}).exits(0)
	if text := list.Stdout.String(); !strings.Contains(text, "running (orphan)") || !strings.Contains(text, w.run) {
		t.Errorf("list:\n%s", text)
	}
	sweep := w.start("kitrun", []string{"worker", "sweep", "--store-dir", w.path("store")}).exits(0)
	if got := sweep.Stdout.String(); got != "containers removed: 1, rows settled: 1\n" {
		t.Errorf("sweep: %s", got)
	}
	if n := w.containers(); n != 0 {
		t.Errorf("%d containers are left", n)
	}
	if found, _ := filepath.Glob(w.path("artifacts/*.receipt.json")); len(found) != 0 {
		t.Errorf("receipts: %v", found)
	}
	again := w.start("kitrun", []string{"worker", "sweep", "--json", "--store-dir", w.path("store")}).exits(0)
	if got := again.Stdout.String(); got != `{"containers":0,"rows":0,"unverified":0}`+"\n" {
		t.Errorf("sweep: %s", got)
	}
}

// SIGKILL of brokerd while a grant is out: another one serves it on at the same
// address, and the run completes.
func TestRun_BrokerdKilled(t *testing.T) {
	w := newWorld(t).prompt("respond before", "sleep 3s", "respond after", "final done")
	p := w.start("kitrun", w.withAuth())
	testkit.Eventually(t, patience, func() bool { return w.upstream.count() == 1 }, "the first request")
	old := w.brokerds()
	if len(old) != 1 {
		t.Fatalf("brokerd: %v", old)
	}
	if err := syscall.Kill(old[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.exits(0)
	if n := w.upstream.count(); n != 2 {
		t.Errorf("%d requests reached the provider, want 2:\n%s", n, p.Stdout)
	}
	g := w.grants(1)[0]
	if g.CloseReason != "run_ended" || g.Forwarded != 2 {
		t.Errorf("grant: %+v", g)
	}
	w.quiet()
}

// At each step with a grant a kitrun that ends leaves one that is at its end, no
// container after a sweep, and no brokerd.
func TestRun_CrashPoints(t *testing.T) {
	for _, point := range []string{"loan_requested", "loan_out", "worker_started", "loan_closing"} {
		t.Run(point, func(t *testing.T) {
			w := newWorld(t).prompt("respond hello")
			w.start("kitrun", w.withAuth(), "DRAWBRIDGE_TEST_EXIT_AT="+point).exits(crashpoint.ExitCode)
			if point != "loan_requested" { // nobody may have taken that one up
				w.grants(1)
			}
			w.quiet()
			// The next run on the same Store sweeps, and ends what is left.
			w.options["invocationId"] = w.options["invocationId"].(string) + "-2"
			p := w.start("kitrun", w.withAuth()).exits(0)
			if !p.receipt().Completed {
				t.Errorf("receipt: %s", p.Stdout)
			}
			w.grants(2)
			if n := w.containers(); n != 0 {
				t.Errorf("%d containers are left", n)
			}
			w.quiet()
		})
	}
}

// A capability that was taken out before, at a brokerd of an operator's.
func TestRun_CapabilityFile(t *testing.T) {
	w := newWorld(t).prompt("respond hello", "final done")
	broker := w.start("brokerd", []string{"serve", "--store-dir", w.path("store"), "--runtime-dir", w.path("run"), "--network", w.network, "--log-format", "text"})
	broker.Says("listening")
	var grant *program
	testkit.Eventually(t, patience, func() bool {
		grant = w.start("brokerd", []string{"grant", "--store-dir", w.path("store"), "--auth-file", w.path("auth.json"), "--model", model, "--run", w.run})
		<-grant.Ended
		return grant.Cmd.ProcessState.Success()
	}, "a grant")
	w.write("grant.json", grant.Stdout.String())
	for name, text := range map[string]string{"whole": grant.Stdout.String(), "bare": field(t, grant.Stdout.Bytes(), "capability") + "\n"} {
		w.write("grant.json", text)
		if name == "bare" {
			w.options["providerProxy"] = map[string]any{"baseUrl": field(t, grant.Stdout.Bytes(), "base_url"), "model": model}
		} else {
			delete(w.options, "providerProxy")
		}
		w.options["invocationId"] = "op-" + name + w.network
		p := w.start("kitrun", w.args("--capability-file", w.path("grant.json"))).exits(0)
		if !p.receipt().Completed {
			t.Errorf("%s: %s", name, p.Stdout)
		}
	}
	if n := w.upstream.count(); n != 2 {
		t.Errorf("%d requests", n)
	}
	broker.Signal(syscall.SIGTERM)
	broker.exits(0)
}

func field(t *testing.T, data []byte, name string) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	text, _ := v[name].(string)
	return text
}

// A brokerd that listens where the worker does not look is found out before
// anything runs.
func TestRun_UnreachableBrokerd(t *testing.T) {
	w := newWorld(t).prompt("respond hello")
	broker := w.start("brokerd", []string{"serve", "--store-dir", w.path("store"), "--listen", "127.0.0.1", "--log-format", "text"})
	broker.Says("listening")
	p := w.start("kitrun", w.withAuth()).exits(1)
	p.Says("listens on 127.0.0.1")
	p.Says("brokerd serve --listen all")
	if g := w.grants(1)[0]; g.State != store.GrantClosed {
		t.Errorf("grant: %+v", g)
	}
	broker.Signal(syscall.SIGTERM)
	broker.exits(0)
}

func TestCancel(t *testing.T) {
	w := newWorld(t).prompt("hang")
	p := w.start("kitrun", w.withAuth())
	p.Says(" running")
	cancel := w.start("kitrun", []string{"worker", "cancel", "--run", w.run}).exits(0)
	if got := cancel.Stdout.String(); got != "workers cancelled: 1; no container is left\n" {
		t.Errorf("got %q", got)
	}
	p.exits(1).Says(": failed with status 137 (killed from elsewhere, as kitrun worker cancel does) after ")
	cancel = w.start("kitrun", []string{"worker", "cancel", "--run", w.run}).exits(0)
	if got := cancel.Stdout.String(); !strings.HasPrefix(got, "nothing was cancelled: ") {
		t.Errorf("got %q", got)
	}
	if r := p.receipt(); r.Completed || !r.ContainerRemoved {
		t.Errorf("receipt: %s", p.Stdout)
	}
}

// Two runs at once on one Store share a brokerd.
func TestRun_Two(t *testing.T) {
	w := newWorld(t).prompt("respond hello", "sleep 1s")
	w.options["readOnlyWorkspace"] = true // two would get in each other's way
	first := w.start("kitrun", w.withAuth())
	first.Says("admitted") // its options are read
	w.options["invocationId"] = w.options["invocationId"].(string) + "-2"
	second := w.start("kitrun", w.withAuth())
	began := time.Now()
	first.exits(0)
	second.exits(0)
	t.Logf("both took %v", time.Since(began))
	w.grants(2)
	w.quiet()
}

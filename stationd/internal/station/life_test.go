package station_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/station"
	"drawbridge/stationd/internal/wire"
)

// Proves station 17.M1, 17.V1, 17.X2, 17.B1: a start makes one station, one attempt and
// one lease; a daemon that behaves gets TERM only; what evidence says of a normal run
// is what /proc and this test saw.
func TestLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec("-term-exit", "7", "-print", "hello").with("artifacts", map[string]any{"paths": []string{"made"}}))
	row := w.await(s, store.AttemptReady)
	pid := int(row.DaemonPID)
	info, err := process.Stat(pid)
	w.ok(err)
	cmdline, err := process.Cmdline(pid)
	w.ok(err)
	ticket := w.ticket(s)
	if status, body := w.get(s, ticket, "/health"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	made := filepath.Join(w.layout(s), "made")
	if answer := w.request(s, ticket, http.MethodPost, "/write?path="+made); answer.StatusCode != 200 {
		t.Errorf("%d", answer.StatusCode)
	}
	all, err := w.Store.Stations(t.Context(), "")
	w.ok(err)
	attempts, err := w.Store.StationAttempts(t.Context(), s.Station.ID)
	w.ok(err)
	if len(all) != 1 || len(attempts) != 1 {
		t.Errorf("%d stations, %d attempts", len(all), len(attempts))
	}
	row = w.stop(s)
	f := w.document(s)
	if f.AgentRuntime == nil {
		t.Fatal("no part of the bridge")
	}
	hash, err := launch.Hash(launch.Command{Argv: []string{"harness", "-port", "{port}", "-term-exit", "7", "-print", "hello"}}, ".",
		[]string{"HOME", "LANG", "PATH", "PORT", "STATION_ATTEMPT", "STATION_ID", "STATION_LEASE_ID", "TMPDIR"}, f.Harness.SHA256)
	w.ok(err)
	b, p := f.AgentRuntime.Bridge, f.Process
	for name, ok := range map[string]bool{
		"ids":       f.StationID == s.Station.ID && f.Attempt == 1 && f.LeaseID == row.LeaseID && f.Profile == "agent" && f.Org == "local" && f.Owner == "ann",
		"command":   f.Command.Mode == "argv" && f.Command.Hash == hash && f.Command.Hash == row.CommandHash && f.Command.Workdir == "." && len(f.Command.Redacted) == len(cmdline),
		"harness":   f.Harness.Kind == evidence.FromArtifact && f.Harness.SHA256 == harnessOf(w.spec())["sha256"],
		"bridge":    b.Port == row.Port && cmdline[2] == strconv.Itoa(int(b.Port)) && b.Path == s.Bridge && b.Requests == 2 && b.Streams == 0 && b.BytesOut > 0,
		"times":     f.Times.Created != 0 && f.Times.Created <= f.Times.Started && f.Times.Started <= f.Times.Ready && f.Times.Ready <= f.Times.StopRequested && f.Times.StopRequested <= f.Times.Ended && f.Times.Resumed == 0,
		"process":   p.BootID == process.BootID() && p.PID == int64(pid) && p.StartTime == int64(info.Start) && p.PGID == int64(pid) && p.UID == uid() && p.ShimPID == int64(info.PPID) && strings.HasPrefix(p.Containment, "pidns"),
		"exit":      p.Exit.Code != nil && *p.Exit.Code == 7 && p.Exit.Signal == "" && p.Exit.Source == evidence.ExitFromShim,
		"stop":      f.Stop.Reason == store.StopOperator && f.Stop.RequestedBy == w.ann.ID && f.Stop.GraceMS == 1000 && f.Stop.Cleanup.Result == evidence.CleanupClean,
		"signals":   strings.Join(signals(f), ",") == "group SIGTERM",
		"tickets":   len(f.AgentRuntime.Tickets) == 1 && f.AgentRuntime.Tickets[0].Uses == 2 && f.AgentRuntime.Tickets[0].RevokedReason == store.StopOperator,
		"artifacts": strings.Contains(string(w.text(s)), `"artifacts":[{"path":"made","bytes":0,`),
		"egress":    f.Egress.Profile == "none" && f.Egress.Enforcement == "netns",
		"looks":     f.Loopback.Checks > 0 && len(f.Loopback.Findings) == 0,
		"logs":      f.Logs.Bytes > 0 && f.Logs.Dropped == 0 && len(f.Logs.SHA256) == 64,
		"events":    f.Events.Count > 0 && len(f.Events.HeadHash) == 64,
		"limits":    f.Limits.TTL == "8h0m0s" && f.Limits.Idle == "45m0s",
	} {
		if !ok {
			t.Errorf("%s: %s", name, w.text(s))
		}
	}
	check, err := w.Store.VerifyStation(t.Context(), s.Station.ID)
	if err != nil || len(check.Flaws) != 0 {
		t.Errorf("%+v, %v", check, err)
	}
	var log strings.Builder
	w.ok(w.Manager.Logs(t.Context(), s.Station.ID, 0, true, func(_ string, text []byte) error { log.Write(text); return nil }))
	if !strings.Contains(log.String(), "hello\n") {
		t.Errorf("log: %q", log.String())
	}
	w.clean(s)
}

// layout is the workspace of an attempt.
func (w *world) layout(s station.Started) string {
	w.Helper()
	return filepath.Join(w.workspace(s).Workdir, "work")
}

func harnessOf(p program) map[string]any {
	return p["harness"].(map[string]any)["artifact"].(map[string]any)
}

// Proves station 17.M1 (without a bridge): it runs, stops, and its evidence has no part
// of one.
func TestLife_NoBridge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec().with("bridge", nil, "profile", "station", "readiness", map[string]any{"tcp": true}))
	if s.Bridge != "" {
		t.Error(s.Bridge)
	}
	if row := w.stop(s); row.IdleMS != 0 {
		t.Errorf("idle %d", row.IdleMS)
	}
	var document map[string]any
	w.ok(json.Unmarshal(w.text(s), &document))
	if _, ok := document["agentRuntime"]; ok {
		t.Errorf("%v", document)
	}
	w.clean(s)
}

// Proves station 17.M2, 17.T8, 17.T16: a replacement ends the attempt before it and
// begins the next, on another lease and with another credential; of two at a time one
// begins; the ticket of the old one is refused.
func TestReplace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.spec("-guard", "bearer", "-guard-env", "HARNESS_TOKEN").with("daemonAuth", map[string]any{"mode": "env:HARNESS_TOKEN", "inject": "bearer"})
	s := w.ready(p)
	old, ticket := w.credential(s), w.ticket(s)
	if status, body := w.get(s, ticket, "/health"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	var begun []station.Started
	var refused []error
	var mu sync.Mutex
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			got, err := w.Manager.Replace(t.Context(), w.ann, s.Station.ID)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				refused = append(refused, err)
			} else {
				begun = append(begun, got)
			}
		})
	}
	both.Wait()
	if len(begun) != 1 || len(refused) != 1 || !fault.Is(refused[0], fault.AttemptExists) || begun[0].Attempt != 2 {
		t.Fatalf("%v, %v", begun, refused)
	}
	if f := w.document(s); f.Stop.Reason != store.StopReplaced {
		t.Errorf("%+v", f.Stop)
	}
	next := begun[0]
	if row := w.await(next, store.AttemptReady); row.State != store.AttemptReady {
		t.Fatalf("%+v", row)
	}
	if w.workspace(next).LeaseID == w.workspace(s).LeaseID || w.workspace(s).State != store.WorkspaceReleased {
		t.Error("the lease is the same, or the first is not released")
	}
	if status, _ := w.get(next, ticket, "/health"); status != 401 {
		t.Errorf("the old ticket: %d", status)
	}
	fresh := w.ticket(next)
	if status, _ := w.get(next, fresh, "/health"); status != 200 {
		t.Errorf("the new ticket: %d", status)
	}
	if now := w.credential(next); now == old || len(now) < 32 {
		t.Error("the credential is the same")
	} else if status, of := w.daemonSays(next, now), w.daemonSays(next, old); status != 200 || of != 401 {
		t.Errorf("the new daemon answers its credential with %d, the old one with %d", status, of)
	}
	w.stop(next)
	w.clean(next)
}

// While an attempt begins that has no lease yet, another one is refused as when it runs.
func TestReplace_Begins(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec())
	w.stop(s)
	w.ok(w.Manager.Claim(s.Station))
	if _, err := w.Manager.Replace(t.Context(), w.ann, s.Station.ID); !fault.Is(err, fault.AttemptExists) {
		t.Errorf("replace: %v", err)
	}
	w.clean(s)
}

// daemonSays asks the daemon of an attempt past the gate, with a credential.
func (w *world) daemonSays(s station.Started, credential string) int {
	w.Helper()
	path := filepath.Join(w.await(s, store.AttemptReady).RuntimeDir, wire.In)
	inside := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}}}
	r, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "http://127.0.0.1/health", nil)
	w.ok(err)
	r.Header.Set("Authorization", "Bearer "+credential)
	answer, err := inside.Do(r)
	w.ok(err)
	w.ok(answer.Body.Close())
	return answer.StatusCode
}

// credential is the daemon's, as its environment has it.
func (w *world) credential(s station.Started) string {
	w.Helper()
	env, err := process.Environ(int(w.await(s, store.AttemptReady).DaemonPID))
	w.ok(err)
	return env["HARNESS_TOKEN"]
}

// Proves station 17.T14, 17.T15: the daemon's credential, a ticket and a principal's
// secret stand in no file of Store, state and log, in no evidence and no argument,
// although the daemon prints and answers what it has.
func TestSecrets(t *testing.T) {
	t.Parallel()
	for mode, flags := range map[string][]string{
		"env:HARNESS_TOKEN": {"-guard", "basic:user", "-guard-env", "HARNESS_TOKEN", "-print-env", "HARNESS_TOKEN"},
		"file":              {},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.ready(w.spec(flags...).with("daemonAuth", map[string]any{"mode": mode, "inject": "basic:user"}))
			row := w.await(s, store.AttemptReady)
			secret, ticket := w.credential(s), w.ticket(s)
			if mode == "file" {
				data, err := os.ReadFile(filepath.Join("/proc", strconv.FormatInt(row.DaemonPID, 10), "root", wire.CredentialDir, "credential"))
				w.ok(err)
				if secret != "" {
					t.Error("it is in the environment, too")
				}
				secret = string(data)
			}
			if len(secret) != 64 {
				t.Fatalf("a credential of %d characters", len(secret))
			}
			if status, body := w.get(s, ticket, "/health"); status != 200 || strings.Contains(body, secret) {
				t.Errorf("%d %s", status, body)
			}
			for _, pid := range []int64{row.DaemonPID, row.ShimPID} {
				args, err := process.Cmdline(int(pid))
				w.ok(err)
				if strings.Contains(strings.Join(args, " "), secret) {
					t.Errorf("in the arguments of %d", pid)
				}
			}
			w.stop(s)
			var log strings.Builder
			w.ok(w.Manager.Logs(t.Context(), s.Station.ID, 1, false, func(_ string, text []byte) error { log.Write(text); return nil }))
			if mode != "file" && !strings.Contains(log.String(), "[redacted]") {
				t.Errorf("log: %q", log.String())
			}
			for name, value := range map[string]string{"credential": secret, "ticket": ticket, "secret": w.secret} {
				if strings.Contains(string(w.text(s)), value) || strings.Contains(w.log.String(), value) {
					t.Errorf("the %s is in evidence or in stationd's log", name)
				}
				if file := w.find(value); file != "" {
					t.Errorf("the %s is in %s", name, file)
				}
			}
		})
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
)

// call runs a command in this process.
func call(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, strings.NewReader("{}"), &out, &errs)
	return out.String(), errs.String(), status
}

// canned is a stationd that answers everything with one status and body.
func canned(t *testing.T, status int, body string) (runtimeDir string) {
	t.Helper()
	dir := testkit.RuntimeDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, control.Socket))
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close(); <-done })
	return dir
}

// asking are all commands that ask a stationd, with arguments that are well formed.
var asking = [][]string{
	{"start", "-f", "-"}, {"start", "-replace", "stn_a"}, {"start", "-f", "-", "-wait"}, {"stop", "stn_a"}, {"stop", "stn_a", "-wait"}, {"list"},
	{"status", "stn_a"}, {"logs", "stn_a"}, {"logs", "-f", "stn_a"}, {"ticket", "stn_a"}, {"ticket", "revoke", "tkt_a"},
	{"member", "grant", "stn_a", "prn_a", "viewer"}, {"member", "revoke", "stn_a", "prn_a"}, {"member", "list", "stn_a"},
	{"principal", "add", "name"}, {"principal", "revoke", "prn_a"}, {"principal", "list"},
	{"evidence", "show", "stn_a"}, {"evidence", "verify", "stn_a"}, {"evidence", "export", "stn_a"}, {"lease", "release", "lse_a"},
}

// Proves station 17.C1: each command's exit status and JSON error: for a stationd that
// is not there, for refusals of each class, and for mistakes of the caller.
func TestCommands_Errors(t *testing.T) {
	for _, tc := range []struct {
		name, runtime string
		code          string
		exit          int
	}{
		{"nobody there", testkit.RuntimeDir(t), "stationd_unavailable", 69},
		{"refused", canned(t, 403, `{"error":"role_denied","message":"no","hint":"ask"}`), "role_denied", 1},
		{"by policy", canned(t, 422, `{"error":"secret_in_arguments","message":"argument 2"}`), "secret_in_arguments", 1},
		{"usage", canned(t, 400, `{"error":"station_spec_invalid","message":"no"}`), "station_spec_invalid", 2},
		{"missing", canned(t, 503, `{"error":"shim_unavailable","message":"no"}`), "shim_unavailable", 69},
		{"internal", canned(t, 500, `{"error":"internal","message":"no"}`), "internal", 70},
		{"store", canned(t, 503, `{"error":"store_unavailable","message":"no"}`), "store_unavailable", 73},
		{"busy", canned(t, 503, `{"error":"lease_held","message":"no"}`), "lease_held", 75},
		{"no error object", canned(t, 502, `<html>`), "internal", 70},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, args := range asking {
				args = append(args, "-runtime-dir", tc.runtime)
				out, errs, status := call(t, args...)
				if status != tc.exit || out != "" || !strings.Contains(errs, "["+tc.code+"]") {
					t.Errorf("%v: status %d, %q, %q", args, status, out, errs)
				}
				out, _, status = call(t, append(args, "-json")...)
				var o map[string]string
				if err := json.Unmarshal([]byte(out), &o); err != nil || status != tc.exit || o["error"] != tc.code || o["message"] == "" {
					t.Errorf("%v -json: status %d, %q, %v", args, status, out, err)
				}
			}
		})
	}
	for _, args := range [][]string{
		{"start"}, {"start", "-f", "-", "-replace", "x"}, {"start", "-replace", "x", "-key", "k"}, {"start", "-f", "/does/not/exist"}, {"start", "extra", "-f", "-"},
		{"stop"}, {"stop", "a", "b"}, {"list", "a"}, {"status"}, {"logs"}, {"ticket"}, {"ticket", "a", "b"}, {"ticket", "a", "-uses", "x"}, {"member"},
		{"member", "grant", "a"}, {"principal", "add"}, {"principal", "add", "a", "-uid", "x"}, {"evidence"}, {"evidence", "show"}, {"lease", "release"}, {"nonsense"},
		{"serve", "extra"}, {"serve", "-on-exit", "linger"}, {"serve", "-orphan", "1ms"}, {"serve", "-grace", "2m"}, {"serve", "-listen", "unix:relative"},
		{"serve", "-log-level", "loud"}, {"doctor", "extra"}, {"version", "extra"},
	} {
		if out, errs, status := call(t, args...); status != 2 || out != "" || errs == "" {
			t.Errorf("%v: status %d, %q, %q", args, status, out, errs)
		}
	}
	if _, errs, status := call(t, "evidence", "export", "stn_a", "-o", "/proc/none", "-runtime-dir", t.TempDir()); status != 2 {
		t.Errorf("a file that cannot be made: %d, %s", status, errs)
	}
}

// A stop that is waited for ends with 1 when the cleanup failed, a check when something
// is not as it was written, and a start when the attempt has ended before it was ready.
func TestCommands_Outcome(t *testing.T) {
	facts := `"stationId":"stn_a","attempt":1,"stopReason":"launch_failed","detail":{"attemptState":"terminal","leaseId":"lse_a",` +
		`"cleanupResult":{"signalPath":[],"cleanup":{"result":"failed","left":[{"pid":7,"name":"stuck"}]}}}`
	unreached := `"stationId":"stn_a","attempt":1,"detail":{"attemptState":"terminal","leaseId":"lse_a","provider":"builder",` +
		`"leaseFailure":"provider_unreachable","cleanupResult":{"signalPath":[],"cleanup":{"result":"clean"}}}`
	for _, tc := range []struct {
		body   string
		args   []string
		status int
		stderr string
	}{
		{`{` + facts + `,"cleanup":"failed"}`, []string{"stop", "stn_a", "-wait"}, 1, "LEFT pid 7 (stuck) [cleanup_failed]"},
		{`{` + unreached + `,"cleanup":"failed"}`, []string{"stop", "stn_a", "-wait"}, 1,
			"station stn_a has ended, and nothing of it was started, but its lease of the provider builder could not be given back (provider_unreachable) [cleanup_failed]\n" +
				"stationd: hint: it is tried again every five minutes; stationd lease release lse_a tries now"},
		{`{` + facts + `,"cleanup":"done"}`, []string{"stop", "stn_a", "-wait"}, 0, ""},
		{`{` + facts + `,"cleanup":"failed"}`, []string{"stop", "stn_a"}, 0, ""},
		{`{` + facts + `}`, []string{"start", "-f", "-", "-wait"}, 1, "launch_failed [station_ended]"},
		{`{"stationId":"stn_a","attempt":1,"stopReason":"integrity_failed","detail":{"attemptState":"terminal","failure":{"code":"integrity_failed",` +
			`"message":"verify the harness: its digest is f00","hint":"review what changed"}}}`, []string{"start", "-f", "-", "-wait"}, 1,
			"integrity_failed: verify the harness: its digest is f00 [station_ended]\nstationd: hint: review what changed\n"},
		{`{"stationId":"stn_a","attempt":1,"stopReason":"daemon_exited","detail":{"attemptState":"terminal","daemonPid":7,"exit":{"code":3,"source":"shim"}}}`,
			[]string{"start", "-f", "-", "-wait"}, 1, "daemon_exited: status 3 [station_ended]\nstationd: hint: stationd logs stn_a"},
		{`{"check":{"flaws":[{"place":"event 3","what":"its hash is another"}]}}`, []string{"evidence", "verify", "stn_a"}, 1, "[evidence_flawed]"},
		{`{"check":{"flaws":[]}}`, []string{"evidence", "verify", "stn_a"}, 0, ""},
		{`{"stationId":"stn_a"}`, []string{"evidence", "verify", "stn_a"}, 70, "[internal]"},
	} {
		out, errs, status := call(t, append(tc.args, "-runtime-dir", canned(t, 200, tc.body))...)
		if status != tc.status || !strings.Contains(errs, tc.stderr) {
			t.Errorf("%v: status %d, %q, %q", tc.args, status, out, errs)
		}
	}
	out, _, status := call(t, "evidence", "verify", "stn_a", "-json", "-runtime-dir", canned(t, 200, `{"check":{"flaws":[{"place":"event 3","what":"x"}]}}`))
	if status != 1 || strings.Count(out, "\n") != 1 || !strings.Contains(out, `"place":"event 3"`) {
		t.Errorf("status %d, %q", status, out)
	}
}

// Proves station 17.C3: no flag takes a secret, and a secret as an argument is refused
// without being repeated, before anybody is asked.
func TestCommands_SecretsRefused(t *testing.T) {
	runtime := canned(t, 200, `{}`)
	ticket, bearer := "dbt_"+strings.Repeat("Ab1-", 10)+"xyz", "dbp_"+strings.Repeat("Zy9_", 10)+"xyz"
	for _, args := range append(asking, []string{"serve"}, []string{"doctor"}, []string{"version"}) {
		for _, flag := range []string{"-secret", "-token", "-password", "-ticket", "-bearer", "-api-key", "-credential", "-auth"} {
			for _, form := range [][]string{{flag, "hunter2hunter2"}, {flag + "=hunter2hunter2"}, {"-" + flag, "hunter2hunter2"}} {
				out, errs, status := call(t, append(append([]string{}, args...), form...)...)
				if status != 2 || strings.Contains(out+errs, "hunter2") {
					t.Errorf("%v %v: status %d, %q %q", args, form, status, out, errs)
				}
			}
		}
	}
	for _, args := range [][]string{
		{"ticket", "revoke", ticket}, {"status", bearer}, {"lease", "release", "lse_a", "-force", "-reason", "because of " + ticket},
		{"start", "-key", bearer, "-f", "-"}, {"member", "grant", "stn_a", bearer, "viewer"}, {"serve", "-listen", ticket},
		{"ticket", "stn_a", "-prefix=/x?ticket=" + ticket}, {"principal", "add", "ghp_" + strings.Repeat("a1B2", 9)},
	} {
		out, errs, status := call(t, append(args, "-runtime-dir", runtime)...)
		if status != 2 || !strings.Contains(errs, "[secret_as_argument]") || strings.Contains(out+errs, ticket) || strings.Contains(out+errs, bearer) {
			t.Errorf("%v: status %d, %q %q", args, status, out, errs)
		}
	}
}

// Proves station 17.C2: ticket prints the ticket and nothing else, this one time: it is
// nowhere in the Store, its log, or a later answer.
func TestTicket_Once(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.serve()
	id := w.start().StationID
	out, errs, status := w.stationd("ticket", id, "-prefix", "/", "-ttl", "1m")
	if status != 0 || errs != "" || !regexp.MustCompile(`^dbt_[A-Za-z0-9_-]{43}\n$`).MatchString(out) {
		t.Fatalf("status %d, %q, %q", status, out, errs)
	}
	if again := w.must("ticket", id); again == out {
		t.Error("the same ticket again")
	}
	all := w.must("status", id) + w.must("status", id, "-json") + w.must("list", "-json") + w.must("member", "list", id) + w.must("principal", "list", "-json")
	w.must("stop", id, "-wait")
	all += w.must("evidence", "show", id, "-json") + w.must("evidence", "export", id) + d.log.String()
	if strings.Contains(all, strings.TrimSpace(out)) {
		t.Error("the ticket is in a later answer or in the log")
	}
	d.signal(15).exits(0)
	for _, dir := range []string{"store", "state", "run"} {
		err := filepath.WalkDir(w.path(dir), func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			if bytes.Contains(data, []byte(strings.TrimSpace(out))) {
				t.Errorf("the ticket is in %s", path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What an operator reads: nine facts, each in a line of its own, and no line that
// trails off.
func TestStatus_Text(t *testing.T) {
	body := `{"stationId":"stn_a","owner":"o","profile":"agent","createdAt":"2026-01-02T03:04:05Z","state":"stopping","desiredState":"stopped","attempt":2,` +
		`"lastObservedAt":null,"stopReason":"idle_expired","leaseState":"active","supervisor":"silent","command":"live","cleanup":"pending","org":"local","role":"viewer","detail":null}`
	out, _, status := call(t, "status", "stn_a", "-runtime-dir", canned(t, 200, body))
	want := `station      stn_a  profile agent, owner o, your role viewer
state        stopping
wanted       stopped
attempt      2
last seen    -
stop reason  idle_expired
lease        active
supervisor   silent   the shim has missed its beats
daemon       live     it runs
cleanup      pending  it is under way
`
	if status != 0 || out != want {
		t.Errorf("status %d\n%s", status, out)
	}
	named := strings.Replace(body, `{"stationId":`, `{"name":"api","stationId":`, 1)
	kept := strings.NewReplacer(`"cleanup":"pending"`, `"cleanup":"failed"`, `"detail":null`,
		`"detail":{"provider":"builder","shimPid":7,"leaseFailure":"provider_unreachable","cleanupResult":{"cleanup":{"result":"forced"}}}`).Replace(body)
	if out, _, _ := call(t, "status", "stn_a", "-runtime-dir", canned(t, 200, kept)); !strings.Contains(out,
		"failed  no process of it is left, but its lease of the provider builder could not be given back (provider_unreachable)\n") {
		t.Errorf("with a lease that is kept:\n%s", out)
	}
	if out, _, _ := call(t, "status", "stn_a", "-runtime-dir", canned(t, 200, named)); !strings.HasPrefix(out, "station      stn_a  name api, profile agent,") {
		t.Errorf("with a name:\n%s", out)
	}
}

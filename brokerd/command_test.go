package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/store"
)

// What grant prints is what a worker needs, once; evidence, status and revoke work on
// the Store, with a brokerd and without.
func TestCommands_GrantToRevoke(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	out, status := w.brokerd("grant", "-auth-file", w.auth, "-model", model, "-run", "run-1", "-ttl", "10m", "-base-path", "/v1", "-max-requests", "3")
	if status != 0 {
		t.Fatalf("status %d: %s", status, out)
	}
	var given struct {
		BaseURL       string `json:"base_url"`
		Capability    string `json:"capability"`
		Model         string `json:"model"`
		GrantID       string `json:"grant_id"`
		TransportMode string `json:"transport_mode"`
		ExpiresAt     int64  `json:"expires_at"`
	}
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&given); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	row, err := w.Grant(t.Context(), given.GrantID)
	if err != nil {
		t.Fatal(err)
	}
	if given.Model != model || given.BaseURL != row.BaseURL || !strings.HasSuffix(given.BaseURL, "/v1") || given.TransportMode != "mocked-test-only" ||
		given.ExpiresAt != row.ExpiresAt || row.ExpiresAt-row.CreatedAt != (10*time.Minute).Milliseconds() || row.CredentialRef != w.auth {
		t.Errorf("got %s of %+v", out, row)
	}
	g := lent{row, given.Capability, w}
	g.post(200)
	g.outcomes()

	if out, status := w.brokerd("evidence", g.ID); status != 0 || !strings.HasPrefix(out, `[{"seq":1,"grant_id":"`+g.ID) {
		t.Errorf("evidence: %d, %s", status, out)
	}
	out, status = w.brokerd("status", "-json")
	var st struct {
		Serving   bool
		Endpoints []map[string]any
		Grants    []map[string]any
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil || status != 0 {
		t.Fatalf("%s: %v", out, err)
	}
	if !st.Serving || len(st.Endpoints) != 1 || len(st.Grants) != 1 || st.Grants[0]["forwarded"] != 1.0 || st.Grants[0]["measured_input"] != 10.0 {
		t.Errorf("status: %s", out)
	}
	if text, _ := w.brokerd("status"); !strings.Contains(text, "a brokerd serves this Store") || !strings.Contains(text, g.ID) {
		t.Errorf("status: %s", text)
	}
	if out, status := w.brokerd("revoke", "-run", "run-1"); status != 0 || out != g.ID+" revoked\n" {
		t.Errorf("revoke: %d, %q", status, out)
	}
	g.post401(t)
	if out, status := w.brokerd("revoke", g.ID); status != 0 || out != g.ID+" was at its end before: revoked\n" {
		t.Errorf("revoke again: %d, %q", status, out)
	}

	if out, status := w.brokerd("status", "-run", "run-1"); status != 0 || !strings.Contains(out, g.ID+"  revoked  run-1") {
		t.Errorf("status of a run that is over: %d, %s", status, out)
	}
	if out, _ := w.brokerd("status", "-run", "run-2"); strings.Contains(out, "bg_") {
		t.Errorf("status of a run without grants: %s", out)
	}

	left := w.lend(nil)
	d.signal(syscall.SIGKILL).exits(-1)
	if out, status := w.brokerd("revoke", "-all"); status != 0 || !strings.HasPrefix(out, left.ID+" opens nothing any more; no brokerd serves") {
		t.Errorf("revoke with nobody there: %d, %q", status, out)
	}
	if text, _ := w.brokerd("status"); !strings.Contains(text, "no brokerd serves this Store") || !strings.Contains(text, "to be closed") {
		t.Errorf("status: %s", text)
	}
	if out, status := w.brokerd("evidence", left.ID); status != 0 || out != "[]\n" {
		t.Errorf("evidence: %d, %q", status, out)
	}
	w.serve()
	left.becomes(store.GrantRevoked)
}

// A second name for the credential's directory is the same file; a link in the place
// of the file is refused by brokerd, not followed by grant.
func TestCommands_CredentialPath(t *testing.T) {
	w := newWorld(t)
	w.serve()
	alias := filepath.Join(w.home, "alias")
	if err := os.Symlink(w.home, alias); err != nil {
		t.Fatal(err)
	}
	if out, status := w.brokerd("grant", "-auth-file", filepath.Join(alias, "auth.json"), "-model", model); status != 0 {
		t.Errorf("by a linked directory: %d, %s", status, out)
	}
	if err := os.Symlink(w.auth, filepath.Join(w.home, "link.json")); err != nil {
		t.Fatal(err)
	}
	out, status := w.brokerd("grant", "-auth-file", filepath.Join(w.home, "link.json"), "-model", model, "-json")
	if status != 1 || !strings.Contains(out, `"error":"credential_permissions"`) {
		t.Errorf("by a link: %d, %s", status, out)
	}
}

// With nobody there a grant is not left behind for a brokerd that comes later: its
// capability is known to nobody.
func TestCommands_GrantWithoutBrokerd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	out, status := w.brokerd("grant", "-auth-file", w.auth, "-model", model, "-json")
	if status != 69 || !strings.Contains(out, `"error":"broker_unavailable"`) {
		t.Fatalf("got %d, %s", status, out)
	}
	all, err := w.OpenGrants(t.Context())
	if err != nil || len(all) != 1 || all[0].CloseReason != "not_taken_out" {
		t.Fatalf("got %+v, %v", all, err)
	}
	w.serve()
	(lent{all[0], "", w}).becomes(store.GrantClosed)
}

// A grant whose capability could not be shown is withdrawn: nobody has it.
func TestCommands_GrantNotShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	var said strings.Builder
	if status := run(t.Context(), []string{"grant", "-auth-file", w.auth, "-model", model, "-store-dir", w.dir, "-run", "r"}, full, &said); status == 0 {
		t.Errorf("status 0, said %q", said.String())
	}
	all, err := w.GrantsOfRun(t.Context(), "r")
	if err != nil || len(all) != 1 || all[0].CloseReason != "not_taken_out" {
		t.Fatalf("got %+v, %v", all, err)
	}
	(lent{all[0], "", w}).becomes(store.GrantClosed)
	if out, status := w.brokerd("revoke", "-run", "r"); status != 0 || out != "no grant is open that this names\n" {
		t.Errorf("revoke of what has ended: %d, %q", status, out)
	}
}

// Mistakes of the command line, by status. Proves broker 18.27 for hosts that are not
// loopback, and 18.26 for flags and the environment.
func TestCommands_Refused(t *testing.T) {
	w := newWorld(t)
	w.serve()
	list := func(args ...string) []string { return args }
	serve := func(args ...string) []string { return append(list("serve"), args...) }
	grant := func(args ...string) []string {
		return append(list("grant", "-auth-file", w.auth, "-model", model), args...)
	}
	for _, tc := range []struct {
		args []string
		want int
	}{
		{serve("-test-upstream", "http://192.0.2.1:80"), 2},
		{serve("-test-upstream", "https://127.0.0.1:80"), 2},
		{serve("-test-upstream", "http://localhost:80"), 2},
		{serve("-test-upstream", "http://127.0.0.1"), 2},
		{serve("-test-upstream", "http://127.0.0.1:80/x"), 2},
		{serve("-test-upstream", "http://u@127.0.0.1:80"), 2},
		{serve("-upstream-origin", "https://example.com"), 2},
		{serve("-listen", "localhost"), 2},
		{serve("-advertise-host", "example.com"), 2},
		{serve("-relay-port", "0"), 2},
		{serve("-relay-port", "65536"), 2},
		{serve("-metrics", "0.0.0.0:0"), 2},
		{serve("-upstream-proxy", "127.0.0.1:1"), 2},
		{serve("-upstream-proxy", "http://u:p@127.0.0.1:1"), 2},
		{serve("-ca-file", "/nonexistent"), 2},
		{serve("-ca-file", w.auth), 2},
		{serve("-allow-request-header", "authorization"), 2},
		{serve("-allow-request-header", "x-forwarded-for"), 2},
		{serve("-allow-request-header", "openai-organization"), 2},
		{serve("-listen", "127.0.0.1"), 75},
		{grant("-upstream-origin", "https://example.com/v1"), 1},
		{grant("-upstream-origin", w.URL), 1},
		{grant("-upstream-origin", "https://api.openai.com/v1/"), 1},
		{grant("-base-path", "/v2"), 1},
		{grant("-ttl", "soon"), 2},
		{grant("-reasoning-effort", "most"), 1},
		{grant("left over"), 2},
		{list("grant", "-model", model), 2},
		{list("grant", "-auth-file", w.auth), 1},
		{list("status", "-run", "r", "bg_1"), 2},
		{list("revoke"), 2},
		{list("revoke", "-all", "bg_1"), 2},
		{list("revoke", "bg_unknown"), 1},
		{list("evidence"), 2},
		{list("evidence", "bg_unknown"), 1},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			if out, status := w.brokerd(tc.args...); status != tc.want {
				t.Errorf("got %d, want %d: %s", status, tc.want, out)
			}
		})
	}
	if w.seen() != 0 {
		t.Errorf("the provider saw %d", w.seen())
	}
}

// A value that was given is taken or refused by name: a 0 is not the default.
func TestCommands_GrantOutOfRange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tc := range []struct{ flag, value, says string }{
		{"-max-requests", "0", "--max-requests is 0, not 1 to 10000"},
		{"-max-requests", "-1", "--max-requests is -1, not 1 to 10000"},
		{"-max-requests", "10001", "--max-requests is 10001, not 1 to 10000"},
		{"-ttl", "0s", "--ttl is 0s, not 1s to 24h0m0s"},
		{"-ttl", "0", "--ttl is 0s, not 1s to 24h0m0s"},
		{"-ttl", "25h", "--ttl is 25h0m0s, not 1s to 24h0m0s"},
		{"-ttl", "30", "did you mean 30m?"},
		{"-max-total-tokens", "0", "is no number from 1 on"},
	} {
		t.Run(tc.flag+" "+tc.value, func(t *testing.T) {
			status, said := w.told("grant", "-auth-file", w.auth, "-model", model, tc.flag, tc.value)
			if status != 2 || !strings.Contains(said, tc.says) {
				t.Errorf("got %d: %s", status, said)
			}
		})
	}
	if all, err := w.OpenGrants(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%d grants, %v", len(all), err)
	}
}

// What is wrong with a grant is told to the one who asked for it: the file as they
// named it, why, and what to do; no byte of what it holds.
func TestCommands_GrantSaysWhy(t *testing.T) {
	w := newWorld(t)
	w.serve()
	open := w.write("open.json", `{"OPENAI_API_KEY":"test-CANARY-credential"}`)
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	noKey, noJSON := w.write("nokey.json", `{"CANARY":1}`), w.write("no.json", "CANARY-text-no-json")
	short, real := w.write("short.json", `{"OPENAI_API_KEY":"CANARY"}`), w.write("real.json", `{"OPENAI_API_KEY":"CANARY-of-a-real-kind"}`)
	content := `hint: it must hold {"OPENAI_API_KEY":"…"} or {"tokens":{"access_token":"…"}}`
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, tc := range []struct {
		args []string
		says []string
	}{
		{[]string{"-auth-file", open}, []string{open + ": read the credential file: its mode 0644 lets others in [credential_permissions]", "hint: chmod 600 " + open}},
		{[]string{"-auth-file", w.home}, []string{w.home + ": ", "it is no regular file [credential_permissions]"}},
		{[]string{"-auth-file", "nowhere.json"}, []string{"error: nowhere.json: read the credential file: it cannot be opened: no such file or directory [credential_unavailable]"}},
		{[]string{"-auth-file", noKey}, []string{noKey + ": take out grant bg_", "it holds neither OPENAI_API_KEY nor tokens.access_token [credential_unavailable]", content}},
		{[]string{"-auth-file", noJSON}, []string{noJSON + ": ", "it is not one strict JSON document [credential_unavailable]", content}},
		{[]string{"-auth-file", short}, []string{short + ": ", "16 to 16384 printable bytes", content}},
		{[]string{"-auth-file", real}, []string{"a test upstream gets no credential but one that begins with test- [origin_not_allowed]", "hint: use a brokerd without --test-upstream"}},
		{[]string{"-auth-file", w.auth, "-upstream-origin", "https://example.com/v1"}, []string{"does not go to that upstream [origin_not_allowed]", "hint: leave the upstream out"}},
		{[]string{"-auth-file", w.auth, "-remote-cidr", "10.0.0.0/40"}, []string{`"10.0.0.0/40" is no range of addresses [invalid_arguments]`, "hint: --remote-cidr takes one like"}},
		{[]string{"-auth-file", w.auth, "-request-binding-digest", digest, "-ledger-file", w.home + "/l"}, []string{"this Store has none of that digest [budget_missing]", "hint: the first session"}},
	} {
		status, said := w.told(append([]string{"grant", "-model", model, "-run", "r"}, tc.args...)...)
		for _, want := range tc.says {
			if status != 1 || !strings.Contains(said, want) {
				t.Errorf("%v: %d, %q not in %s", tc.args, status, want, said)
			}
		}
		if strings.Contains(said, "CANARY") {
			t.Errorf("%v: %s", tc.args, said)
		}
	}
	all, err := w.GrantsOfRun(t.Context(), "r")
	if err != nil || len(all) != 7 {
		t.Fatalf("%d grants, %v", len(all), err)
	}
	if out, status := w.brokerd("revoke", all[0].ID); status != 0 || out != all[0].ID+" was at its end before: refused (credential_unavailable)\n" {
		t.Errorf("revoke of what was refused: %d, %q", status, out)
	}
	if text, _ := w.brokerd("status", all[0].ID); !strings.Contains(text, "credential_unavailable: read the credential file: it holds neither") {
		t.Errorf("status: %s", text)
	}
}

// A second brokerd says once who serves the Store.
func TestCommands_SecondServe(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	status, said := w.told("serve", "-listen", "127.0.0.1", "-runtime-dir", filepath.Join(w.home, "run"))
	want := fmt.Sprintf("brokerd: error: serve the Store: another brokerd (pid %d) serves it [lease_held]\nbrokerd: hint: brokerd status shows", d.cmd.Process.Pid)
	if status != 75 || !strings.HasPrefix(said, want) {
		t.Errorf("got %d: %s", status, said)
	}
}

// The file and the environment take what the flags take; the environment has no
// origin to offer.
func TestCommands_Settings(t *testing.T) {
	w := newWorld(t)
	config := w.write("brokerd.json", fmt.Sprintf(`{"listen":["127.0.0.1"],"test-upstream":%q,"deny-body-key":["background","previous_response_id"],"network":"n"}`, w.URL))
	d := w.start(false, "-config", config, "BROKERD_RELAY_PORT=9000", "OPENAI_BASE_URL=http://192.0.2.1", "BROKERD_UPSTREAM_ORIGIN=http://192.0.2.1").told("READY=1")
	g := w.lend(nil)
	g.post(200)
	d.signal(syscall.SIGTERM).exits(0)
	bad := w.write("bad.json", `{"upstream-origin":"https://example.com"}`)
	w.start(false, "-config", bad).exits(2)
	if status, said := w.told("serve", "-config", bad); status != 2 || !strings.Contains(said, "brokerd: error: "+bad+`: configuration file: config file flag "upstream-origin"`) {
		t.Errorf("got %d: %s", status, said)
	}
}

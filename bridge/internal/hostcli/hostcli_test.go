package hostcli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/bridge/internal/hostcli"
	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

const (
	fingerprint = "sha256:0346d0c8503f62a94f53450f51a0cbef82cb1b2bcb8d0f448018b3e751d9bf67"
	session     = "CANARY-session-4711"
	token       = "CANARY-token-0815"
)

var environ = []string{"MY_AGENT_SESSION_ID=" + session, "MY_AGENT_TOKEN=" + token, "PATH=/usr/bin:/bin"}

// profileFile writes the starter with each old text replaced by the next.
func profileFile(t *testing.T, replace ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.NewReplacer(replace...).Replace(string(profile.Starter()))
	path := filepath.Join(dir, "my-agent.json")
	if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExample(t *testing.T) {
	var out bytes.Buffer
	if err := hostcli.Example(&out); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(profile.Starter()), out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestList(t *testing.T) {
	var out bytes.Buffer
	if err := hostcli.List(&out, profile.Registry{}); err != nil {
		t.Fatal(err)
	}
	const want = "{\n  \"schema\": \"agent-knock-knock/host-profile-list\",\n  \"version\": 1,\n  \"profiles\": []\n}\n"
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	doc := strings.Replace(string(profile.Starter()), "my-agent-command", "builtin-x", 1)
	reg, err := profile.NewRegistry([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := hostcli.List(&out, reg); err != nil {
		t.Fatal(err)
	}
	p, _ := reg.Lookup("builtin-x")
	wantEntry := `    {
      "source": "built_in",
      "id": "builtin-x",
      "revision": "2026.08.25-1",
      "fingerprint": "` + p.Fingerprint() + `",
      "compatibility": {
        "host": "my-agent",
        "range": ">=1.8.0 <2.0.0"
      }
    }
`
	if !strings.Contains(out.String(), wantEntry) {
		t.Errorf("got %s", out.String())
	}
}

// The members and their order are the contract of host-profile §10.
func TestValidate(t *testing.T) {
	path := profileFile(t)
	var out bytes.Buffer
	if err := hostcli.Validate(&out, profile.BuiltIns(), hostcli.Request{Selection: path, Host: "my-agent", HostVersion: "1.8.0"}); err != nil {
		t.Fatal(err)
	}
	want := `{
  "ok": true,
  "schema": "agent-knock-knock/host-profile",
  "version": 1,
  "source": "file",
  "selection": "` + path + `",
  "id": "my-agent-command",
  "revision": "2026.08.25-1",
  "fingerprint": "` + fingerprint + `",
  "compatibility": {
    "host": "my-agent",
    "range": ">=1.8.0 <2.0.0"
  },
  "compatibility_checked": true,
  "controller_context_driver": "environment_v1",
  "controller_context_scope": "startup_v1",
  "standalone_bridge_compatible": true,
  "callback_driver": "command_json_v1"
}
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Proves host-profile 15.35: one of the pair alone is a usage error with nothing on
// stdout.
func TestValidate_Refuses(t *testing.T) {
	path := profileFile(t)
	for name, c := range map[string]struct {
		r    hostcli.Request
		want fault.Code
	}{
		"host alone":     {hostcli.Request{Selection: path, Host: "my-agent"}, fault.Usage},
		"version alone":  {hostcli.Request{Selection: path, HostVersion: "1.8.0"}, fault.Usage},
		"other host":     {hostcli.Request{Selection: path, Host: "other", HostVersion: "1.8.0"}, fault.HostIncompatible},
		"other version":  {hostcli.Request{Selection: path, Host: "my-agent", HostVersion: "2.0.0"}, fault.HostIncompatible},
		"bad version":    {hostcli.Request{Selection: path, Host: "my-agent", HostVersion: "v1"}, fault.HostInputInvalid},
		"no such file":   {hostcli.Request{Selection: path + "x"}, fault.ProfilePathInvalid},
		"nothing named":  {hostcli.Request{}, fault.ProfilePathInvalid},
		"broken profile": {hostcli.Request{Selection: profileFile(t, `"version": 1`, `"version": 2`)}, fault.ProfileVersion},
	} {
		var out bytes.Buffer
		err := hostcli.Validate(&out, profile.BuiltIns(), c.r)
		if fault.CodeOf(err) != c.want || out.Len() != 0 {
			t.Errorf("%s: got %v and %q, want %s and nothing", name, err, out.String(), c.want)
		}
	}
}

// Proves host-profile 15.32 (validate).
func TestValidate_RouteBound(t *testing.T) {
	path := profileFile(t, `"driver": "environment_v1"`, `"driver": "environment_v1", "scope": "route_bound_v1"`)
	var out bytes.Buffer
	if err := hostcli.Validate(&out, profile.BuiltIns(), hostcli.Request{Selection: path}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"standalone_bridge_compatible": false`, `"controller_context_scope": "route_bound_v1"`, `"compatibility_checked": false`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, out.String())
		}
	}
}

type report struct {
	OK         bool             `json:"ok"`
	Standalone bool             `json:"standalone_bridge_compatible"`
	Checks     []map[string]any `json:"checks"`
}

func doctor(t *testing.T, d hostcli.Doctor, path, version string) (report, string, error) {
	t.Helper()
	var out bytes.Buffer
	err := d.Run(context.Background(), &out, hostcli.Request{Selection: path, Host: "my-agent", HostVersion: version})
	var r report
	if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil {
		t.Fatalf("report %q: %v", out.String(), jerr)
	}
	return r, out.String(), err
}

func names(r report) string {
	var out []string
	for _, c := range r.Checks {
		out = append(out, c["name"].(string)+"="+c["status"].(string))
	}
	return strings.Join(out, " ")
}

func TestDoctor_AllOK(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ok := func(context.Context) ([]checkup.Fact, error) {
		return []checkup.Fact{{Name: "fact", Value: "<1>"}}, nil
	}
	d := hostcli.Doctor{Environ: environ, Store: ok, Siblings: ok, Terminal: ok}
	r, text, err := doctor(t, d, profileFile(t, "/usr/local/bin/my-agent", self), "1.8.0")
	if err != nil || !r.OK {
		t.Errorf("got %v: %s", err, text)
	}
	want := `{
  "ok": true,
  "mode": "host_bridge",
  "profile_id": "my-agent-command",
  "profile_revision": "2026.08.25-1",
  "profile_fingerprint": "FINGERPRINT",
  "controller_context_scope": "startup_v1",
  "standalone_bridge_compatible": true,
  "checks": [
    {
      "name": "profile",
      "status": "ok"
    },
    {
      "name": "host_compatibility",
      "status": "ok",
      "host": "my-agent",
      "version": "1.8.0",
      "range": ">=1.8.0 <2.0.0"
    },
    {
      "name": "controller_context",
      "status": "ok",
      "variable": "MY_AGENT_SESSION_ID"
    },
    {
      "name": "callback_executable",
      "status": "ok",
      "path": "EXECUTABLE"
    },
    {
      "name": "store",
      "status": "ok",
      "fact": "<1>"
    },
    {
      "name": "siblings",
      "status": "ok",
      "fact": "<1>"
    },
    {
      "name": "terminal_provider",
      "status": "ok",
      "fact": "<1>"
    }
  ]
}
`
	var head struct {
		Fingerprint string `json:"profile_fingerprint"`
	}
	if err := json.Unmarshal([]byte(text), &head); err != nil {
		t.Fatal(err)
	}
	want = strings.NewReplacer("FINGERPRINT", head.Fingerprint, "EXECUTABLE", self).Replace(want)
	if d := cmp.Diff(want, text); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Proves host-profile 15.34, 15.32 and 15.18 (doctor): everything is wrong at once and
// everything is reported, with no value of the environment in it.
func TestDoctor_AllWrong(t *testing.T) {
	bad := func(context.Context) ([]checkup.Fact, error) {
		return nil, errors.New("cannot be used with " + token + " and " + session)
	}
	d := hostcli.Doctor{
		Environ: []string{"MY_AGENT_SESSION_ID=" + session + " ", "MY_AGENT_SESSION_ID=" + session, "MY_AGENT_TOKEN=" + token},
		Store:   bad, Siblings: bad, Terminal: bad,
	}
	path := profileFile(t, `"driver": "environment_v1"`, `"driver": "environment_v1", "scope": "route_bound_v1"`, "/usr/local/bin/my-agent", "/nonexistent/agent")
	r, text, err := doctor(t, d, path, "2.0.0")
	if !errors.Is(err, hostcli.ErrFindings) || fault.ExitCode(err) != 1 || r.OK || r.Standalone {
		t.Errorf("got %v, ok %v", err, r.OK)
	}
	const want = "profile=ok host_compatibility=error standalone_bridge_scope=error controller_context=error callback_executable=error " +
		"store=error siblings=error terminal_provider=error"
	if got := names(r); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, canary := range []string{session, token, "CANARY"} {
		if strings.Contains(text, canary) {
			t.Errorf("the report holds %s: %s", canary, text)
		}
	}
	for _, c := range r.Checks[1:] {
		if c["detail"] == "" || c["detail"] == nil {
			t.Errorf("%s has no detail", c["name"])
		}
	}
}

func TestDoctor_ProfileWrong(t *testing.T) {
	called := func(context.Context) ([]checkup.Fact, error) { t.Error("a probe ran"); return nil, nil }
	r, text, err := doctor(t, hostcli.Doctor{Environ: environ, Store: called}, profileFile(t, `"id"`, `"ID"`), "1.8.0")
	if !errors.Is(err, hostcli.ErrFindings) || names(r) != "profile=error" {
		t.Errorf("got %v: %s", err, text)
	}
}

func TestDoctor_Usage(t *testing.T) {
	for _, r := range []hostcli.Request{{}, {Selection: "x"}, {Selection: "x", Host: "h"}, {Selection: "x", HostVersion: "1.0.0"}} {
		var out bytes.Buffer
		err := hostcli.Doctor{}.Run(context.Background(), &out, r)
		if !fault.Is(err, fault.Usage) || out.Len() != 0 {
			t.Errorf("%+v: got %v and %q", r, err, out.String())
		}
	}
}

func TestSiblingsProbe(t *testing.T) {
	dir := t.TempDir()
	probe := hostcli.SiblingsProbe(dir, filepath.Join(dir, "none"))
	add := func(name string, mode os.FileMode) {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	add("watchd", 0o755)
	add("outboxd", 0o644)
	if _, err := probe(context.Background()); err == nil || !strings.Contains(err.Error(), "outboxd") || strings.Contains(err.Error(), "watchd") {
		t.Errorf("got %v", err)
	}
	if err := os.Chmod(filepath.Join(dir, "outboxd"), 0o755); err != nil {
		t.Fatal(err)
	}
	facts, err := probe(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := []checkup.Fact{{Name: "found", Value: []string{"watchd", "outboxd"}}, {Name: "running", Value: []string{}}}
	if d := cmp.Diff(want, facts); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestTerminalProbe(t *testing.T) {
	dir := t.TempDir()
	program := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		path, want string
	}{
		"good":    {program("good", `[ "$1" = -V ] && echo "tmux 3.5a"`), ""},
		"fails":   {program("fails", "exit 3"), "status 3"},
		"other":   {program("other", "echo screen 4"), "does not name a tmux"},
		"missing": {filepath.Join(dir, "none"), "cannot be started"},
	} {
		_, err := hostcli.TerminalProbe(c.path)(context.Background())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

package profile_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

const session = "trusted-session-id"

func capture(t *testing.T, path string) profile.Captured {
	t.Helper()
	p, src, err := profile.Load(path, profile.BuiltIns())
	if err != nil {
		t.Fatal(err)
	}
	c, err := profile.Capture(p, src, "my-agent", "1.8.0", []string{"MY_AGENT_SESSION_ID=" + session, "MY_AGENT_TOKEN=secret"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCapture(t *testing.T) {
	path := write(t, dir(t), "my-agent.json", profile.Starter())
	yes := true
	want := profile.Captured{
		Selection: path, Source: "file", Fingerprint: starterFingerprint, Host: "my-agent", HostVersion: "1.8.0",
		Scope: profile.ScopeStartup, SessionVariable: "MY_AGENT_SESSION_ID", Session: session,
		Route: profile.Route{
			Schema: "agent-knock-knock/callback-route", Version: 1, Transport: "command_json_v1", ProfileID: "my-agent-command",
			ProfileRevision: "2026.08.25-1", ControllerSessionID: session,
			Capabilities: &profile.Capabilities{Wake: &yes, Respond: &yes},
		},
	}
	got := capture(t, path)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("captured (-want +got):\n%s", d)
	}
	const route = `{"capabilities":{"respond":true,"wake":true},"controller_session_id":"trusted-session-id","profile_id":"my-agent-command",` +
		`"profile_revision":"2026.08.25-1","schema":"agent-knock-knock/callback-route","transport":"command_json_v1","version":1}`
	if got := string(got.Route.Canonical()); got != route {
		t.Errorf("route: got %s", got)
	}
}

// Proves host-profile 15.33 (the check; each program's start has its own test).
func TestCaptureSession(t *testing.T) {
	p := mustParse(t, profile.Starter())
	for name, c := range map[string]struct {
		environ []string
		ok      bool
	}{
		"plain":                 {[]string{"MY_AGENT_SESSION_ID=s"}, true},
		"1024 characters":       {[]string{"MY_AGENT_SESSION_ID=" + strings.Repeat("é", 1024)}, true},
		"inner space and equal": {[]string{"MY_AGENT_SESSION_ID=a b=c"}, true},
		"missing":               {[]string{"MY_AGENT_SESSION_IDX=s"}, false},
		"empty":                 {[]string{"MY_AGENT_SESSION_ID="}, false},
		"padded before":         {[]string{"MY_AGENT_SESSION_ID= s"}, false},
		"padded behind":         {[]string{"MY_AGENT_SESSION_ID=s\u00a0"}, false},
		"byte order mark":       {[]string{"MY_AGENT_SESSION_ID=\ufeffs"}, false},
		"control character":     {[]string{"MY_AGENT_SESSION_ID=a\x1bb"}, false},
		"newline":               {[]string{"MY_AGENT_SESSION_ID=a\nb"}, false},
		"delete":                {[]string{"MY_AGENT_SESSION_ID=a\x7fb"}, false},
		"1025 characters":       {[]string{"MY_AGENT_SESSION_ID=" + strings.Repeat("a", 1025)}, false},
		"not UTF-8":             {[]string{"MY_AGENT_SESSION_ID=a\xff"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := p.CaptureSession(c.environ)
			if c.ok {
				if err != nil {
					t.Error(err)
				}
				return
			}
			refused(t, err, fault.ControllerSession, "controllerContext.sessionIdVariable")
			if v := strings.TrimPrefix(c.environ[0], "MY_AGENT_SESSION_ID="); len(v) > 3 && strings.Contains(err.Error(), v) {
				t.Errorf("the error holds the value: %v", err)
			}
		})
	}
}

// Proves host-profile 15.36 (reading the relay).
func TestRelay(t *testing.T) {
	path := write(t, dir(t), "my-agent.json", profile.Starter())
	c := capture(t, path)
	relay := c.Relay()
	want := []string{
		"AKK_HOST_PROFILE_SELECTION=" + path, "AKK_HOST_PROFILE_SOURCE=file", "AKK_HOST_PROFILE_FINGERPRINT=" + starterFingerprint,
		"AKK_HOST_PROFILE_HOST=my-agent", "AKK_HOST_PROFILE_HOST_VERSION=1.8.0", "MY_AGENT_SESSION_ID=" + session,
	}
	if d := cmp.Diff(want, relay); d != "" {
		t.Errorf("relay (-want +got):\n%s", d)
	}
	got, err := profile.FromRelay(relay)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, got); d != "" {
		t.Errorf("round trip (-want +got):\n%s", d)
	}
	t.Run("none", func(t *testing.T) {
		if _, err := profile.FromRelay(relay[5:]); !errors.Is(err, profile.ErrNoRelay) {
			t.Errorf("got %v", err)
		}
	})
	for i := range 5 {
		name, _, _ := strings.Cut(relay[i], "=")
		t.Run("without "+name, func(t *testing.T) {
			_, err := profile.FromRelay(slices.Delete(slices.Clone(relay), i, i+1))
			refused(t, err, fault.RelayIncomplete, "")
		})
		t.Run("only "+name, func(t *testing.T) {
			_, err := profile.FromRelay(relay[i : i+1])
			refused(t, err, fault.RelayIncomplete, "")
		})
		t.Run("empty "+name, func(t *testing.T) {
			r := slices.Clone(relay)
			r[i] = name + "="
			_, err := profile.FromRelay(r)
			refused(t, err, fault.RelayIncomplete, "")
		})
	}
	t.Run("without the session", func(t *testing.T) {
		_, err := profile.FromRelay(relay[:5])
		refused(t, err, fault.ControllerSession, "*")
	})
	for i, v := range map[int]string{
		0: "AKK_HOST_PROFILE_SELECTION=/nowhere.json", 1: "AKK_HOST_PROFILE_SOURCE=built_in", 2: "AKK_HOST_PROFILE_FINGERPRINT=sha256:00",
	} {
		t.Run("changed "+v, func(t *testing.T) {
			r := slices.Clone(relay)
			r[i] = v
			_, err := profile.FromRelay(r)
			refused(t, err, fault.ProfileChanged, "")
		})
	}
	t.Run("another Host version", func(t *testing.T) {
		r := slices.Clone(relay)
		r[4] = "AKK_HOST_PROFILE_HOST_VERSION=2.0.0"
		_, err := profile.FromRelay(r)
		refused(t, err, fault.HostIncompatible, "*")
	})
	t.Run("a built-in", func(t *testing.T) {
		reg, err := profile.NewRegistry(edit(t, "id", "builtin-x"))
		if err != nil {
			t.Fatal(err)
		}
		p, src, err := profile.Load("builtin-x", reg)
		if err != nil {
			t.Fatal(err)
		}
		c, err := profile.Capture(p, src, "my-agent", "1.8.0", want[5:])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := profile.FromRelayWith(c.Relay(), reg); err != nil {
			t.Error(err)
		}
		_, err = profile.FromRelay(c.Relay())
		refused(t, err, fault.ProfileChanged, "")
	})
}

// Part of host-profile 15.30: what Check sees. outboxd proves the rest.
func TestCheck_Drift(t *testing.T) {
	d := dir(t)
	path := write(t, d, "my-agent.json", profile.Starter())
	c := capture(t, path)
	good := func(when string) {
		t.Helper()
		if _, err := c.Check(); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	bad := func(when string) {
		t.Helper()
		if _, err := c.Check(); fault.CodeOf(err) != fault.ProfileChanged {
			t.Errorf("%s: got %v", when, err)
		}
	}
	good("unchanged")
	write(t, d, "my-agent.json", edit(t, "revision", "2"))
	bad("edited")
	write(t, d, "my-agent.json", profile.Starter())
	good("reverted")
	write(t, d, "my-agent.json", edit(t)) // other bytes, same document
	good("re-indented")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	bad("deleted")
	write(t, d, "other.json", profile.Starter())
	if err := os.Symlink("other.json", path); err != nil {
		t.Fatal(err)
	}
	bad("replaced by a link") // another canonical path
}

// The session is authority: printing or logging what was captured does not show it.
func TestCaptured_HidesTheSession(t *testing.T) {
	c := capture(t, write(t, dir(t), "my-agent.json", profile.Starter()))
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "captured", c, "route", c.Route)
	for _, text := range []string{fmt.Sprint(c), fmt.Sprintf("%+v %#v %s %q", c, c, c.Route, c.Route), log.String()} {
		if strings.Contains(text, session) || !strings.Contains(text, "my-agent-command") {
			t.Errorf("got %s", text)
		}
	}
}

// A route-bound Profile captures no session, even when the variable is set.
func TestCapture_RouteBound(t *testing.T) {
	p := mustParse(t, edit(t, "controllerContext.scope", "route_bound_v1"))
	if p.Standalone() {
		t.Error("route_bound_v1 counts as standalone")
	}
	c, err := profile.Capture(p, profile.Source{}, "my-agent", "1.8.0", []string{"MY_AGENT_SESSION_ID=s"})
	if err != nil || c.Session != "" || c.Route.ControllerSessionID != "" {
		t.Errorf("got %q, %v", c.Session, err)
	}
}

func TestEnvironment(t *testing.T) {
	p := mustParse(t, edit(t, "callback.environment.allow", []string{"B", "A", "C"}))
	got := p.Environment([]string{"A=1", "AB=2", "SECRET=x", "C=", "A=3"})
	if d := cmp.Diff([]string{"A=1", "C="}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := p.Environment(nil); got == nil || len(got) != 0 {
		t.Errorf("got %#v, want an empty list that is not nil", got)
	}
}

package terminal_test

import (
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

func somePane() terminal.Pane {
	return terminal.Pane{
		Endpoint: terminal.Endpoint{
			Socket: "/tmp/tmux-1000/default",
			Server: process.Incarnation{PID: 7, BootID: "01234567-89ab-cdef-0123-456789abcdef", Start: 5, Namespace: 4026531836},
		},
		ID: "%3", Session: "work", Window: 1, Index: 2, PID: 9, TTY: "/dev/pts/1", Width: 80, Height: 24,
	}
}

// The keys stand in lock file names and Store rows of other programs, so they
// may never change.
func TestKeys_Stable(t *testing.T) {
	p := somePane()
	agent := process.Incarnation{PID: 11, BootID: "01234567-89ab-cdef-0123-456789abcdef", Start: 6, Namespace: 4026531836}
	if got, want := p.Key(), "60e92b09be050b1982513c5fddc5f42e51ef476a9a182f094b7bff19b88dfb24"; got != want {
		t.Errorf("terminal key %s, want %s", got, want)
	}
	if got, want := terminal.IncarnationKey(p, agent), "72a540743eca1fd3a39c361bbc3484115c3a06c946abbb7732e152db28748084"; got != want {
		t.Errorf("incarnation key %s, want %s", got, want)
	}
}

func TestKeys_WhatTheyDependOn(t *testing.T) {
	agent := process.Incarnation{PID: 11, BootID: "01234567-89ab-cdef-0123-456789abcdef", Start: 6, Namespace: 4026531836}
	base := somePane()
	tests := []struct {
		name             string
		change           func(p *terminal.Pane, a *process.Incarnation)
		key, incarnation bool // whether they change
	}{
		{"socket", func(p *terminal.Pane, _ *process.Incarnation) { p.Endpoint.Socket += "2" }, true, true},
		{"server birth", func(p *terminal.Pane, _ *process.Incarnation) { p.Endpoint.Server.Start++ }, true, true},
		{"server pid", func(p *terminal.Pane, _ *process.Incarnation) { p.Endpoint.Server.PID++ }, true, true},
		{"pane id", func(p *terminal.Pane, _ *process.Incarnation) { p.ID = "%31" }, true, true},
		{"pane process", func(p *terminal.Pane, _ *process.Incarnation) { p.PID++ }, false, true},
		{"agent pid", func(_ *terminal.Pane, a *process.Incarnation) { a.PID++ }, false, true},
		{"agent birth", func(_ *terminal.Pane, a *process.Incarnation) { a.Start++ }, false, true},
		{"place, size, state", func(p *terminal.Pane, _ *process.Incarnation) {
			p.Session, p.Window, p.Index, p.Width, p.InMode = "x", 9, 9, 9, true
		}, false, false},
	}
	for _, tt := range tests {
		p, a := base, agent
		tt.change(&p, &a)
		if got := p.Key() != base.Key(); got != tt.key {
			t.Errorf("%s: terminal key changes: %v", tt.name, got)
		}
		if got := terminal.IncarnationKey(p, a) != terminal.IncarnationKey(base, agent); got != tt.incarnation {
			t.Errorf("%s: incarnation key changes: %v", tt.name, got)
		}
	}
}

func TestID(t *testing.T) {
	p := somePane()
	for session, want := range map[string]string{
		"work":  "terminal:v2:tmux:codex:work:1.2:11",
		"a b:c": "terminal:v2:tmux:codex:a%20b%3Ac:1.2:11",
		"é%":    "terminal:v2:tmux:codex:%C3%A9%25:1.2:11",
		"\xff.": "terminal:v2:tmux:codex:%FF.:1.2:11",
	} {
		p.Session = session
		id := terminal.ID("codex", p, 11)
		if id != want {
			t.Errorf("session %q: got %s, want %s", session, id, want)
		}
		got, err := terminal.ParseID(id)
		if want := (terminal.Ident{Agent: "codex", Session: session, Window: 1, Pane: 2, PID: 11}); err != nil || got != want {
			t.Errorf("session %q: parsed %+v, %v", session, got, err)
		}
	}
	if got, want := terminal.ShortRef("terminal:v2:tmux:codex:work:1.2:11"), "@09e7332bd1"; got != want {
		t.Errorf("short ref %s, want %s", got, want)
	}
}

func TestParseID_Refused(t *testing.T) {
	for id, want := range map[string]fault.Code{
		"":                                                                fault.WrongIDKind,
		"turn-20260101T000000-aaa":                                        fault.WrongIDKind,
		"@0123456789":                                                     fault.WrongIDKind,
		"terminal:v1:tmux:codex:work:1.2:11":                              fault.TerminalNotFound,
		"terminal:v2:screen:codex:work:1.2:11":                            fault.TerminalNotFound,
		"terminal:v2:tmux:codex:work:1.2":                                 fault.TerminalNotFound,
		"terminal:v2:tmux:codex:work:1.2:11:12":                           fault.TerminalNotFound,
		"terminal:v2:tmux::work:1.2:11":                                   fault.TerminalNotFound,
		"terminal:v2:tmux:Codex:work:1.2:11":                              fault.TerminalNotFound,
		"terminal:v2:tmux:codex::1.2:11":                                  fault.TerminalNotFound,
		"terminal:v2:tmux:codex:a b:1.2:11":                               fault.TerminalNotFound,
		"terminal:v2:tmux:codex:a%2:1.2:11":                               fault.TerminalNotFound,
		"terminal:v2:tmux:codex:a%zz:1.2:11":                              fault.TerminalNotFound,
		"terminal:v2:tmux:codex:a%+1:1.2:11":                              fault.TerminalNotFound,
		"terminal:v2:tmux:codex:%61:1.2:11":                               fault.TerminalNotFound,
		"terminal:v2:tmux:codex:%c3%a9:1.2:11":                            fault.TerminalNotFound,
		"terminal:v2:tmux:codex:work:01.2:11":                             fault.TerminalNotFound,
		"terminal:v2:tmux:codex:work:1.2:0":                               fault.TerminalNotFound,
		"terminal:v2:tmux:codex:work:1.2:-1":                              fault.TerminalNotFound,
		"terminal:v2:tmux:codex:work:1:11":                                fault.TerminalNotFound,
		"terminal:v2:tmux:codex:work:1.2:99999999999999999999":            fault.TerminalNotFound,
		"terminal:v2:tmux:codex:" + strings.Repeat("a", 5000) + ":1.2:11": fault.TerminalNotFound,
	} {
		if got, err := terminal.ParseID(id); !fault.Is(err, want) {
			t.Errorf("%.60q: got %+v, %v, want %s", id, got, err, want)
		}
	}
}

func FuzzParseID(f *testing.F) {
	for _, id := range []string{
		"terminal:v2:tmux:codex:work:1.2:11", "terminal:v2:tmux:claude:%C3%A9%25:0.0:4194304",
		"terminal:v2:tmux:codex:%61:1.2:11", "terminal:v2:tmux:codex:a%:1.2:11", "terminal:v1:x", "session-1",
	} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		got, err := terminal.ParseID(id)
		if err != nil {
			return
		}
		if got.String() != id || got.Session == "" || got.PID <= 0 || strings.ContainsAny(id, " \t\n\r") {
			t.Errorf("%q was accepted as %+v", id, got)
		}
	})
}

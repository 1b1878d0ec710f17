// Package codex is the Codex TUI behind the seam of package agent: which process
// of a pane it is, where its conversation is recorded, and how one exact request
// is proven to have been taken and finished.
//
// What screens and records look like is data (package rule); this package holds
// what is true of every covered version. Two modes exist. In process, the TUI in
// the pane holds its thread's writer lock and its rollout, so /proc names the
// thread. With the background daemon, Codex's default, the daemon holds the
// threads of all panes of one CODEX_HOME and nothing names a pane's thread before
// a request: the anchor is the inventory of everything the daemon has open, the
// acceptance is the one record with exactly our text after it, and the port proof
// (package control) tells equal texts in several panes apart (dryrun §1.4).
//
// Rules that hold throughout: a rollout is read only from a position whose file
// identity still holds and only up to its last newline; a bad line in the middle
// is corruption and never skipped; silence proves nothing. The package types
// nothing and writes no file. It runs one program, the agent's own binary with
// --version, once per file.
package codex

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// Bounds (core §14).
const (
	AcceptanceLimit = 16 << 20  // bytes after the anchor that are searched, per rollout
	CompletionLimit = 256 << 20 // bytes of one rollout that one reading covers
	RecordLimit     = 16 << 20  // one line
	HeaderLimit     = 1 << 20   // daemon.pid and the like

	// SecondMatchWait is how long a single match in daemon mode may still meet a
	// second one: other panes may take the same text.
	SecondMatchWait = 250 * time.Millisecond
	// mapTimeout bounds the port proof while an anchor is taken.
	mapTimeout = 100 * time.Millisecond
	// decideTimeout bounds the port proof of a decision; mapPatience is how long
	// several matches wait for a daemon that does not answer.
	decideTimeout = time.Second
	mapPatience   = 2 * time.Second
	// versionTimeout bounds `codex --version`; versionRetry is how long a failure
	// of it is believed.
	versionTimeout = 5 * time.Second
	versionRetry   = 30 * time.Second
	// clockSlack is how much a record may be older than the start of the process
	// that wrote it: both are rounded, and the wall clock is disciplined.
	clockSlack = 2 * time.Second
	maxCached  = 1024
	// daemonLookLife is how long one look at a daemon serves its other panes.
	daemonLookLife = 200 * time.Millisecond
)

// Options of New.
type Options struct {
	Rules   *rule.Set        // required
	Control bool             // ask the daemon's control socket (--codex-control)
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger     // nil: silent
}

// Adapter is Codex behind agent.Adapter. It may be used by any number of
// goroutines and keeps only caches that a file's identity guards.
type Adapter struct {
	rules   *rule.Set
	control bool
	now     func() time.Time
	log     *slog.Logger
	input   input
	reach   int64 // AcceptanceLimit

	mu       sync.Mutex
	versions map[exeKey]*versionRun
	turns    map[string]turnCache   // by rollout path
	open     map[string]openReading // by turn and rollout path
	daemons  map[string]*daemonLook // by daemon and home
}

var _ agent.Adapter = (*Adapter)(nil)

// New makes the adapter.
func New(o Options) *Adapter {
	a := &Adapter{
		rules: o.Rules, control: o.Control, now: o.Now, log: o.Log, reach: AcceptanceLimit,
		versions: map[exeKey]*versionRun{}, turns: map[string]turnCache{}, open: map[string]openReading{}, daemons: map[string]*daemonLook{},
	}
	if a.now == nil {
		a.now = time.Now
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.input = inputOf(o.Rules)
	return a
}

// Kind names the agent.
func (a *Adapter) Kind() agent.Kind { return agent.Codex }

// Read judges one screen by the rules of the version.
func (a *Adapter) Read(version string, screen terminal.Screen) agent.Reading {
	f, _ := a.rules.For(string(agent.Codex), version)
	if f == nil {
		return agent.Reading{State: agent.Unknown, Evidence: []agent.Evidence{{Rule: "version", Detail: "no rule file covers this version"}}}
	}
	return f.Read(screen)
}

// Interrupt is Escape: Ctrl-C may quit Codex (codex §8).
func (a *Adapter) Interrupt() terminal.Key { return terminal.Escape }

// Alive reports whether the holder of the threads still lives.
func (a *Adapter) Alive(_ context.Context, proc agent.Process) (alive, known bool) {
	gone, known := holder(proc).Gone()
	return known && !gone, known
}

// Files gives the rollout of the task: its turn is written there and nowhere else,
// whichever file the thread goes on in later.
func (a *Adapter) Files(task agent.Task) []string { return []string{task.Start.Path} }

// Dirs are the day directories in which the rollouts of the process are or will
// appear, with those that Codex creates at midnight.
func (a *Adapter) Dirs(proc agent.Process) []string {
	held, err := holdings(holder(proc).PID, proc.Home)
	if err != nil {
		held = holding{}
	}
	return a.dirs(proc.Home, held)
}

// dirs lists the directories of the held rollouts, of the day on which each held
// thread was created (its rollout is named after that day, however late its first
// message), and of today and tomorrow; local time and UTC both.
func (a *Adapter) dirs(home string, held holding) []string {
	root := sessionsDir(home)
	var out []string
	seen := map[string]bool{}
	add := func(dir string) {
		if !seen[dir] {
			seen[dir] = true
			out = append(out, dir)
		}
	}
	for _, path := range held.rollouts {
		add(filepath.Dir(path))
	}
	now := a.now()
	days := []time.Time{now, now.Add(24 * time.Hour)}
	for thread := range held.locks {
		if t, ok := created(thread); ok {
			days = append(days, t)
		}
	}
	for _, t := range days {
		add(dayDir(root, t.UTC()))
		add(dayDir(root, t.Local()))
	}
	return out
}

func dayDir(root string, t time.Time) string {
	return filepath.Join(root, t.Format("2006"), t.Format("01"), t.Format("02"))
}

// sessionsDir gives the real path of the rollouts' root, as /proc shows it; home
// is a real path already.
func sessionsDir(home string) string {
	dir := filepath.Join(home, "sessions")
	if fi, err := os.Lstat(dir); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		return dir
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return dir
}

// file gives the rule file for the records of a version.
func (a *Adapter) file(version string) (*rule.File, error) {
	f, _ := a.rules.For(string(agent.Codex), version)
	if f == nil {
		return nil, errVersion(version)
	}
	return f, nil
}

// statID gives the identity of the file behind a path.
func statID(path string) (agent.FileID, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return agent.FileID{}, err
	}
	return fileID(fi), nil
}

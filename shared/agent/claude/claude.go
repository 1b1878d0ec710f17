// Package claude is the Claude Code TUI behind the seam of package agent: which
// process of a pane it is, where its conversation is recorded, and how one exact
// request is proven to have been taken and finished.
//
// Three sources say what a pane does, and rank in this order (claude, beginning).
// The sessions registry, one small file for each process, names the process, its
// session and whether it is idle, busy or waiting. The transcript, one file for
// each session, says what was accepted, asked, answered and finished; its records
// form a chain by parentUuid, and the chain counts, not the order of lines. The
// screen (package rule) says where a keystroke would go and nothing else.
//
// Rules that hold throughout: a registry file counts only for the very process
// that it names (pid and start time), and one that cannot be read is read again,
// never taken as absent. A session that is open in two living processes is
// ambiguous: nothing is typed into either. A transcript is read only from a
// position whose file identity still holds and only up to its last newline.
// Silence proves nothing. The package types nothing, writes no file, starts no
// program, and opens no file of the registry but PID.json.
package claude

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/terminal"
)

// Bounds (core §14, claude §5).
const (
	AcceptanceLimit = 16 << 20  // bytes after the anchor that are searched
	CompletionLimit = 256 << 20 // bytes of one transcript that one turn may take
	RecordLimit     = 32 << 20  // one line
	registryLimit   = 64 << 10  // one file of the registry
	maxRegistry     = 4096      // files of one registry
	maxProjects     = 10000     // directories that are searched for a transcript

	// idleGrace is how long a process must have been idle until what its transcript
	// lacks is believed to be missing: the last records follow the idle mark by up to
	// 150 ms, on a busy machine by ten times that (claude §5, §12).
	idleGrace = 5 * time.Second
	maxCached = 1024
)

// Options of New.
type Options struct {
	Rules *rule.Set        // required
	Now   func() time.Time // nil: time.Now
	Log   *slog.Logger     // nil: silent
}

// Adapter is Claude Code behind agent.Adapter. It may be used by any number of
// goroutines and keeps only caches that a file's identity guards.
type Adapter struct {
	rules *rule.Set
	now   func() time.Time
	log   *slog.Logger
	input input
	reach int64 // AcceptanceLimit

	mu       sync.Mutex
	entries  map[string]cachedEntry // by path
	versions map[string]string      // by process incarnation
	turns    map[string]*follower   // by transcript and turn
}

var _ agent.Adapter = (*Adapter)(nil)

// New makes the adapter.
func New(o Options) *Adapter {
	a := &Adapter{
		rules: o.Rules, now: o.Now, log: o.Log, reach: AcceptanceLimit,
		entries: map[string]cachedEntry{}, versions: map[string]string{}, turns: map[string]*follower{},
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
func (a *Adapter) Kind() agent.Kind { return agent.Claude }

// Read judges one screen by the rules of the version. A process without a version
// has not registered its session: it is starting, or a dialog (trust, API key,
// login) stands before the session, and nothing may be typed either way.
func (a *Adapter) Read(version string, screen terminal.Screen) agent.Reading {
	if version == "" {
		return a.starting(screen)
	}
	f, _ := a.rules.For(string(agent.Claude), version)
	if f == nil {
		return agent.Reading{State: agent.Unknown, Evidence: []agent.Evidence{{Rule: "version", Detail: "no rule file covers this version"}}}
	}
	return f.Read(screen)
}

// starting reads a screen by the newest rules, for the name of a dialog only.
func (a *Adapter) starting(screen terminal.Screen) agent.Reading {
	out := agent.Reading{State: agent.NotReady, Name: "starting", Evidence: []agent.Evidence{{Rule: "registry", Detail: "the process has not registered its session yet"}}}
	var newest *rule.File
	for _, f := range a.rules.Files() {
		if f.Agent() == string(agent.Claude) {
			newest = f // they are sorted by their oldest version
		}
	}
	if newest == nil {
		return out
	}
	if r := newest.Read(screen); r.State == agent.Blocked || r.State == agent.Exited {
		return agent.Reading{State: r.State, Name: r.Name, Evidence: append(out.Evidence, r.Evidence...)}
	}
	return out
}

// Interrupt is Escape: Ctrl-C is one key away from quitting (claude §8).
func (a *Adapter) Interrupt() terminal.Key { return terminal.Escape }

// Alive reports whether the process still lives.
func (a *Adapter) Alive(_ context.Context, proc agent.Process) (alive, known bool) {
	gone, known := proc.Inc.Gone()
	return known && !gone, known
}

// Files are the transcript of the task and the process's registry file: the last
// records of a turn and the mark that the process is idle come in either order.
func (a *Adapter) Files(task agent.Task) []string {
	return []string{task.Start.Path, registryFile(task.Process.Home, task.Process.Inc.PID)}
}

// Dirs names where the transcript of the process is or will appear: the file
// itself, and, as long as there is none, the directory of all projects, since the
// name of its own may be shortened.
func (a *Adapter) Dirs(proc agent.Process) []string {
	e, err := a.entry(context.Background(), proc)
	if err != nil {
		return []string{projectsDir(proc.Home), filepath.Dir(registryFile(proc.Home, proc.Inc.PID))}
	}
	return dirs(proc.Home, e.Cwd, e.Session)
}

// dirs is Dirs for a known session.
func dirs(home, cwd, session string) []string {
	path, found, err := locate(home, cwd, session)
	if err == nil && found {
		return []string{path}
	}
	return []string{computedPath(home, cwd, session), projectsDir(home)}
}

// file gives the rule file of a version; without one no record is read either.
func (a *Adapter) file(version string) (*rule.File, error) {
	f, _ := a.rules.For(string(agent.Claude), version)
	switch {
	case f != nil:
		return f, nil
	case version == "":
		return nil, fault.New(fault.VersionUnsupported, "read the records of Claude Code: its version is unknown")
	}
	return nil, fault.New(fault.VersionUnsupported, "read the records of Claude Code %.32s: no rule file covers this version", version)
}

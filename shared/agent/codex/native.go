package codex

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

// Bounds of Threads.
const (
	threadFiles  = 400       // newest rollouts that are looked at
	headBytes    = 512 << 10 // of a rollout, for its cwd and first request
	titlesBytes  = 1 << 20   // end of session_index.jsonl
	previewRunes = 200
	ownersAsked  = 40 // threads of the daemon whose owner is asked for
)

// Where Codex keeps rollouts that a person has archived, and the names of threads.
const (
	archivedDir = "archived_sessions"
	titlesFile  = "session_index.jsonl"
)

var _ agent.Native = (*Adapter)(nil)

// Command gives a closed command of Codex. A new thread is /clear: /new asks a
// question in a git work tree (codex §6).
func (a *Adapter) Command(version string, op agent.Op, thread string) (agent.Command, error) {
	f, err := a.file(version)
	if err != nil {
		return agent.Command{}, err
	}
	return f.Command(op, thread)
}

// Cards reads the status cards on a screen.
func (a *Adapter) Cards(version string, screen terminal.Screen) []agent.Card {
	f, err := a.file(version)
	if err != nil {
		return nil
	}
	return f.Cards(version, screen)
}

// Threads lists the threads of the process's home that were begun in its working
// directory, newest first, by their rollouts. A thread is live where a process
// holds its writer lock. Of several that the process itself holds, the current one
// is not known here and none counts as live elsewhere.
func (a *Adapter) Threads(ctx context.Context, proc agent.Process) ([]agent.Thread, error) {
	f, err := a.file(proc.Version)
	if err != nil {
		return nil, err
	}
	files, err := rollouts(ctx, proc.Home)
	if err != nil {
		return nil, fault.New(fault.ObservationUnavail, "list the rollouts of Codex: %w", err)
	}
	titles := titles(proc.Home)
	var out []agent.Thread
	for _, r := range files {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		head, ok := readHead(f, r.path)
		if !ok || head.thread != r.thread || head.cwd != proc.Cwd {
			continue
		}
		out = append(out, agent.Thread{
			ID: r.thread, Title: titles[r.thread], Preview: head.preview, UpdatedAt: r.mtime, Archived: r.archived,
			Workspace: head.cwd, Path: r.path, File: r.id, Live: agent.LiveUnknown,
		})
	}
	return out, a.liveness(ctx, proc, out)
}

// liveness says of each thread whether a process has it open.
func (a *Adapter) liveness(ctx context.Context, proc agent.Process, threads []agent.Thread) error {
	held, err := holdings(holder(proc).PID, proc.Home)
	if err != nil {
		return fault.New(fault.ObservationUnavail, "list the threads of Codex: %w", err)
	}
	var ask []string
	for i := range threads {
		t := &threads[i]
		switch pid := lockedBy(proc.Home, t.ID); {
		case held.locks[t.ID] && proc.Mode == agent.Daemon:
			if len(ask) < ownersAsked {
				ask = append(ask, t.ID)
			}
		case held.locks[t.ID] && len(held.locks) == 1:
			t.Live = agent.LiveHere
		case held.locks[t.ID], pid == 0:
			t.Live = agent.NotLive
		case pid > 0 && processAlive(pid):
			t.Live = agent.LiveElsewhere
		}
	}
	if len(ask) == 0 {
		return nil
	}
	// The daemon holds the threads of all panes, and for a minute those that none
	// shows any more. Whose they are, the port proof tells.
	whose, err := a.whose(ctx, proc, ask)
	if err != nil {
		a.log.Debug("ask whose the threads of the daemon are", "err", err)
		return nil
	}
	for i := range threads {
		switch t := &threads[i]; {
		case !slices.Contains(ask, t.ID):
		case whose[t.ID] == mine:
			t.Live = agent.NotLive // its own: current or an earlier one
		case whose[t.ID] == other:
			t.Live = agent.LiveElsewhere
		}
	}
	return nil
}

func processAlive(pid int) bool {
	inc, err := process.Of(pid)
	return err != nil || inc.Alive() // who cannot be looked at lives
}

// rolloutFile is one rollout of a home.
type rolloutFile struct {
	path, thread string
	id           agent.FileID
	mtime        time.Time
	archived     bool
}

// rollouts lists the newest rollouts of a home, archived ones too.
func rollouts(ctx context.Context, home string) ([]rolloutFile, error) {
	var out []rolloutFile
	for _, root := range []struct {
		dir      string
		archived bool
	}{{sessionsDir(home), false}, {filepath.Join(home, archivedDir), true}} {
		err := filepath.WalkDir(root.dir, func(path string, e fs.DirEntry, err error) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			thread, ok := rolloutName(e.Name())
			if !ok || !e.Type().IsRegular() {
				return nil
			}
			fi, err := e.Info()
			if err != nil {
				return nil //nolint:nilerr // it went meanwhile
			}
			out = append(out, rolloutFile{path, thread, fileID(fi), fi.ModTime(), root.archived})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(out, func(a, b rolloutFile) int {
		if c := b.mtime.Compare(a.mtime); c != 0 {
			return c
		}
		return strings.Compare(a.thread, b.thread)
	})
	return out[:min(len(out), threadFiles)], nil
}

// rolloutHead is what the first records of a rollout say.
type rolloutHead struct{ thread, cwd, preview string }

// readHead reads the beginning of a rollout up to its first request.
func readHead(f *rule.File, path string) (head rolloutHead, ok bool) {
	file, err := journal.OpenFile(path)
	if err != nil {
		return head, false
	}
	defer file.Close()
	in := bufio.NewReaderSize(io.LimitReader(file, headBytes), 64<<10)
	for n := 0; ; n++ {
		data, err := in.ReadBytes('\n')
		if err != nil {
			return head, head.thread != "" // what is left is not whole, or beyond the bound
		}
		rec, err := f.Record(bytes.TrimSuffix(data, []byte("\n")))
		if err != nil || n == 0 && rec.Kind != rule.SessionMeta {
			return head, head.thread != ""
		}
		switch rec.Kind {
		case rule.SessionMeta:
			head.thread, head.cwd = strings.ToLower(rec.Thread), rec.Cwd
		case rule.UserMessage:
			head.preview = preview(rec.Text)
			return head, true
		}
	}
}

// preview bounds a text to one short line.
func preview(text string) string {
	r := []rune(strings.Join(strings.Fields(text), " "))
	if len(r) > previewRunes {
		return string(r[:previewRunes-1]) + "…"
	}
	return string(r)
}

// titles reads the names that threads were given, the latest of each. Without the
// file there are none.
func titles(home string) map[string]string {
	out := map[string]string{}
	f, err := journal.OpenFile(filepath.Join(home, titlesFile))
	if err != nil {
		return out
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > titlesBytes {
		if _, err := f.Seek(-titlesBytes, io.SeekEnd); err != nil {
			return out
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, titlesBytes))
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return out
	}
	for line := range bytes.Lines(data) {
		var row struct {
			ID   string `json:"id"`
			Name string `json:"thread_name"`
		}
		if json.Unmarshal(line, &row) == nil && threadID.MatchString(strings.ToLower(row.ID)) {
			out[strings.ToLower(row.ID)] = preview(row.Name)
		}
	}
	return out
}

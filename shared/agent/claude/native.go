package claude

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/fault"
	"drawbridge/shared/terminal"
)

// Bounds of a list of threads.
const (
	maxThreads = 200     // newest
	headLimit  = 1 << 20 // bytes in which the first prompt is looked for
	tailLimit  = 1 << 20 // and the last title
	maxTitle   = 120     // characters
	maxPreview = 200
)

var _ agent.Native = (*Adapter)(nil)

// Command gives a closed command of the version.
func (a *Adapter) Command(version string, op agent.Op, thread string) (agent.Command, error) {
	f, err := a.file(version)
	if err != nil {
		return agent.Command{}, err
	}
	return f.Command(op, thread)
}

// Cards reads the status panels on a screen.
func (a *Adapter) Cards(version string, screen terminal.Screen) []agent.Card {
	f, err := a.file(version)
	if err != nil {
		return nil
	}
	return f.Cards(version, screen)
}

// Threads lists the sessions that were held in proc's working directory, newest
// first. Directories whose names differ only in punctuation share one place: what
// is of another one is left out.
func (a *Adapter) Threads(ctx context.Context, proc agent.Process) ([]agent.Thread, error) {
	if _, err := a.file(proc.Version); err != nil {
		return nil, err
	}
	dir := filepath.Join(projectsDir(proc.Home), slug(proc.Cwd))
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.ObservationUnavail, "list the sessions of Claude Code: %w", err)
	}
	var out []agent.Thread
	for _, d := range names {
		id, ok := strings.CutSuffix(d.Name(), ".jsonl")
		if !ok || !sessionPattern.MatchString(id) {
			continue
		}
		fi, err := d.Info()
		if err != nil || !fi.Mode().IsRegular() {
			continue
		}
		out = append(out, agent.Thread{
			ID: strings.ToLower(id), UpdatedAt: fi.ModTime(), Workspace: proc.Cwd, Path: filepath.Join(dir, d.Name()), File: journal.ID(fi), Live: agent.NotLive,
		})
	}
	slices.SortFunc(out, func(x, y agent.Thread) int { return y.UpdatedAt.Compare(x.UpdatedAt) })
	out = out[:min(len(out), maxThreads)]
	all, liveErr := a.live(ctx, proc.Home, "")
	kept := out[:0]
	for _, t := range out {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s, err := summarise(ctx, t.Path)
		if err != nil || s.cwd != proc.Cwd {
			continue // unreadable, or of another directory
		}
		t.Title, t.Preview = s.title, s.preview
		if liveErr != nil {
			t.Live = agent.LiveUnknown
		}
		for _, e := range all {
			if e.Session != t.ID {
				continue
			}
			if e.PID != proc.Inc.PID {
				t.Live = agent.LiveElsewhere
				break
			}
			t.Live = agent.LiveHere
		}
		if t.Preview == "" && t.Live == agent.NotLive {
			continue // nothing was ever said in it
		}
		kept = append(kept, t)
	}
	return kept, nil
}

// abstract is what a list shows of a session.
type abstract struct {
	cwd, title, preview string
}

// summarise reads the first prompt and the last title of a transcript, and no
// other text.
func summarise(ctx context.Context, path string) (abstract, error) {
	f, err := journal.Open(path, RecordLimit)
	if err != nil {
		return abstract{}, err
	}
	defer f.Close()
	var out abstract
	_, _, err = f.Scan(ctx, 0, headLimit, func(l journal.Line) error {
		r, err := parseRecord(l)
		if err != nil {
			return err
		}
		if out.cwd == "" {
			out.cwd = r.Cwd
		}
		if out.preview == "" && r.prompts() && !r.Meta {
			out.preview = oneLine(r.Text, maxPreview)
		}
		if out.cwd != "" && out.preview != "" {
			return io.EOF
		}
		return nil
	})
	if err != nil {
		return out, err
	}
	_, err = f.Back(ctx, tailLimit, func(l journal.Line) error {
		r, err := parseRecord(l)
		if err != nil {
			return err
		}
		if title := r.Title + r.Summing; title != "" && (r.Type == "ai-title" || r.Type == "custom-title" || r.Type == "summary") {
			out.title = oneLine(title, maxTitle)
			return io.EOF
		}
		return nil
	})
	return out, err
}

// oneLine makes one short line of a text.
func oneLine(text string, most int) string {
	text = fault.CleanLine(strings.Join(strings.Fields(text), " "))
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

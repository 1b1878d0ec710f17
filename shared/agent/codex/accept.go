package codex

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

// anchorVersion is the format of the anchors that this package makes.
const anchorVersion = 1

// Anchor fixes where acceptance may be found: the present end of every rollout
// that the holder has open, the directories where others may appear, and the
// threads that the port proof gives to the pane (dryrun §1.4 step 3). It refuses
// where the process has no thread yet, and where an open turn of the pane's own thread is proven, however idle the screen
// looks: Enter would steer that turn (codex §0.6).
func (a *Adapter) Anchor(ctx context.Context, proc agent.Process) (agent.Anchor, error) {
	h := holder(proc)
	if !h.Alive() {
		return agent.Anchor{}, fault.New(fault.TerminalChanged, "anchor a request: the process that holds the threads is not proven alive")
	}
	f, err := a.file(proc.Version)
	if err != nil {
		return agent.Anchor{}, err
	}
	// The wall clock first: a record written while the files are measured counts as
	// after the anchor in a file that is not in it, and is before the offset in one
	// that is.
	out := agent.Anchor{Version: anchorVersion, Process: proc, TakenAt: a.now().UnixMilli()}
	held, err := holdings(h.PID, proc.Home)
	if err != nil {
		return agent.Anchor{}, fault.New(fault.ObservationUnavail, "list the threads of Codex: %w", err)
	}
	if proc.Mode == agent.InProcess && len(held.locks) == 0 {
		// 0.148.0 draws its composer before it has a thread, and then loses Enter.
		return agent.Anchor{}, fault.New(fault.TerminalNotIdle, "anchor a request: the process holds no thread yet").
			WithHint("wait until Codex has started")
	}
	if proc.Mode == agent.InProcess && len(held.locks) == 1 {
		for t := range held.locks {
			out.ThreadID = t
		}
	}
	if out.Files, err = a.positions(ctx, f, held, out.ThreadID); err != nil {
		return agent.Anchor{}, fault.New(fault.ObservationUnavail, "measure the rollouts of Codex: %w", err)
	}
	out.Dirs = a.dirs(proc.Home, held)
	own := slices.Sorted(maps.Keys(held.rollouts))
	switch {
	case proc.Mode == agent.Daemon:
		var active bool
		out.Threads, active, err = a.ours(ctx, proc, held, mapTimeout)
		if active {
			return agent.Anchor{}, errBusy()
		}
		if err != nil && !errors.Is(err, errNoControl) {
			a.log.Info("no port proof for an anchor", "pid", proc.Inc.PID, "err", err)
		}
		own = out.Threads
	case out.ThreadID != "":
		own = []string{out.ThreadID}
	}
	for _, t := range own {
		path := held.rollouts[t]
		if path == "" {
			continue
		}
		turn, err := a.lastTurn(ctx, f, path, t)
		if err != nil {
			return agent.Anchor{}, fault.New(fault.ObservationUnavail, "read the last turn of a rollout: %w", err)
		}
		if a.living(turn, proc) {
			return agent.Anchor{}, errBusy()
		}
	}
	return out, ctx.Err()
}

func errBusy() error {
	return fault.New(fault.TerminalNotIdle, "anchor a request: the pane's thread has an open turn").
		WithHint("wait until the turn ends; the screen may look idle while an answer is streaming")
}

// match is one record with exactly our text.
type match struct {
	rec   rule.Record
	begun agent.Position // the record that began its turn; no path where it began before the anchor
	path  string
	id    agent.FileID
}

// Accept looks once for the acceptance of p (codex §4, dryrun §1.4 steps 5, 6).
func (a *Adapter) Accept(ctx context.Context, anchor agent.Anchor, p agent.Prepared) (agent.Acceptance, agent.Verdict, error) {
	none := agent.Acceptance{}
	if anchor.Version != anchorVersion {
		return none, agent.Pending, fmt.Errorf("look for an acceptance: anchor of version %d", anchor.Version)
	}
	f, err := a.file(anchor.Process.Version)
	if err != nil {
		return none, agent.Pending, err
	}
	found, whole, err := a.search(ctx, f, anchor, p)
	switch {
	case errors.Is(err, errMoved) || errors.Is(err, errCorrupt) || errors.Is(err, errTooLong):
		a.log.Warn("the search for an acceptance ended", "err", err)
		return none, agent.Uncertain, nil
	case err != nil: // for example out of descriptors: nothing is decided by that
		return none, agent.Pending, fault.New(fault.ObservationUnavail, "look for an acceptance: %w", err)
	case len(found) == 0 && !whole:
		a.log.Warn("the search for an acceptance ended", "limit", a.reach)
		return none, agent.Uncertain, nil
	case len(found) == 0:
		return none, agent.Pending, nil
	}
	m, verdict := a.decide(ctx, anchor, found)
	if verdict == agent.Uncertain {
		return none, verdict, nil
	}
	acc, err := acceptance(anchor, p, m)
	if err != nil {
		return none, agent.Pending, err
	}
	return acc, verdict, nil
}

// decide judges the matches. With Pending the match is the newest one.
func (a *Adapter) decide(ctx context.Context, anchor agent.Anchor, found []match) (match, agent.Verdict) {
	newest := slices.MaxFunc(found, func(x, y match) int { return x.rec.At.Compare(y.rec.At) })
	age := a.now().Sub(newest.rec.At)
	daemon := anchor.Process.Mode == agent.Daemon
	if daemon && age > -SecondMatchWait && age < SecondMatchWait {
		return newest, agent.Pending // another pane may take the same text in this moment
	}
	own, err := map[string]owner{}, error(nil)
	if daemon {
		var threads []string
		for _, m := range found {
			threads = append(threads, m.rec.Thread)
		}
		slices.Sort(threads)
		if own, err = a.whose(ctx, anchor.Process, slices.Compact(threads)); err != nil {
			own = map[string]owner{}
			for _, t := range anchor.Threads { // the last proof there was
				own[t] = mine
			}
		}
	}
	switch {
	case len(found) == 1:
		m := found[0]
		switch {
		case m.begun.Path == "": // it steered a turn that is not ours
			return match{}, agent.Uncertain
		case own[m.rec.Thread] == other:
			return m, agent.Shared
		}
		return m, agent.Accepted
	case err != nil && !errors.Is(err, errNoControl) && age < mapPatience && age >= 0:
		return newest, agent.Pending // the daemon may answer the next time
	}
	ours := slices.DeleteFunc(slices.Clone(found), func(m match) bool { return own[m.rec.Thread] != mine })
	if len(ours) == 1 && ours[0].begun.Path != "" {
		return ours[0], agent.Accepted
	}
	return match{}, agent.Uncertain
}

// acceptance makes the evidence of one match.
func acceptance(anchor agent.Anchor, p agent.Prepared, m match) (agent.Acceptance, error) {
	sum, err := anchor.Fingerprint()
	if err != nil {
		return agent.Acceptance{}, fmt.Errorf("seal an acceptance: %w", err)
	}
	out := agent.Acceptance{
		Source: "codex_rollout", Kind: "native_user_turn",
		NativeThreadID: m.rec.Thread, RequestHash: p.RequestHash, AcceptanceID: m.rec.ID,
		AnchorFingerprint: sum,
		Metadata:          map[string]string{"turn_id": m.rec.Turn, "ordinal": strconv.FormatInt(m.rec.Ordinal, 10)},
		Task:              agent.Task{Version: 1, Process: anchor.Process, ThreadID: m.rec.Thread, TurnID: m.rec.Turn, Start: m.begun},
	}
	if !m.rec.At.IsZero() {
		out.AcceptedAt = m.rec.At.UnixMilli()
	}
	if err := out.Seal(); err != nil {
		return agent.Acceptance{}, fmt.Errorf("seal an acceptance: %w", err)
	}
	return out, nil
}

// search collects the matches after the anchor: in its files from their offsets,
// and in files that joined since, where only records stamped after the anchor
// count (an old thread that was resumed meanwhile may hold an equal request).
func (a *Adapter) search(ctx context.Context, f *rule.File, anchor agent.Anchor, p agent.Prepared) (found []match, whole bool, err error) {
	whole = true
	add := func(r *rollout, thread string, offset int64, since time.Time) error {
		ms, all, err := a.searchOne(ctx, f, r, thread, offset, since, p)
		if err != nil {
			return err
		}
		found, whole = append(found, ms...), whole && all
		return nil
	}
	known := map[agent.FileID]bool{}
	for _, pos := range anchor.Files {
		known[pos.File] = true
		r, err := openAt(pos)
		if err != nil {
			return nil, false, err
		}
		err = add(r, pos.ThreadID, pos.Offset, time.Time{})
		r.Close()
		if err != nil {
			return nil, false, err
		}
	}
	for thread, path := range a.joined(anchor) {
		r, err := openRollout(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, false, err
		}
		if known[r.id] {
			r.Close()
			continue
		}
		known[r.id] = true
		err = add(r, thread, r.joinedStart(a.reach), time.UnixMilli(anchor.TakenAt))
		r.Close()
		if err != nil {
			return nil, false, err
		}
	}
	return found, whole, nil
}

// joinedStart is where a joined file is searched from: its beginning, or for a
// very long one a line so near its end that all after the anchor is covered
// within the limit.
func (r *rollout) joinedStart(reach int64) int64 {
	if r.size <= reach {
		return 0
	}
	buf := make([]byte, HeaderLimit)
	at := r.size - reach
	n, _ := r.ReadAt(buf, at)
	for i, b := range buf[:n] {
		if b == '\n' {
			return at + int64(i) + 1
		}
	}
	return at // the middle of a long line: reported as corrupt
}

// joined gives the rollouts that may have joined since the anchor, by thread: what
// the holder has open now, and what changed in the watched directories unless
// another living process holds it (a TUI without the daemon in the same home).
func (a *Adapter) joined(anchor agent.Anchor) map[string]string {
	proc := anchor.Process
	out := map[string]string{}
	want := func(thread string) bool { return anchor.ThreadID == "" || anchor.ThreadID == thread }
	h := holder(proc)
	if h.Alive() {
		if held, err := holdings(h.PID, proc.Home); err == nil {
			for thread, path := range held.rollouts {
				if want(thread) {
					out[thread] = path
				}
			}
		}
	}
	for _, dir := range anchor.Dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // not there yet
		}
		for _, e := range entries {
			thread, ok := rolloutName(e.Name())
			if !ok || !want(thread) || out[thread] != "" {
				continue
			}
			// The kernel stamps files with a coarser clock than ours.
			fi, err := e.Info()
			if err != nil || !fi.Mode().IsRegular() || fi.ModTime().Add(clockSlack).UnixMilli() < anchor.TakenAt {
				continue
			}
			if pid := lockedBy(proc.Home, thread); pid != 0 && pid != h.PID {
				continue
			}
			out[thread] = filepath.Join(dir, e.Name())
		}
	}
	return out
}

// searchOne collects the matches of one rollout from offset on. A match's turn
// must have begun within what is searched: text that joined an older turn is a
// steer and keeps an empty begin.
func (a *Adapter) searchOne(ctx context.Context, f *rule.File, r *rollout, thread string, offset int64, since time.Time, p agent.Prepared) ([]match, bool, error) {
	var found []match
	begun := map[string]agent.Position{}
	_, whole, err := r.scan(ctx, offset, a.reach, func(l line) error {
		rec, err := record(f, l)
		if err != nil {
			return err
		}
		if !since.IsZero() && rec.At.UnixMilli() < since.UnixMilli() {
			return nil
		}
		switch rec.Kind {
		case rule.TurnStarted:
			begun[rec.Turn] = agent.Position{Path: r.path, File: r.id, ThreadID: thread, Offset: l.start, Ordinal: rec.Ordinal - 1}
		case rule.UserMessage:
			// Parts that are no text do not speak against it: "$name" in a request makes
			// Codex add the skill of that name.
			if rec.Thread != thread || strings.TrimSpace(rec.Text) != p.Expected || hash(p.Expected) != p.RequestHash {
				return nil
			}
			found = append(found, match{rec: rec, begun: begun[rec.Turn], path: r.path, id: r.id})
		}
		return nil
	})
	return found, whole, err
}

package claude

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

// anchorVersion is the format of the anchors that this package makes.
const anchorVersion = 1

// source names the evidence of an acceptance.
const source = "claude_transcript"

// Anchor fixes where acceptance may be found: the present end of the session's
// transcript, or that it has none yet. It refuses where the process is not idle by
// its own word, however idle the screen looks: what is submitted to a busy one is
// queued, and may be slipped into the turn that runs (claude §3).
func (a *Adapter) Anchor(ctx context.Context, proc agent.Process) (agent.Anchor, error) {
	if !proc.Inc.Alive() {
		return agent.Anchor{}, fault.New(fault.TerminalChanged, "anchor a request: the process is not proven alive")
	}
	if _, err := a.file(proc.Version); err != nil {
		return agent.Anchor{}, err
	}
	out := agent.Anchor{Version: anchorVersion, Process: proc, TakenAt: a.now().UnixMilli()}
	id, err := a.Identify(ctx, proc)
	if err != nil {
		return agent.Anchor{}, err
	}
	switch {
	case id.State == agent.Ambiguous:
		return agent.Anchor{}, fault.New(fault.IdentityUnverified, "anchor a request: %s", id.Reason).
			WithHint("end one of them; text could go to either")
	case id.State != agent.Resolved:
		return agent.Anchor{}, fault.New(fault.IdentityUnverified, "anchor a request: %s", id.Reason)
	case id.Activity == agent.ActivityWorking:
		return agent.Anchor{}, fault.New(fault.TerminalNotIdle, "anchor a request: Claude Code is at work").
			WithHint("wait until the turn ends; text would be queued")
	case id.Activity != agent.ActivityIdle:
		return agent.Anchor{}, fault.New(fault.TerminalNotIdle, "anchor a request: Claude Code does not say that it is idle").
			WithHint("wait until it has started; a panel that is open must be closed in the pane")
	}
	out.ThreadID, out.Files = id.ThreadID, id.Files
	out.Dirs = dirs(proc.Home, proc.Cwd, id.ThreadID)
	return out, ctx.Err()
}

// match is one prompt record with exactly our text.
type match struct {
	rec   record
	start agent.Position // where it begins
}

// finding is what one search met behind the anchor.
type finding struct {
	ours    []match
	foreign int  // prompts of others
	slipped bool // our text went into a turn that was already running
	whole   bool
}

// Accept looks once for the acceptance of p: the one prompt record behind the
// anchor with exactly this text (claude §4).
func (a *Adapter) Accept(ctx context.Context, anchor agent.Anchor, p agent.Prepared) (agent.Acceptance, agent.Verdict, error) {
	none := agent.Acceptance{}
	if anchor.Version != anchorVersion || anchor.ThreadID == "" || len(anchor.Files) > 1 {
		return none, agent.Pending, fmt.Errorf("look for an acceptance: not an anchor of this package")
	}
	rules, err := a.file(anchor.Process.Version)
	if err != nil {
		return none, agent.Pending, err
	}
	found, err := a.search(ctx, rules, anchor, p)
	switch {
	case errors.Is(err, journal.ErrMoved) || errors.Is(err, errCorrupt) || errors.Is(err, journal.ErrTooLong):
		a.log.Warn("the search for an acceptance ended", "err", err)
		return none, agent.Uncertain, nil
	case err != nil: // for example out of descriptors: nothing is decided by that
		return none, agent.Pending, fault.New(fault.ObservationUnavail, "look for an acceptance: %w", err)
	case len(found.ours) > 1, found.slipped:
		return none, agent.Uncertain, nil
	case len(found.ours) == 0 && !found.whole:
		a.log.Warn("the search for an acceptance ended", "limit", a.reach)
		return none, agent.Uncertain, nil
	case len(found.ours) == 0:
		return none, agent.Pending, nil
	}
	m := found.ours[0]
	// A prompt that had to wait may have been sent together with others, as one turn
	// with one answer.
	if m.rec.Source != "typed" && found.foreign > 0 {
		return none, agent.Uncertain, nil
	}
	acc, err := acceptance(anchor, p, m)
	if err != nil {
		return none, agent.Pending, err
	}
	return acc, agent.Accepted, nil
}

// acceptance makes the evidence of one match.
func acceptance(anchor agent.Anchor, p agent.Prepared, m match) (agent.Acceptance, error) {
	sum, err := anchor.Fingerprint()
	if err != nil {
		return agent.Acceptance{}, fmt.Errorf("seal an acceptance: %w", err)
	}
	out := agent.Acceptance{
		Source: source, Kind: "native_user_turn",
		NativeThreadID: anchor.ThreadID, RequestHash: p.RequestHash, AcceptanceID: m.rec.UUID,
		AnchorFingerprint: sum,
		Metadata:          map[string]string{"prompt_id": m.rec.Prompt, "offset": strconv.FormatInt(m.start.Offset, 10), "prompt_source": m.rec.Source},
		Task:              agent.Task{Version: 1, Process: anchor.Process, ThreadID: anchor.ThreadID, TurnID: m.rec.UUID, Start: m.start},
	}
	if !m.rec.At.IsZero() {
		out.AcceptedAt = m.rec.At.UnixMilli()
	}
	if err := out.Seal(); err != nil {
		return agent.Acceptance{}, fmt.Errorf("seal an acceptance: %w", err)
	}
	return out, nil
}

// search collects the prompts behind the anchor. Where the session had no
// transcript then, all of one that it has now is behind it.
func (a *Adapter) search(ctx context.Context, rules *rule.File, anchor agent.Anchor, p agent.Prepared) (finding, error) {
	out := finding{whole: true}
	if hash(p.Expected) != p.RequestHash {
		return out, nil
	}
	var f *journal.File
	var offset int64
	if len(anchor.Files) == 1 {
		at := anchor.Files[0]
		var err error
		if f, err = journal.OpenAt(at, RecordLimit); err != nil {
			return out, err
		}
		offset = at.Offset
	} else {
		path, found, err := locate(anchor.Process.Home, anchor.Process.Cwd, anchor.ThreadID)
		if err != nil || !found {
			return out, err
		}
		if f, err = journal.Open(path, RecordLimit); err != nil {
			return out, err
		}
	}
	defer f.Close()
	_, whole, err := f.Scan(ctx, offset, a.reach, func(l journal.Line) error {
		r, err := parseRecord(l)
		if err != nil {
			return err
		}
		if r.Session != anchor.ThreadID || r.Sidechain {
			return nil
		}
		switch {
		case r.HasDelivered && recorded(r.Delivered, p.Expected):
			out.slipped = true
		case r.human() && r.UUID != "" && recorded(r.Text, p.Expected) && prompt(rules, l):
			out.ours = append(out.ours, match{rec: r, start: agent.Position{
				Path: f.Path, File: f.ID, ThreadID: anchor.ThreadID, Offset: l.Start, Ordinal: -1,
			}})
		case r.prompts():
			out.foreign++
		}
		return nil
	})
	out.whole = whole
	return out, err
}

// prompt reports whether the rules of the version take a line for a request.
func prompt(rules *rule.File, l journal.Line) bool {
	means, err := rules.Record(l.Data)
	return err == nil && means.Kind == rule.UserMessage
}

// lastPrompt gives the turn of the last prompt before the end of a transcript.
func lastPrompt(ctx context.Context, proc agent.Process, at agent.Position) (agent.Task, bool, error) {
	f, err := journal.OpenAt(at, RecordLimit)
	if err != nil {
		return agent.Task{}, false, fault.New(fault.ObservationUnavail, "read the last turn of a transcript: %w", err)
	}
	defer f.Close()
	task, ok := agent.Task{}, false
	_, err = f.Back(ctx, CompletionLimit, func(l journal.Line) error {
		r, err := parseRecord(l)
		if err != nil {
			return err
		}
		if !r.prompts() || r.Source == sourceSDK || r.UUID == "" || r.Session != at.ThreadID {
			return nil
		}
		ok = true
		task = agent.Task{Version: 1, Process: proc, ThreadID: at.ThreadID, TurnID: r.UUID, Start: agent.Position{
			Path: at.Path, File: at.File, ThreadID: at.ThreadID, Offset: l.Start, Ordinal: -1,
		}}
		return io.EOF
	})
	if err != nil {
		return agent.Task{}, false, fault.New(fault.ObservationUnavail, "read the last turn of a transcript: %w", err)
	}
	return task, ok, nil
}

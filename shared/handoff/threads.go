package handoff

import (
	"context"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Bounds of list_resumable_threads.
const (
	maxThreads   = 50
	maxPreview   = 160
	snapshotLife = 5 * time.Minute
	offerLife    = 10 * time.Minute
)

// Kinds of offers of this file's neighbours (tools §6).
const (
	offerSnapshot  = "resume_snapshot"
	offerReconcile = "reconcile_binding"
	offerHandoff   = "handoff"
)

// Why a thread cannot be resumed (tools §8.4).
const (
	reasonActive      = "already_active"
	reasonElsewhere   = "active_in_another_process"
	reasonUnknown     = "active_thread_ownership_unverifiable"
	reasonSeveral     = "multiple_managed_sessions_reference_this_native_thread"
	reasonWorkspace   = "managed_session_workspace_mismatch"
	reasonArchived    = "archived"
	reasonNoCandidate = "candidate_token_unavailable"
)

// ThreadView is one thread that a pane could go on with.
type ThreadView struct {
	Number    int     `json:"selection_number"`
	ShortID   string  `json:"short_id"`
	ThreadID  string  `json:"native_thread_id"`
	Title     string  `json:"title,omitempty"`
	Preview   string  `json:"preview,omitempty"`
	UpdatedAt string  `json:"updated_at,omitempty"`
	Resumable bool    `json:"resumable"`
	Why       string  `json:"unavailable_reason,omitempty"`
	SessionID string  `json:"managed_session_id,omitempty"`
	Actions   Actions `json:"available_actions,omitempty"`
}

// PreviousThread is the thread that the pane's Session came from.
type PreviousThread struct {
	ThreadID  string  `json:"native_thread_id"`
	SessionID string  `json:"session_id,omitempty"`
	Actions   Actions `json:"available_actions"`
}

// ThreadsResult is the body of list_resumable_threads (tools §8.4).
type ThreadsResult struct {
	TerminalID string          `json:"terminal_id"`
	Agent      string          `json:"agent"`
	Workspace  string          `json:"workspace"`
	Current    string          `json:"current_native_thread_id,omitempty"`
	Threads    []ThreadView    `json:"threads"`
	Previous   *PreviousThread `json:"previous,omitempty"`
	ExpiresAt  string          `json:"expires_at"`
}

// A candidate is an earlier thread with what stands in its way.
type candidate struct {
	agent.Thread
	session *store.Session // that had it last; nil where none did
	dead    []string       // live bindings of it whose process is proven gone
	why     string         // "" where it can be resumed
}

// ListResumableThreads lists the threads of the pane's workspace. It types
// nothing; the one thing that it stores is what a person may mean by a number.
func (d *Desk) ListResumableThreads(ctx context.Context, _ Call, in ListResumableThreadsInput) (Outcome, error) {
	s, err := d.byTerminalID(ctx, in.TerminalID)
	if err != nil {
		return Outcome{}, err
	}
	if err := d.nativeAllowed(s); err != nil {
		return Outcome{}, err
	}
	d.glance(ctx, s)
	v, err := d.snapshot(ctx)
	if err != nil {
		return Outcome{}, err
	}
	all, err := d.candidates(ctx, s)
	if err != nil {
		return Outcome{}, err
	}
	expires := d.now().Add(snapshotLife)
	res := ThreadsResult{
		TerminalID: s.id(), Agent: string(s.proc.Agent), Workspace: s.proc.Cwd, Current: s.currentThread(),
		Threads: []ThreadView{}, ExpiresAt: stamp(expires.UnixMilli()),
	}
	ready := d.nativeReady(s, v) == nil && s.readable()
	ids := make([]string, len(all))
	for i, c := range all {
		ids[i] = c.ID
	}
	for i, c := range all {
		t := ThreadView{
			Number: i + 1, ShortID: shortThread(c.ID, ids), ThreadID: c.ID, Title: clip(oneLine(c.Title, ""), maxPreview),
			Preview: clip(oneLine(c.Preview, ""), maxPreview), Resumable: c.why == "", Why: c.why,
		}
		if !c.UpdatedAt.IsZero() {
			t.UpdatedAt = stamp(c.UpdatedAt.UnixMilli())
		}
		if c.session != nil {
			t.SessionID = c.session.ID
		}
		if t.Resumable && ready {
			t.Actions = Actions{"resume_thread": resumeAction(s, c.ID)}
		}
		res.Threads = append(res.Threads, t)
	}
	if res.Previous, err = d.previous(ctx, s, v, all, ready); err != nil {
		return Outcome{}, err
	}
	return Outcome{Body: res}, d.snapshotOffer(ctx, s, ids)
}

// snapshotOffer replaces what the caller was shown of this pane's threads.
func (d *Desk) snapshotOffer(ctx context.Context, s *sighting, ids []string) error {
	key := store.OfferKey{OwnerSession: d.Controller, Kind: offerSnapshot, TargetType: "terminal", TargetID: s.id()}
	if _, err := d.Store.ConsumeOffer(ctx, key); err != nil && !fault.Is(err, fault.OfferMissing) && !fault.Is(err, fault.OfferExpired) {
		return err
	}
	return d.Store.MintOffer(ctx, store.NewOffer{Key: key, Payload: canonical(map[string]any{"threads": ids}), Life: snapshotLife})
}

func resumeAction(s *sighting, thread string) Action {
	return Action{
		Tool: toolName("resume_thread"), Arguments: map[string]any{"terminal_id": s.id(), "native_thread_id": thread},
		RequiresUserIntent: true,
	}
}

// shortThread is "@" and the shortest run of at least eight digits from the end of
// a thread's id that no other one ends in: ids of one hour begin alike.
func shortThread(id string, all []string) string {
	digits := func(s string) string { return strings.ReplaceAll(s, "-", "") }
	own := digits(id)
	for n := 8; n < len(own); n++ {
		tail := own[len(own)-n:]
		same := func(o string) bool { return o != id && strings.HasSuffix(digits(o), tail) }
		if !slices.ContainsFunc(all, same) {
			return "@" + tail
		}
	}
	return "@" + own
}

// candidates lists the threads of the pane's home and workspace with what stands
// in their way, newest first.
func (d *Desk) candidates(ctx context.Context, s *sighting) ([]candidate, error) {
	n, err := native(s)
	if err != nil {
		return nil, err
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	threads, err := n.Threads(pctx, s.proc)
	if err != nil {
		return nil, fault.New(fault.ObservationUnavail, "list the threads of %s: %w", s.id(), err).Safe()
	}
	current := s.currentThread()
	var out []candidate
	for _, t := range threads {
		if t.Workspace != s.proc.Cwd || len(out) == maxThreads {
			continue
		}
		c := candidate{Thread: t}
		if err := d.weigh(ctx, s, &c, current); err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// weigh says why a thread cannot be resumed in the pane, if it cannot.
func (d *Desk) weigh(ctx context.Context, s *sighting, c *candidate, current string) error {
	known, err := d.Store.ThreadSessions(ctx, string(s.proc.Agent), c.ID)
	if err != nil {
		return err
	}
	held := "" // why the Session that had it last keeps it
	for i, b := range known {
		gone, sure := processGone(b.Binding)
		switch {
		case b.Binding.ReleasedAt == 0 && gone && sure && b.Session.Status == store.SessionBound:
			c.dead = append(c.dead, b.Binding.ID)
		case i > 0 && (b.Session.Status == store.SessionDetached || b.Binding.ReleasedAt != 0):
		case i > 0:
			held = reasonSeveral
		case b.Session.Status != store.SessionDetached && b.Binding.ReleasedAt == 0:
			held = "managed_session_" + b.Session.Status
		}
		if i == 0 {
			c.session = &known[i].Session
		}
	}
	switch {
	case c.ID == current || c.Live == agent.LiveHere:
		c.why = reasonActive
	case c.Archived:
		c.why = reasonArchived
	case c.Live == agent.LiveElsewhere:
		c.why = reasonElsewhere
	case c.Live != agent.NotLive:
		c.why = reasonUnknown
	case held != "":
		c.why = held
	case c.session != nil && c.session.Workspace != s.proc.Cwd:
		c.why = reasonWorkspace
	case c.File == (agent.FileID{}):
		c.why = reasonNoCandidate
	}
	return nil
}

// previous is the thread that the pane's Session was switched from, if its latest
// committed transition and the list agree on exactly that one.
func (d *Desk) previous(ctx context.Context, s *sighting, v *view, all []candidate, ready bool) (*PreviousThread, error) {
	b, ok := v.of(s)
	if !ok || b.Session.LastTransitionID == "" || !ready {
		return nil, nil
	}
	tr, err := d.Store.Transition(ctx, b.Session.LastTransitionID)
	if err != nil {
		return nil, err
	}
	before, err := parseBefore(tr.Before)
	if err != nil || tr.Status != store.TransitionCommitted || tr.TargetID != b.Session.ID || before.Thread == "" {
		return nil, nil //nolint:nilerr // a record that cannot be read names nothing
	}
	for _, c := range all {
		if c.ID == before.Thread && c.why == "" {
			return &PreviousThread{ThreadID: c.ID, SessionID: tr.SourceID, Actions: Actions{"resume_thread": resumeAction(s, c.ID)}}, nil
		}
	}
	return nil, nil
}

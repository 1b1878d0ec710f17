package handoff

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Bounds of a switch.
const (
	switchWait   = 20 * time.Second // from Enter to an idle pane: a long thread is drawn again
	identityWait = 5 * time.Second  // for files that name the thread to follow the screen
	maxKnown     = 1000             // threads that a new one must differ from
	transPrefix  = "transition-"
)

// beforeThread is what a transition keeps of the pane as it was.
type beforeThread struct {
	Version int      `json:"version"`
	Thread  string   `json:"thread"` // "" where it was not proven
	Known   []string `json:"known"`  // threads that existed
	Place   place    `json:"place"`
}

func parseBefore(b []byte) (beforeThread, error) {
	var out beforeThread
	if err := json.Unmarshal(b, &out); err != nil || out.Version != 1 {
		return out, fault.New(fault.IdentityUnverified, "stored transition is unreadable")
	}
	return out, nil
}

// NewThread makes the pane go on in a clean native thread and binds a new Session
// to it.
func (d *Desk) NewThread(ctx context.Context, call Call, in NewThreadInput) (Outcome, error) {
	return d.switchThread(ctx, call, in.TerminalID, "")
}

// ResumeThread makes the pane go on in an earlier native thread, which a fresh
// list has to show as resumable.
func (d *Desk) ResumeThread(ctx context.Context, call Call, in ResumeThreadInput) (Outcome, error) {
	return d.switchThread(ctx, call, in.TerminalID, strings.ToLower(in.NativeThreadID))
}

func (d *Desk) switchThread(ctx context.Context, call Call, id, want string) (Outcome, error) {
	if tr, ok, err := d.Store.TransitionOfCall(ctx, call.ToolCallID); err != nil || ok && tr.Settled() {
		if err != nil {
			return Outcome{}, err
		}
		return d.threadReplay(tr, id, want)
	}
	s, err := d.byTerminalID(ctx, id)
	if err != nil {
		return Outcome{}, err
	}
	if err := d.nativeAllowed(s); err != nil {
		return Outcome{}, err
	}
	var early candidate
	if want != "" {
		d.glance(ctx, s)
		if s.currentThread() != want {
			if early, err = d.pick(ctx, s, want); err != nil {
				return Outcome{}, err
			}
		}
	}
	held, h, err := d.grab(ctx, s.pane.Key(), s.id(), terminalWait)
	if err != nil {
		return Outcome{}, err
	}
	defer h.release()
	if tr, ok, err := d.Store.TransitionOfCall(held, call.ToolCallID); err != nil || ok {
		if err != nil {
			return Outcome{}, err
		}
		return d.threadReplay(tr, id, want)
	}
	if err := h.foreign(held); err != nil {
		return Outcome{}, err
	}
	if s, err = d.inspect(held, s); err != nil {
		return Outcome{}, err
	}
	if want != "" && s.currentThread() == want {
		return d.alreadyActive(held, s, want)
	}
	v, err := d.snapshot(held)
	if err != nil {
		return Outcome{}, err
	}
	if err := d.switchable(s, v); err != nil {
		return Outcome{}, err
	}
	c, err := d.pick(held, s, want)
	if err != nil {
		return Outcome{}, err
	}
	if want != "" && (c.File != early.File || c.Path != early.Path) {
		return Outcome{}, fault.New(fault.OfferChanged, "resume in %s: the file of the thread changed meanwhile", s.id()).Safe()
	}
	e, err := d.errand(h, s)
	if err != nil {
		return Outcome{}, err
	}
	x := &switching{errand: e, want: want, candidate: c}
	if err := x.plan(held, call, v); err != nil {
		return Outcome{}, err
	}
	return x.run(held)
}

// glance adds screen and identity to a sighting, as far as they can be had now.
func (d *Desk) glance(ctx context.Context, s *sighting) {
	pctx, cancel := probe(ctx)
	defer cancel()
	screen, err := d.Tmux.CaptureOne(pctx, s.pane)
	if err != nil {
		s.identify(pctx)
		return
	}
	d.judge(pctx, s, &screen)
}

// switchable is nativeReady in the words of a switch: an unfinished Turn makes the
// Session busy.
func (d *Desk) switchable(s *sighting, v *view) error {
	err := d.nativeReady(s, v)
	if f, ok := fault.As(err); ok && f.Code == fault.ActiveOwner {
		f.Code = fault.SessionBusy
	}
	return err
}

// pick finds the thread to resume in a fresh list; "" picks nothing.
func (d *Desk) pick(ctx context.Context, s *sighting, want string) (candidate, error) {
	if want == "" {
		return candidate{}, nil
	}
	all, err := d.candidates(ctx, s)
	if err != nil {
		return candidate{}, err
	}
	i := slices.IndexFunc(all, func(c candidate) bool { return c.ID == want })
	if i < 0 {
		return candidate{}, fault.New(fault.NotFound, "resume in %s: its workspace has no thread %s", s.id(), want).
			WithHint("list_resumable_threads shows those that there are").Safe()
	}
	c := all[i]
	refuse := func(code fault.Code) error {
		why := strings.ReplaceAll(c.why, "_", " ")
		if c.why == reasonNoCandidate { // in words that a border does not withhold
			why = "its file cannot be identified"
		}
		f := fault.New(code, "resume %s in %s: %s", want, s.id(), why).With("unavailable_reason", c.why).
			WithHint("list_resumable_threads shows which threads can be resumed now").Safe()
		if c.session != nil {
			f = f.With("session_id", c.session.ID)
		}
		return f
	}
	switch c.why {
	case "", reasonActive:
		return c, d.notBusy(ctx, c)
	case reasonElsewhere, reasonUnknown:
		return c, refuse(fault.IdentityUnverified)
	}
	return c, refuse(fault.CapabilityMissing)
}

// notBusy refuses a thread whose Session has an unfinished Turn.
func (d *Desk) notBusy(ctx context.Context, c candidate) error {
	if c.session == nil {
		return nil
	}
	turns, err := d.Store.Turns(ctx, store.TurnFilter{SessionID: c.session.ID, Statuses: blockingStatuses, Limit: 1})
	if err != nil || len(turns) == 0 {
		return err
	}
	return fault.New(fault.SessionBusy, "resume %s: Turn %s of its Session is %s", c.ID, turns[0].ID, turns[0].Status).
		With("turn_id", turns[0].ID).With("session_id", c.session.ID).Safe()
}

// alreadyActive answers a resume of the thread that the pane shows.
func (d *Desk) alreadyActive(ctx context.Context, s *sighting, want string) (Outcome, error) {
	res := ThreadResult{
		Status: switchActive, Operation: store.OpResumeThread, TerminalID: s.id(), Thread: want, NoTurn: true, NoOp: true,
	}
	v, err := d.snapshot(ctx)
	if err != nil {
		return Outcome{}, err
	}
	if b, ok := v.of(s); ok && b.Binding.NativeThreadID == want {
		res.SessionID = b.Session.ID
	}
	return Outcome{Body: res}, nil
}

// A switching is one transition on its way, in a held pane. Its steps are those
// of core §10, each committed before the next effect.
type switching struct {
	*errand
	want      string // thread to resume; "" for a new one
	candidate candidate
	row       store.NewTransition
	tr        store.Transition
	before    beforeThread
	command   agent.Command
}

func (x *switching) op() agent.Op {
	if x.want == "" {
		return agent.OpNew
	}
	return agent.OpResume
}

// plan makes the row, from what was seen under the hold.
func (x *switching) plan(ctx context.Context, call Call, v *view) (err error) {
	d, s := x.desk, x.s
	if x.command, err = s.command(x.op(), x.want); err != nil {
		return err
	}
	if _, err := s.command(agent.OpStatus, ""); err != nil { // the outcome must be readable
		return err
	}
	if x.before, err = d.beforeOf(ctx, s); err != nil {
		return err
	}
	x.row = store.NewTransition{
		ID: d.newID(transPrefix), ToolCallID: call.ToolCallID, Operation: store.OpNewThread, InputPossible: true,
		TerminalID: s.id(), TerminalKey: s.pane.Key(), IncarnationKey: bindingOf(s).IncarnationKey,
		Agent: string(s.proc.Agent), Workspace: s.proc.Cwd, TargetID: d.newID(sessionPrefix), TargetThread: x.want,
		Before: canonical(x.before), AdapterVersion: s.proc.Version, Command: digest(x.command.Text),
	}
	if b, ok := v.of(s); ok {
		x.row.SourceID, x.row.SourceRevision = b.Session.ID, b.Session.Revision
	}
	if x.want == "" {
		return nil
	}
	x.row.Operation, x.row.DeadBindings = store.OpResumeThread, x.candidate.dead
	x.row.CandidateFile = canonical(map[string]any{"dev": fmt.Sprint(x.candidate.File.Dev), "ino": fmt.Sprint(x.candidate.File.Ino)})
	if c := x.candidate.session; c != nil {
		x.row.TargetID, x.row.TargetRevision = c.ID, c.Revision
	}
	return nil
}

// beforeOf is what a transition has to know of the pane as it is.
func (d *Desk) beforeOf(ctx context.Context, s *sighting) (beforeThread, error) {
	out := beforeThread{Version: 1, Thread: s.currentThread(), Known: []string{}, Place: placeOf(s)}
	n, err := native(s)
	if err != nil {
		return out, err
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	threads, err := n.Threads(pctx, s.proc)
	if err != nil {
		return out, fault.New(fault.ObservationUnavail, "list the threads of %s: %w", s.id(), err).Safe()
	}
	add := func(id string) {
		if id != "" && len(out.Known) < maxKnown && !slices.Contains(out.Known, id) {
			out.Known = append(out.Known, id)
		}
	}
	add(out.Thread)
	for _, f := range s.identity.Files {
		add(f.ThreadID)
	}
	for _, t := range threads {
		add(t.ID)
	}
	bound, err := d.Store.Bound(ctx)
	for _, b := range bound {
		if b.Binding.Agent == string(s.proc.Agent) {
			add(b.Binding.NativeThreadID)
		}
	}
	return out, err
}

// run does the whole switch.
func (x *switching) run(ctx context.Context) (Outcome, error) {
	d := x.desk
	tr, replayed, err := d.Store.PrepareTransition(ctx, x.hold.lease, x.row)
	if err != nil {
		return Outcome{}, err
	}
	if replayed {
		return d.threadReplay(tr, x.s.id(), x.want)
	}
	x.tr = tr
	if err := x.hold.record("transition", tr.ID, store.TransitionPrepared); err != nil {
		return x.abort(fault.New(fault.InputNotStarted, "switch %s: %w", x.s.id(), err))
	}
	crashpoint.At("terminal_recorded")
	screen, err := x.ready(ctx)
	if err != nil {
		return x.abort(err)
	}
	if x.tr, err = d.Store.MarkDispatching(ctx, x.hold.lease, tr.ID); err != nil {
		return x.abort(err)
	}

	// From here on something may have been typed.
	ctx = context.WithoutCancel(ctx)
	if err := x.enter(ctx, x.command); err != nil {
		if !x.begun {
			return x.abort(err)
		}
		return x.doubt(ctx, err)
	}
	if x.tr, err = d.Store.TransitionTyped(ctx, x.hold.lease, tr.ID); err != nil {
		return x.doubt(ctx, err)
	}
	if _, err := x.quiet(ctx, screen.Text, quietGap, switchWait); err != nil {
		return x.doubt(ctx, err)
	}
	thread, how, err := x.arrived(ctx)
	if err != nil {
		return x.doubt(ctx, err)
	}
	if err := d.fits(ctx, x.tr, x.before, x.s, thread); err != nil {
		return x.doubt(ctx, err)
	}
	fresh, err := d.again(ctx, x.s)
	if err != nil {
		return x.doubt(ctx, err)
	}
	x.tr, err = d.Store.VerifyTransition(ctx, x.hold.lease, store.Verification{
		ID: tr.ID, Thread: thread, Binding: bindingOf(fresh), Evidence: canonical(map[string]any{"source": how, "native_thread_id": thread}),
	})
	if err != nil {
		return x.doubt(ctx, err)
	}
	return d.finish(ctx, x.hold, x.tr)
}

// arrived gives the thread that the pane shows behind the switch: by the agent's
// own files where they name it, else by its status screen, asked once.
func (x *switching) arrived(ctx context.Context) (thread, how string, err error) {
	wanted := func(id string) bool {
		if x.want != "" {
			return id == x.want
		}
		return id != x.before.Thread
	}
	for deadline := time.Now().Add(identityWait); ; {
		pctx, cancel := probe(ctx)
		x.s.identify(pctx)
		cancel()
		switch id := x.s.identity; {
		case id.State == agent.Resolved && wanted(id.ThreadID):
			return id.ThreadID, "native_files", nil
		case id.State != agent.Resolved:
			card, err := x.errand.status(ctx)
			return card.ThreadID, "status_screen", err
		}
		if time.Now().After(deadline) {
			return "", "", fmt.Errorf("the agent's files still name the earlier thread")
		}
		if err := sleep(ctx, cardPoll); err != nil {
			return "", "", err
		}
	}
}

// fits checks the thread that is current now against what was wanted, and that no
// other process has it.
func (d *Desk) fits(ctx context.Context, tr store.Transition, before beforeThread, s *sighting, thread string) error {
	switch {
	case thread == "":
		return fmt.Errorf("the thread that the pane shows is not proven")
	case tr.TargetThread != "" && thread != tr.TargetThread:
		return fmt.Errorf("the pane shows another thread than the wanted one")
	case tr.Operation == store.OpNewThread && slices.Contains(before.Known, thread):
		return fmt.Errorf("the pane shows a thread that existed before")
	}
	if tr.Operation != store.OpResumeThread {
		return nil
	}
	n, err := native(s)
	if err != nil {
		return err
	}
	pctx, cancel := probe(ctx)
	defer cancel()
	threads, err := n.Threads(pctx, s.proc)
	if err != nil {
		return fmt.Errorf("list the threads: %w", err)
	}
	i := slices.IndexFunc(threads, func(t agent.Thread) bool { return t.ID == thread })
	switch {
	case i < 0:
		return fmt.Errorf("the file of the thread is gone")
	case threads[i].Live == agent.LiveElsewhere:
		return fmt.Errorf("another process opened the thread, too")
	}
	file := canonical(map[string]any{"dev": fmt.Sprint(threads[i].File.Dev), "ino": fmt.Sprint(threads[i].File.Ino)})
	if string(file) != string(tr.CandidateFile) {
		return fmt.Errorf("the file of the thread was replaced")
	}
	return nil
}

// finish commits a verified transition. What fails here is finished by recovery,
// without input.
func (d *Desk) finish(ctx context.Context, h *hold, tr store.Transition) (Outcome, error) {
	done, err := d.Store.CommitTransition(ctx, h.lease, tr.ID)
	if err != nil {
		d.Log.Warn("commit transition", "transition", tr.ID, "err", err)
		out, _ := d.threadResult(tr, false)
		return out, nil
	}
	if err := h.lock.Clear(); err != nil {
		d.Log.Warn("clear terminal record", "err", err)
	}
	return d.threadResult(done, false)
}

// abort ends an attempt in which nothing was typed.
func (x *switching) abort(cause error) (Outcome, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	f, ok := fault.As(cause)
	if !ok {
		f = fault.New(fault.InputNotStarted, "switch %s: %w", x.s.id(), cause)
	}
	f.Input = fault.InputNone
	if _, err := x.desk.Store.AbortTransition(ctx, x.hold.lease, x.row.ID, fault.CleanLine(f.Error())); err != nil {
		x.desk.Log.Warn("abort transition", "transition", x.row.ID, "err", err)
		f.Retry = false
		return Outcome{}, f.With("transition_id", x.row.ID).WithHint("the attempt's record could not be removed; call list")
	}
	if err := x.hold.lock.Clear(); err != nil {
		x.desk.Log.Warn("clear terminal record", "err", err)
	}
	return Outcome{}, f.Safe()
}

// doubt ends an attempt after the mark: it is never repeated, the fence stays.
func (x *switching) doubt(ctx context.Context, cause error) (Outcome, error) {
	why := fault.CleanLine(cause.Error())
	tr, err := x.desk.Store.DoubtTransition(ctx, x.hold.lease, x.row.ID, why)
	if err != nil {
		x.desk.Log.Warn("transition left to recovery", "transition", x.row.ID, "err", err, "cause", why)
		if tr, err = x.desk.Store.Transition(ctx, x.row.ID); err != nil {
			return Outcome{}, fault.New(fault.SubmissionUncertain, "switch %s: the outcome could not be stored: %w", x.s.id(), err).
				WithInput(fault.InputPossible).With("transition_id", x.row.ID).WithHint("call list; do not repeat the call")
		}
	}
	if tr.Error == "" {
		tr.Error = why
	}
	return x.desk.threadResult(tr, false)
}

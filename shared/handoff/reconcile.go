package handoff

import (
	"context"
	"encoding/json"
	"strconv"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// How a bound Session stands to the live pane (core §4).
const (
	KindOrphan       = "provisional_orphan"          // bound without a thread, and no Turn will bring one
	KindSwitched     = "live_external_thread_change" // same process, another thread
	KindUnverifiable = "unverifiable"                // not provable now: nothing automatic
	KindExact        = "already_exact"
	KindStale        = "stale_process_incarnation" // the process is gone: no conflict
)

// ReconcileResult is the body of reconcile_binding (tools §8.9).
type ReconcileResult struct {
	TerminalID string `json:"terminal_id"`
	SessionID  string `json:"session_id"`
	Status     string `json:"status"` // detached
	Kind       string `json:"conflict_kind"`
}

// conflictKind says how the Session that is bound to exactly this pane and process
// stands to what the pane shows.
func conflictKind(b store.Bound, s *sighting) string {
	if b.Binding.NativeThreadID == "" {
		if b.Turn == nil {
			return KindOrphan
		}
		return KindUnverifiable
	}
	switch s.currentThread() {
	case "":
		return KindUnverifiable
	case b.Binding.NativeThreadID:
		return KindExact
	}
	return KindSwitched
}

// bindingToken stands for everything that a binding was when it was shown. It is
// derived and compared, never shown.
func bindingToken(b store.Bound) string {
	return digest(b.Session.ID, b.Session.Status, b.Binding.ID, strconv.FormatInt(b.Binding.Generation, 10), b.Binding.TerminalKey, b.Binding.IncarnationKey,
		b.Binding.ProcessUUID, b.Binding.ProcessBirth, string(b.Binding.Artifact), b.Binding.NativeThreadID, strconv.FormatInt(b.Session.Revision, 10))
}

// reconcileOffer is what list showed of one conflict.
type reconcileOffer struct {
	SessionID string `json:"session_id"`
	Revision  int64  `json:"revision"`
	BindingID string `json:"binding_id"`
	Token     string `json:"token"`
	Kind      string `json:"kind"`
	Current   string `json:"current"` // thread that the pane shows
}

func offerOf(b store.Bound, s *sighting) reconcileOffer {
	return reconcileOffer{
		SessionID: b.Session.ID, Revision: b.Session.Revision, BindingID: b.Binding.ID, Token: bindingToken(b),
		Kind: conflictKind(b, s), Current: s.currentThread(),
	}
}

// reconcilable reports whether a row may offer to detach its Session.
func reconcilable(b store.Bound, s *sighting, v *view) bool {
	if kind := conflictKind(b, s); kind != KindOrphan && kind != KindSwitched {
		return false
	}
	return b.Turn == nil && b.Session.Status == store.SessionBound && !v.blocked(s.pane.Key())
}

// mint makes one of list's offers. A Store that cannot be written has none.
func (d *Desk) mint(ctx context.Context, kind, target, id string, payload any) error {
	if d.Store.Writable() != nil {
		return nil
	}
	doc := canonical(payload)
	return d.Store.MintOffer(ctx, store.NewOffer{
		Key: store.OfferKey{OwnerSession: d.Controller, Kind: kind, TargetType: target, TargetID: id}, Payload: doc, Fingerprint: hash(doc), Life: offerLife,
	})
}

// ReconcileBinding detaches the one Session that list showed to conflict with the
// pane. It types nothing and adopts nothing: the pane stays as it is.
func (d *Desk) ReconcileBinding(ctx context.Context, _ Call, in ReconcileBindingInput) (Outcome, error) {
	var shown reconcileOffer
	key := store.OfferKey{OwnerSession: d.Controller, Kind: offerReconcile, TargetType: "terminal", TargetID: in.TerminalID}
	payload, err := d.Store.ConsumeOffer(ctx, key)
	if err != nil {
		return Outcome{}, lookAgain(err)
	}
	if err := json.Unmarshal(payload, &shown); err != nil {
		return Outcome{}, fault.New(fault.Internal, "reconcile %s: the offer is unreadable", in.TerminalID)
	}
	changed := func(why string) error {
		return fault.New(fault.OfferChanged, "reconcile %s: %s", in.TerminalID, why).WithHint("call list again").Safe()
	}
	if shown.SessionID != in.ConflictingSessionID {
		return Outcome{}, changed("list showed another Session")
	}
	s, err := d.byTerminalID(ctx, in.TerminalID)
	if err != nil {
		return Outcome{}, err
	}
	held, h, err := d.grab(ctx, s.pane.Key(), s.id(), terminalWait)
	if err != nil {
		return Outcome{}, err
	}
	defer h.release()
	if err := h.foreign(held); err != nil {
		return Outcome{}, err
	}
	for range 2 { // computed anew twice, on two settled looks
		if s, err = d.inspect(held, s); err != nil {
			return Outcome{}, err
		}
		v, err := d.snapshot(held)
		if err != nil {
			return Outcome{}, err
		}
		if err := d.conflicting(s, v, shown, changed); err != nil {
			return Outcome{}, err
		}
	}
	ses, err := d.Store.DetachSession(held, h.lease, shown.SessionID, shown.Revision, shown.BindingID)
	if err != nil {
		return Outcome{}, err
	}
	return Outcome{Body: ReconcileResult{TerminalID: s.id(), SessionID: ses.ID, Status: ses.Status, Kind: shown.Kind}}, nil
}

// conflicting checks that the conflict is still the one that was shown.
func (d *Desk) conflicting(s *sighting, v *view, shown reconcileOffer, changed func(string) error) error {
	f, fenced := v.fences[s.pane.Key()]
	b, ok := v.of(s)
	switch {
	case fenced && f.Kind == "transition":
		return fault.New(fault.LifecycleUnresolved, "reconcile %s: transition %s is not settled", s.id(), f.RefID).With("transition_id", f.RefID).
			WithHint("close with its expected_transition_id ends it as the pane shows it").Safe()
	case fenced:
		return fault.New(fault.DispatchUnresolved, "reconcile %s: message %s is not settled", s.id(), f.RefID).With("message_id", f.RefID).
			WithHint("list shows the turn that it belongs to, and the way out").Safe()
	case !ok:
		return turnless(s, shown, KindStale)
	case b.Session.ID != shown.SessionID:
		return changed("another Session is bound to the process now")
	case b.Turn != nil:
		return fault.New(fault.SessionBusy, "reconcile %s: Turn %s is %s", s.id(), b.Turn.ID, b.Turn.Status).
			With("turn_id", b.Turn.ID).With("session_id", b.Session.ID).Safe()
	}
	switch now := offerOf(b, s); {
	case now.Kind == KindUnverifiable:
		return fault.New(fault.IdentityUnverified, "reconcile %s: the thread that the pane shows is not provable now", s.id()).
			WithHint("wait until the agent is idle; where list advertises it, identify_foreground asks the agent").Safe()
	case now.Kind == KindExact:
		return turnless(s, shown, KindExact)
	case now != shown:
		return changed("the conflict is not the one that was shown")
	}
	return nil
}

// turnless says that there is nothing to reconcile.
func turnless(s *sighting, shown reconcileOffer, kind string) error {
	return fault.New(fault.TurnStatusInvalid, "reconcile %s: Session %s does not conflict with the pane", s.id(), shown.SessionID).
		With("conflict_kind", kind).Safe()
}

// lookAgain adds what to do to an offer that is missing or over.
func lookAgain(err error) error {
	if f, ok := fault.As(err); ok && (f.Code == fault.OfferMissing || f.Code == fault.OfferExpired) {
		return f.WithHint("call list, show the user what it says, and call again").Safe()
	}
	return err
}

// HandoffDecision asks the user what becomes of a Turn whose pane a person has
// switched to another context.
type HandoffDecision struct {
	Reason  string                   `json:"reason"`
	TurnID  string                   `json:"turn_id"`
	Session string                   `json:"session_id"`
	Choices map[string]HandoffChoice `json:"choices"`
}

// HandoffChoice is one of them.
type HandoffChoice struct {
	About  string  `json:"about"`
	Action *Action `json:"action,omitempty"`
}

// reasonHandoff closes a Turn because a person took its pane for something else.
const reasonHandoff = "superseded_by_human_context_switch"

// handoffState is the row's word for a pane that shows another context than the
// Turn that owns it.
const handoffState = "human_context_switch"

// handoffOffer is what list showed of one such Turn.
type handoffOffer struct {
	TurnID   string `json:"turn_id"`
	Status   string `json:"status"`
	Message  string `json:"message_id"`
	Terminal string `json:"terminal_id"`
	Token    string `json:"token"`
	Current  string `json:"current"`
}

// handoffOf gives the offer for a Turn whose pane shows another thread.
func handoffOf(b store.Bound, s *sighting) (handoffOffer, bool) {
	if b.Turn == nil || b.Session.Status != store.SessionBound || conflictKind(b, s) != KindSwitched {
		return handoffOffer{}, false
	}
	return handoffOffer{
		TurnID: b.Turn.ID, Status: b.Turn.Status, Message: b.Turn.CurrentMessageID, Terminal: s.id(),
		Token: bindingToken(b), Current: s.currentThread(),
	}, true
}

func decisionOf(o handoffOffer, b store.Bound) *HandoffDecision {
	a := turnAction("close", *b.Turn)
	a.Arguments["reason"] = reasonHandoff
	a.RequiresUserIntent, a.RequiresConfirmation = true, true
	return &HandoffDecision{
		Reason: "a person switched the pane to another thread while the turn was open",
		TurnID: o.TurnID, Session: b.Session.ID,
		Choices: map[string]HandoffChoice{
			"take_over_current": {About: "give the turn up and work in what the pane shows now; call list afterwards", Action: &a},
			"keep_waiting":      {About: "leave everything as it is; the turn goes on if its thread does"},
		},
	}
}

// closeHandoff closes a Turn that a person's switch has superseded, as list
// offered it.
func (d *Desk) closeHandoff(ctx context.Context, in CloseInput) error {
	var shown handoffOffer
	key := store.OfferKey{OwnerSession: d.Controller, Kind: offerHandoff, TargetType: "turn", TargetID: in.TurnID}
	payload, err := d.Store.ConsumeOffer(ctx, key)
	if err != nil {
		return lookAgain(err)
	}
	if err := json.Unmarshal(payload, &shown); err != nil {
		return fault.New(fault.Internal, "close %s: the offer is unreadable", in.TurnID)
	}
	s, err := d.byTerminalID(ctx, shown.Terminal)
	if err != nil {
		return err
	}
	d.glance(ctx, s)
	v, err := d.snapshot(ctx)
	if err != nil {
		return err
	}
	b, ok := v.of(s)
	if ok {
		if now, same := handoffOf(b, s); same && now == shown {
			return nil
		}
	}
	return fault.New(fault.OfferChanged, "close %s: the pane or the turn is not as list showed it", in.TurnID).WithHint("call list again").Safe()
}

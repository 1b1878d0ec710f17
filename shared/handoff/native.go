package handoff

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/terminal"
)

// Bounds of native commands.
const (
	cardWait    = 5 * time.Second        // for a new status card after Enter
	dismissWait = 10 * time.Second       // for the composer behind a panel: a busy machine paints late
	cardPoll    = 40 * time.Millisecond  // between looks
	quietGap    = 250 * time.Millisecond // two equal looks behind a thread switch
)

// NativeInspect runs the agent's own status screen once in an idle pane whose
// thread is known, and reads it. It writes nothing to the Store, the lease
// included: the kernel's lock keeps every other program out of the pane.
func (d *Desk) NativeInspect(ctx context.Context, _ Call, in NativeInspectInput) (Outcome, error) {
	if in.Inspection != string(agent.OpStatus) {
		return Outcome{}, fault.New(fault.InvalidArguments, "inspect %s: there is no inspection %.40q", in.TerminalID, in.Inspection).Safe()
	}
	e, card, err := d.ask(ctx, in.TerminalID, func(s *sighting) error {
		if s.identity.State != agent.Resolved {
			return notAdvertised("native_inspect", s.id(), "the thread of the pane is not known without asking").
				WithHint("identify_foreground asks the agent for it")
		}
		return nil
	})
	if err != nil {
		return Outcome{}, err
	}
	if card.ThreadID != e.s.identity.ThreadID {
		return Outcome{}, fault.New(fault.TerminalChanged, "inspect %s: the status screen names another thread than the agent's own files", e.s.id()).
			WithInput(fault.InputSent).WithHint("call list again")
	}
	return Outcome{Body: e.result(card)}, nil
}

// ask types the status command into an idle pane under a quiet hold and gives the
// card. may is asked after the last look before typing.
func (d *Desk) ask(ctx context.Context, id string, may func(*sighting) error) (*errand, agent.Card, error) {
	s, err := d.byTerminalID(ctx, id)
	if err != nil {
		return nil, agent.Card{}, err
	}
	if _, err := native(s); err != nil {
		return nil, agent.Card{}, err
	}
	h, err := d.grabQuietly(ctx, s.pane.Key(), s.id(), terminalWait)
	if err != nil {
		return nil, agent.Card{}, err
	}
	defer h.release()
	if err := h.foreign(ctx); err != nil {
		return nil, agent.Card{}, err
	}
	if s, err = d.inspect(ctx, s); err != nil {
		return nil, agent.Card{}, err
	}
	v, err := d.snapshot(ctx)
	if err != nil {
		return nil, agent.Card{}, err
	}
	if err := d.nativeReady(s, v); err != nil {
		return nil, agent.Card{}, err
	}
	if err := may(s); err != nil {
		return nil, agent.Card{}, err
	}
	e, err := d.errand(h, s)
	if err != nil {
		return nil, agent.Card{}, err
	}
	card, err := e.status(ctx)
	return e, card, err
}

// native gives the closed commands of a sighting's agent.
func native(s *sighting) (agent.Native, error) {
	n, ok := s.adapter.(agent.Native)
	if !ok {
		return nil, fault.New(fault.CapabilityMissing, "act on %s: drawbridge has no native commands for %s", s.id(), title(s.proc.Agent)).Safe()
	}
	return n, nil
}

// nativeAllowed applies the version policy: native commands need a version whose
// screens were recorded, or the operator's word.
func (d *Desk) nativeAllowed(s *sighting) error {
	if _, err := native(s); err != nil {
		return err
	}
	if s.proc.Class == agent.Tested || s.proc.Class == agent.Untested && d.Untested == UntestedAll {
		return nil
	}
	return fault.New(fault.VersionUnsupported, "act on %s: the native commands of %s %q are not proven", s.id(), s.proc.Agent, s.proc.Version).
		WithHint("bridge --untested-agents all allows them without recorded fixtures").Safe()
}

// nativeReady says why no native command may be typed into the pane now.
func (d *Desk) nativeReady(s *sighting, v *view) error {
	if err := d.nativeAllowed(s); err != nil {
		return err
	}
	if err := v.unresolved(s); err != nil {
		return err
	}
	if err := s.promptable(); err != nil {
		return err
	}
	b, ok := v.of(s)
	if !ok {
		return nil
	}
	switch kind := conflictKind(b, s); {
	case kind == KindOrphan || kind == KindSwitched:
		return notAdvertised("native commands", s.id(), "its Session conflicts with the pane").
			WithHint("list shows how to reconcile it").With("session_id", b.Session.ID)
	case b.Binding.NativeThreadID == "":
		return fault.New(fault.DeferredTransfer, "act on %s: the first binding of its Session is still open", s.id()).
			With("session_id", b.Session.ID).Safe()
	}
	return nil
}

// unresolved refuses a pane with an unsettled operation or an unfinished Turn.
func (v *view) unresolved(s *sighting) error {
	key := s.pane.Key()
	f, fenced := v.fences[key]
	if fenced && f.Kind == "transition" {
		return fault.New(fault.LifecycleUnresolved, "act on %s: transition %s is not settled", s.id(), f.RefID).
			With("transition_id", f.RefID).WithHint("close with its expected_transition_id recovers it").Safe()
	}
	if turns := v.on(key); len(turns) > 0 {
		return fault.New(fault.ActiveOwner, "act on %s: Turn %s is %s", s.id(), turns[0].ID, turns[0].Status).
			With("turn_id", turns[0].ID).With("status", turns[0].Status).Safe()
	}
	if fenced {
		return fault.New(fault.DispatchUnresolved, "act on %s: message %s is not settled", s.id(), f.RefID).
			With("message_id", f.RefID).WithHint("list shows the turn that it belongs to, and the way out").Safe()
	}
	return nil
}

func notAdvertised(what, id, why string) *fault.Error {
	return fault.New(fault.ActionNotAdvertised, "%s on %s: %s", what, id, why).Safe()
}

// An errand is a closed command of the agent's own, typed once into a pane that
// is held. It has no receipt: what a dead program leaves of it is a draft that
// begins with a slash, which is not ours to clear.
type errand struct {
	desk   *Desk
	hold   *hold
	s      *sighting
	native agent.Native
	begun  bool // a byte may have been typed
	typed  NativeSubmission
	closed *NativeDismissal
	asked  agent.Command // the status command
}

func (d *Desk) errand(h *hold, s *sighting) (*errand, error) {
	n, err := native(s)
	if err != nil {
		return nil, err
	}
	return &errand{desk: d, hold: h, s: s, native: n}, nil
}

// command gives a closed command of the agent, if the pane has room for its outcome.
func (s *sighting) command(op agent.Op, thread string) (agent.Command, error) {
	n, err := native(s)
	if err != nil {
		return agent.Command{}, err
	}
	c, err := n.Command(s.proc.Version, op, thread)
	if err != nil {
		return c, err
	}
	if p := s.pane; p.Width < c.Columns || p.Height < c.Rows {
		return c, fault.New(fault.ObservationUnavail, "act on %s: the pane has %d by %d characters, %s needs %d by %d to be read",
			s.id(), p.Width, p.Height, c.Text, c.Columns, c.Rows).WithHint("the user may enlarge the pane").Safe()
	}
	return c, nil
}

// readable reports whether the pane has room for the status screen, by which a
// native command is proven.
func (s *sighting) readable() bool {
	_, err := s.command(agent.OpStatus, "")
	return err == nil
}

// look captures the screen once.
func (e *errand) look(ctx context.Context) (terminal.Screen, agent.Reading, error) {
	return e.desk.glimpse(ctx, e.s)
}

// ready is the last look before the first byte: same process, idle, composer
// empty. It gives the screen as it was then.
func (e *errand) ready(ctx context.Context) (terminal.Screen, error) {
	if err := e.hold.prove(ctx, e.s); err != nil {
		return terminal.Screen{}, err
	}
	screen, reading, err := e.look(ctx)
	if err != nil {
		return screen, err
	}
	e.s.reading = reading
	return screen, e.s.promptable()
}

// enter types one command and presses Enter once, when the composer has shown
// exactly it twice, settleGap apart.
func (e *errand) enter(ctx context.Context, c agent.Command) error {
	d := e.desk
	if err := e.hold.still(ctx, e.s); err != nil {
		return err
	}
	if err := d.Tmux.Paste(ctx, e.s.pane, c.Text); err != nil {
		e.begun = terminal.Typed(err) != fault.InputNone
		return err
	}
	e.begun = true
	crashpoint.At("command_pasted")
	deadline := time.Now().Add(landWait)
	var since time.Time
	for {
		screen, reading, err := e.look(ctx)
		if err != nil {
			return err
		}
		now := time.Now()
		switch {
		case !c.Standing(screen):
			since = time.Time{}
		case since.IsZero():
			since = now
		case now.Sub(since) >= settleGap:
			return e.press(ctx, c)
		}
		if now.After(deadline) {
			return fmt.Errorf("the composer did not show exactly %s within %v (screen: %s)", c.Text, landWait, reading.Name)
		}
		if err := sleep(ctx, draftPoll); err != nil {
			return err
		}
	}
}

func (e *errand) press(ctx context.Context, c agent.Command) error {
	if err := e.hold.prove(ctx, e.s); err != nil {
		return err
	}
	screen, reading, err := e.look(ctx)
	if err != nil {
		return err
	}
	if !c.Standing(screen) {
		return fmt.Errorf("the composer changed before Enter (screen: %s)", reading.Name)
	}
	if err := e.desk.Tmux.Press(ctx, e.s.pane, terminal.Enter); err != nil {
		return err
	}
	e.typed = NativeSubmission{Command: c.Text, Enters: 1}
	crashpoint.At("command_entered")
	return nil
}

// status runs the agent's status screen and reads it: a card that is new since
// Enter, of this version, the last thing on the screen. A panel is closed again.
func (e *errand) status(ctx context.Context) (agent.Card, error) {
	c, err := e.s.command(agent.OpStatus, "")
	if err != nil {
		return agent.Card{}, err
	}
	e.asked = c
	before, err := e.ready(ctx)
	if err != nil {
		return agent.Card{}, e.fail(err)
	}
	ctx = context.WithoutCancel(ctx) // a caller that gives up must not leave a draft or a panel
	if err := e.enter(ctx, c); err != nil {
		return agent.Card{}, e.fail(err)
	}
	card, err := e.card(ctx, c, before)
	if err != nil {
		return agent.Card{}, e.fail(err)
	}
	if c.Dismiss != "" {
		if err := e.dismiss(ctx, c); err != nil {
			return agent.Card{}, e.fail(err)
		}
	}
	return card, nil
}

// card waits for the new card, on two equal screens settleGap apart.
func (e *errand) card(ctx context.Context, c agent.Command, before terminal.Screen) (agent.Card, error) {
	old := e.native.Cards(e.s.proc.Version, before)
	deadline := time.Now().Add(cardWait)
	var last []byte
	var since time.Time
	for {
		screen, reading, err := e.look(ctx)
		if err != nil {
			return agent.Card{}, err
		}
		now := time.Now()
		if !bytes.Equal(last, screen.Text) {
			last, since = bytes.Clone(screen.Text), now
		} else if now.Sub(since) >= settleGap {
			card, ok := freshCard(old, e.native.Cards(e.s.proc.Version, screen))
			idle := reading.State == agent.Idle && reading.Composer.Empty && card.Last
			if ok && (c.Dismiss != "" || idle) {
				return card, nil
			}
		}
		if now.After(deadline) {
			return agent.Card{}, fmt.Errorf("no complete new status screen within %v (screen: %s)", cardWait, reading.Name)
		}
		if err := sleep(ctx, cardPoll); err != nil {
			return agent.Card{}, err
		}
	}
}

// freshCard gives the bottom-most card if it was not on the screen before: there
// are more of them now, or what stands above it is not what stood above the
// bottom-most one before (the older one may have been pushed out).
func freshCard(before, now []agent.Card) (agent.Card, bool) {
	if len(now) == 0 {
		return agent.Card{}, false
	}
	last := now[len(now)-1]
	if len(now) > len(before) {
		return last, true
	}
	old := before[len(before)-1]
	n := min(len(last.Above), len(old.Above))
	return last, n > 0 && !slices.Equal(last.Above[len(last.Above)-n:], old.Above[len(old.Above)-n:])
}

// dismiss closes the panel that was read, with one key.
func (e *errand) dismiss(ctx context.Context, c agent.Command) error {
	if err := e.hold.prove(ctx, e.s); err != nil {
		return err
	}
	screen, reading, err := e.look(ctx)
	if err != nil {
		return err
	}
	if len(e.native.Cards(e.s.proc.Version, screen)) == 0 {
		return fmt.Errorf("the status panel was closed by somebody else (screen: %s)", reading.Name)
	}
	if err := e.desk.Tmux.Press(ctx, e.s.pane, c.Dismiss); err != nil {
		return err
	}
	e.closed = &NativeDismissal{Key: string(c.Dismiss)}
	_, err = e.quiet(ctx, nil, settleGap, dismissWait)
	return err
}

// quiet waits until the pane is idle before an empty composer on two equal
// screens, gap apart; other than the given one, unless that stays for long.
func (e *errand) quiet(ctx context.Context, other []byte, gap, wait time.Duration) (terminal.Screen, error) {
	const patience = 3 * time.Second
	start := time.Now()
	var last []byte
	var since time.Time
	for {
		screen, reading, err := e.look(ctx)
		if err != nil {
			return screen, err
		}
		now := time.Now()
		if !bytes.Equal(last, screen.Text) {
			last, since = bytes.Clone(screen.Text), now
		} else if now.Sub(since) >= gap && reading.State == agent.Idle && reading.Composer.Empty &&
			(!bytes.Equal(last, other) || now.Sub(start) >= patience) {
			e.s.reading = reading
			return screen, nil
		}
		if now.Sub(start) > wait {
			return screen, fmt.Errorf("the pane was not idle within %v (screen: %s)", wait, reading.Name)
		}
		if err := sleep(ctx, cardPoll); err != nil {
			return screen, err
		}
	}
}

// fail gives an error of an errand its code: before the first byte nothing was
// done, after it nobody types again.
func (e *errand) fail(err error) error {
	if !e.begun {
		if f, ok := fault.As(err); ok {
			return f
		}
		return fault.New(fault.InputNotStarted, "act on %s: %w", e.s.id(), err).Safe()
	}
	input := fault.InputPossible
	if e.typed.Enters > 0 {
		input = fault.InputSent
	}
	f := fault.New(fault.SubmissionUncertain, "act on %s: %s", e.s.id(), fault.CleanLine(err.Error())).
		WithHint("look at the pane with status; do not repeat the call before that")
	if input == fault.InputSent {
		return f.WithInput(fault.InputPossible).With("enter_sent", true)
	}
	return f.WithInput(input)
}

// currentThread is the thread that the pane shows, as far as it is proven without
// typing: by the agent's own files, or by a status card on its idle screen below
// which nothing was printed. "" where it is not.
func (s *sighting) currentThread() string {
	if s.identity.State == agent.Resolved {
		return s.identity.ThreadID
	}
	n, ok := s.adapter.(agent.Native)
	if !ok || s.screen == nil || s.pane.InMode || s.reading.State != agent.Idle || !s.reading.Composer.Empty {
		return ""
	}
	cards := n.Cards(s.proc.Version, *s.screen)
	if len(cards) == 0 || !cards[len(cards)-1].Last {
		return ""
	}
	return cards[len(cards)-1].ThreadID
}

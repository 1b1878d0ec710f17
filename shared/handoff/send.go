package handoff

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Send starts a new Turn, or with a turn_id tries a submission again that was
// proven not to have been taken.
func (d *Desk) Send(ctx context.Context, call Call, in SendInput) (Outcome, error) {
	if err := d.sibling(ctx, "watchd", store.WatchdLease()); err != nil {
		return Outcome{}, err
	}
	if in.TurnID != "" {
		return d.resend(ctx, call, in.TurnID)
	}
	if err := CheckRequest(in.Request); err != nil {
		return Outcome{}, err
	}
	again := repeat{id: messageID(d.Controller, call), kind: store.KindTask, session: in.SessionID, terminal: in.TerminalID, text: in.Request}
	if out, done, err := d.repeated(ctx, again, false); done || err != nil {
		return out, err
	}
	s, want, err := d.target(ctx, in)
	if err != nil {
		// The pane may be missing because an equal call types into it by now.
		if out, done, _ := d.repeated(ctx, again, false); done {
			return out, nil
		}
		return Outcome{}, err
	}
	prep, err := s.adapter.Prepare(in.Request)
	if err != nil {
		return Outcome{}, err
	}
	held, h, out, done, err := d.occupy(ctx, s, again)
	if done || err != nil {
		return out, err
	}
	defer h.release()
	if s, err = d.ready(held, s); err != nil {
		return Outcome{}, err
	}
	if err := s.promptable(); err != nil {
		return Outcome{}, err
	}
	if err := s.holds(in.Thread); err != nil {
		return Outcome{}, err
	}
	if want == "" {
		if err := d.adopt(held, h, s); err != nil {
			return Outcome{}, err
		}
	}
	return d.task(h, s, prep, again.id, call, in, want).run(held)
}

// task makes the submission of a new Turn into a held pane. want is the Session of
// the strict form.
func (d *Desk) task(h *hold, s *sighting, prep agent.Prepared, id string, call Call, in SendInput, want string) *submission {
	sub := &submission{desk: d, hold: h, s: s, prep: prep, id: id}
	sub.row = store.NewDispatch{
		MessageID:           id,
		ToolCallID:          call.ToolCallID,
		Kind:                store.KindTask,
		NewTurnID:           d.newID(turnPrefix),
		ControllerSessionID: d.Controller,
		Route:               d.routeJSON(),
		RequestText:         in.Request,
		BodyHash:            hash([]byte(in.Request)),
		RequestHash:         prep.RequestHash,
		InactivityMinutes:   orDefault(minutes(in.AgentTimeoutMinutes), d.Inactivity),
		HardMinutes:         orDefault(minutes(in.AgentHardTimeoutMinutes), d.Hard),
		RetentionMinutes:    orDefault(minutes(in.IdleTimeoutMinutes), d.Retention),
		Attach: store.Attach{
			SessionID: want,
			Agent:     string(s.proc.Agent),
			Workspace: s.proc.Cwd,
			Replace:   want == "",
			Binding:   bindingOf(s),
		},
	}
	if want == "" {
		sub.row.Attach.NewSessionID = d.newID(sessionPrefix)
	}
	return sub
}

// CheckRequest refuses a text that no agent may get (tools §4, §8.12), with
// invalid_arguments or native_slash_command.
func CheckRequest(text string) error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.InvalidArguments, format, args...).Safe()
	}
	first := strings.TrimSpace(text)
	switch {
	case first == "":
		return bad("request is blank")
	case len(text) > MaxRequest:
		return bad("request has %d bytes, the most is %d", len(text), MaxRequest)
	case !utf8.ValidString(text):
		return bad("request is not valid UTF-8")
	case strings.ContainsFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }):
		return bad("request holds a control character other than line feed and tab")
	case first[0] == '/' || first[0] == '!':
		return fault.New(fault.NativeSlashCommand, "the request begins with %q, which the agent takes as a command of its own", first[:1]).
			WithHint("native commands and shell escapes are typed by the user in the pane").Safe()
	}
	return nil
}

// target finds the pane of a send. want is the Session for the strict form.
func (d *Desk) target(ctx context.Context, in SendInput) (s *sighting, want string, err error) {
	switch {
	case in.TerminalID != "":
		s, err = d.byTerminalID(ctx, in.TerminalID)
		return s, "", err
	case in.SessionID != "":
		s, err = d.bySession(ctx, in.SessionID)
		return s, in.SessionID, err
	}
	s, err = d.onlyReady(ctx)
	return s, "", err
}

// bySession finds the pane that a Session is bound to.
func (d *Desk) bySession(ctx context.Context, id string) (*sighting, error) {
	ses, err := d.Store.Session(ctx, id)
	if err != nil {
		return nil, err
	}
	all, err := d.Store.Bindings(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, b := range all {
		if b.ReleasedAt != 0 {
			continue
		}
		if b.NativeThreadID == "" {
			return nil, fault.New(fault.DeferredTransfer, "send to %s: its first binding is not proven yet", id).
				WithHint("wait for its turn to be accepted, or close that turn").Safe()
		}
		at, err := parsePlace(b.Endpoint)
		if err != nil {
			return nil, err
		}
		return d.byPlace(ctx, at)
	}
	return nil, fault.New(fault.IdentityUnverified, "send to %s: the Session is %s and in no pane", id, ses.Status).
		WithHint("send to a terminal_id of list instead").Safe()
}

// onlyReady gives the one pane that can take a send.
func (d *Desk) onlyReady(ctx context.Context) (*sighting, error) {
	all, problems, err := d.survey(ctx, true)
	if err != nil {
		return nil, err
	}
	view, err := d.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var ready []*sighting
	for _, s := range all {
		if s.promptable() == nil && d.allowed(s) == nil && !view.blocked(s.pane.Key()) {
			ready = append(ready, s)
		}
	}
	if len(ready) == 1 {
		return ready[0], nil
	}
	f := fault.New(fault.TerminalAmbiguous, "send without a target: %d panes can take it, exactly one must", len(ready)).
		WithHint("call list and name a terminal_id").Safe()
	if len(problems) > 0 {
		f = f.With("terminal_scan_error", problems[0])
	}
	return nil, f
}

// sibling refuses a call whose Turn nobody would follow or deliver.
func (d *Desk) sibling(ctx context.Context, name, lease string) error {
	if d.Siblings == nil || d.Siblings()[name] != "failed" {
		return nil
	}
	if live, err := d.leaseLives(ctx, lease); err != nil || live {
		return err
	}
	return fault.New(fault.SiblingUnavailable, "%s does not run and no other one serves this Store", name).
		WithHint("look at the bridge's log for why it ends; it is tried again every 30 s").Safe()
}

// dead lists live bindings that stand in the way of an attach although their
// process is proven gone.
func (d *Desk) dead(ctx context.Context, s *sighting, thread string) ([]string, error) {
	all, err := d.Store.Bound(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, b := range all {
		mine := b.Binding.TerminalKey == s.pane.Key() ||
			(thread != "" && b.Binding.NativeThreadID == thread && b.Binding.Agent == string(s.proc.Agent))
		if !mine {
			continue
		}
		if gone, known := processGone(b.Binding); gone && known {
			out = append(out, b.Binding.ID)
		}
	}
	return out, nil
}

// strict checks that the pane's own process proves the Session's thread.
func (d *Desk) strict(ctx context.Context, session string, s *sighting, thread string) error {
	all, err := d.Store.Bindings(ctx, session)
	if err != nil {
		return err
	}
	for _, b := range all {
		if b.ReleasedAt == 0 && thread != "" && b.NativeThreadID == thread && s.identity.State == agent.Resolved {
			return nil
		}
	}
	return fault.New(fault.IdentityUnverified, "send to %s: the pane's current thread cannot be proven to be the Session's", session).
		WithHint("send to the terminal_id of the row to use whatever context the pane shows").Safe()
}

func minutes(p *float64) float64 {
	if p == nil {
		return 0
	}
	return *p
}

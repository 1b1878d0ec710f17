package handoff

import (
	"context"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// proofLife is how long a foreground proof is worth showing. It authorises
// nothing at any time: no tool takes it, and nothing keeps it.
const proofLife = 30 * time.Second

// ForegroundProof says which thread a pane showed when it was asked.
type ForegroundProof struct {
	Scope        string `json:"scope"` // ephemeral_diagnostic_only
	Grants       bool   `json:"grants_authority"`
	NativeThread string `json:"native_thread_id"`
	ObservedAt   string `json:"observed_at"`
	ExpiresAt    string `json:"expires_at"`
	TTL          int64  `json:"ttl_ms"`
}

func (d *Desk) proof(card agent.Card) *ForegroundProof {
	at := d.now()
	return &ForegroundProof{
		Scope: "ephemeral_diagnostic_only", NativeThread: card.ThreadID,
		ObservedAt: stamp(at.UnixMilli()), ExpiresAt: stamp(at.Add(proofLife).UnixMilli()), TTL: proofLife.Milliseconds(),
	}
}

// IdentifyForeground asks Codex which thread the pane shows, where its files do
// not tell. Nothing is stored.
func (d *Desk) IdentifyForeground(ctx context.Context, _ Call, in IdentifyForegroundInput) (Outcome, error) {
	e, card, err := d.ask(ctx, in.TerminalID, identifiable)
	if err != nil {
		return Outcome{}, err
	}
	res := e.result(card)
	res.Proof = d.proof(card)
	return Outcome{Body: res}, nil
}

// identifiable says why a pane is not one to be asked for its thread: only Codex
// holds several threads in one process.
func identifiable(s *sighting) error {
	switch {
	case s.proc.Agent != agent.Codex:
		return fault.New(fault.CapabilityMissing, "identify %s: the files of %s name its thread at any time", s.id(), title(s.proc.Agent)).
			WithHint("list shows it; native_inspect shows the status screen").Safe()
	case s.identity.State == agent.Resolved:
		return notAdvertised("identify_foreground", s.id(), "the pane's thread is known without asking").
			WithHint("list shows it; native_inspect shows the status screen")
	case s.identity.State == agent.Unavailable && s.proc.Mode != agent.Daemon:
		return fault.New(fault.ObservationUnavail, "identify %s: %s", s.id(), oneLine(s.identity.Reason, "the agent's files cannot be read")).Safe()
	}
	return nil
}

// IdentifyAndSendResult is the body of identify_and_send.
type IdentifyAndSendResult struct {
	SendResult
	Proof *ForegroundProof `json:"foreground_proof,omitempty"` // absent in a replay, which asks nothing
}

// IdentifyAndSend asks Codex for the pane's thread and sends one task, without
// letting the pane go in between. The Session is provisional all the same: its
// durable identity is the thread that accepts this very request.
func (d *Desk) IdentifyAndSend(ctx context.Context, call Call, in IdentifyAndSendInput) (Outcome, error) {
	if err := d.sibling(ctx, "watchd", store.WatchdLease()); err != nil {
		return Outcome{}, err
	}
	if err := CheckRequest(in.Request); err != nil {
		return Outcome{}, err
	}
	send := SendInput{
		TerminalID: in.TerminalID, Request: in.Request, IdleTimeoutMinutes: in.IdleTimeoutMinutes,
		AgentTimeoutMinutes: in.AgentTimeoutMinutes, AgentHardTimeoutMinutes: in.AgentHardTimeoutMinutes,
	}
	again := repeat{id: messageID(d.Controller, call), kind: store.KindTask, terminal: in.TerminalID, text: in.Request}
	if out, done, err := d.repeated(ctx, again, false); done || err != nil {
		return withProof(out, nil), err
	}
	s, err := d.byTerminalID(ctx, in.TerminalID)
	if err != nil {
		if out, done, _ := d.repeated(ctx, again, false); done {
			return withProof(out, nil), nil
		}
		return Outcome{}, err
	}
	if _, err := native(s); err != nil {
		return Outcome{}, err
	}
	prep, err := s.adapter.Prepare(in.Request)
	if err != nil {
		return Outcome{}, err
	}
	held, h, out, done, err := d.occupy(ctx, s, again)
	if done || err != nil {
		return withProof(out, nil), err
	}
	defer h.release()
	if s, err = d.ready(held, s); err != nil {
		return Outcome{}, err
	}
	v, err := d.snapshot(held)
	if err != nil {
		return Outcome{}, err
	}
	if err := d.nativeReady(s, v); err != nil {
		return Outcome{}, err
	}
	if err := identifiable(s); err != nil {
		return Outcome{}, err
	}
	// What the Store would refuse behind the probe is refused before it.
	sub := d.task(h, s, prep, again.id, call, send, "")
	sub.row.Anchor = []byte("{}")
	if sub.row.Attach.DeadBindings, err = d.dead(held, s, ""); err != nil {
		return Outcome{}, err
	}
	if err := d.Store.Preflight(held, sub.row); err != nil {
		return Outcome{}, err
	}
	e, err := d.errand(h, s)
	if err != nil {
		return Outcome{}, err
	}
	card, err := e.status(held)
	if err != nil {
		return Outcome{}, err
	}
	proof := d.proof(card)
	if s, err = d.boundary(held, h, s, card); err != nil {
		return Outcome{}, between(err, in.TerminalID, proof)
	}
	sub = d.task(h, s, prep, again.id, call, send, "")
	sub.shown = &card
	out, err = sub.run(held)
	if err != nil {
		if f, ok := fault.As(err); ok && (f.Input == fault.InputNone || f.Input == "") {
			return Outcome{}, between(err, in.TerminalID, proof)
		}
		return Outcome{}, err
	}
	return withProof(out, proof), nil
}

// boundary looks at the pane again behind the probe and before the request: the
// same process under the same lease, idle, and its last word the card.
func (d *Desk) boundary(ctx context.Context, h *hold, s *sighting, card agent.Card) (*sighting, error) {
	if !h.live() {
		return nil, fault.New(fault.TerminalBusy, "send to %s: the terminal lease ran out", h.name)
	}
	fresh, err := d.inspect(ctx, s)
	if err != nil {
		return nil, err
	}
	if err := fresh.promptable(); err != nil {
		return nil, err
	}
	if got := fresh.currentThread(); got != card.ThreadID {
		return nil, fault.New(fault.TerminalChanged, "send to %s: the pane does not show the thread any more that it named", s.id())
	}
	return fresh, nil
}

// between is the refusal behind the probe and before the request.
func between(cause error, id string, proof *ForegroundProof) error {
	return fault.New(fault.TerminalChanged, "send to %s: stopped between the status command and the request: %s", id, fault.CleanLine(cause.Error())).
		WithInput(fault.InputSent).With("request_sent", false).With("foreground_proof", proof).
		WithHint("the request was not typed; call list again")
}

func withProof(out Outcome, proof *ForegroundProof) Outcome {
	if r, ok := out.Body.(SendResult); ok {
		out.Body = IdentifyAndSendResult{SendResult: r, Proof: proof}
	}
	return out
}

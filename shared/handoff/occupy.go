package handoff

import (
	"context"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// A repeat is what makes two calls with one message id the same call (tools §5).
// Empty members are not compared.
type repeat struct {
	id       string // message id
	kind     string
	turn     string // answer, and the retry form of send
	session  string
	terminal string
	text     string // "" with the retry form: as it was
}

// repeated answers a call whose message id already has a receipt. held says that
// the caller holds the receipt's pane.
func (d *Desk) repeated(ctx context.Context, c repeat, held bool) (Outcome, bool, error) {
	old, err := d.Store.Submission(ctx, c.id)
	if fault.Is(err, fault.NotFound) {
		return Outcome{}, false, nil
	}
	if err != nil {
		return Outcome{}, false, err
	}
	a := d.adapter(old.Dispatch.Agent)
	if a == nil {
		return Outcome{}, false, fault.New(fault.CapabilityMissing, "replay %s: no adapter for agent %q", c.id, old.Dispatch.Agent)
	}
	r := store.Receipt{
		MessageID:           c.id,
		Kind:                c.kind,
		TurnID:              c.turn,
		SessionID:           c.session,
		Agent:               old.Dispatch.Agent,
		ControllerSessionID: d.Controller,
		BodyHash:            old.Dispatch.BodyHash,
		RequestHash:         old.Dispatch.RequestHash,
	}
	if c.text != "" {
		prep, err := a.Prepare(c.text)
		if err != nil {
			return Outcome{}, false, err
		}
		r.BodyHash, r.RequestHash = hash([]byte(c.text)), prep.RequestHash
	}
	if c.terminal != "" && c.terminal != old.Binding.TerminalID {
		return Outcome{}, false, fault.New(fault.IdempotencyConflict, "send: this call was made before for another terminal").
			With("turn_id", old.Turn.ID)
	}
	sub, found, err := d.Store.Replay(ctx, r)
	if err != nil || !found {
		return Outcome{}, false, err
	}
	if x := sub.Dispatch; !held && x.ResolvedAt == 0 && (x.Status == store.DispatchPrepared || x.Status == store.DispatchTextInjected) {
		// The other call may still type: it has ended when the pane is free.
		_, h, err := d.grab(ctx, sub.Dispatch.TerminalKey, sub.Binding.TerminalID, terminalWait)
		if err != nil {
			return Outcome{}, false, err
		}
		defer h.release()
		return d.repeated(ctx, c, true)
	}
	return d.sendResult(sub, true, ""), true, nil
}

// occupy takes the pane for a submission. done says that an equal call has ended
// while this one waited: out is its answer, and nothing is held. The caller must
// release h else.
func (d *Desk) occupy(ctx context.Context, s *sighting, c repeat) (held context.Context, h *hold, out Outcome, done bool, err error) {
	held, h, err = d.grab(ctx, s.pane.Key(), s.id(), terminalWait)
	if err != nil {
		return nil, nil, Outcome{}, false, err
	}
	if out, done, err = d.repeated(held, c, true); !done && err == nil {
		err = h.foreign(held)
	}
	if done || err != nil {
		h.release()
		return nil, nil, out, done, err
	}
	return held, h, Outcome{}, false, nil
}

// ready looks at a pane that is held and applies the version policy.
func (d *Desk) ready(ctx context.Context, s *sighting) (*sighting, error) {
	fresh, err := d.inspect(ctx, s)
	if err != nil {
		return nil, err
	}
	return fresh, d.allowed(fresh)
}

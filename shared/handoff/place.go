package handoff

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
	"drawbridge/shared/terminal"
)

// A place is where a Session or a Watch lives: one pane of one tmux server and
// one agent process in it. It is stored with the binding and proven again
// whenever it is used.
type place struct {
	Version    int           `json:"version"`
	TerminalID string        `json:"terminal_id"`
	Pane       terminal.Pane `json:"pane"`
	Process    agent.Process `json:"process"`
}

func placeOf(s *sighting) place {
	return place{Version: 1, TerminalID: s.id(), Pane: s.pane, Process: s.proc}
}

func parsePlace(b []byte) (place, error) {
	var p place
	if err := json.Unmarshal(b, &p); err != nil || p.Version != 1 {
		return place{}, fault.New(fault.IdentityUnverified, "stored terminal identity is unreadable")
	}
	return p, nil
}

// canonical renders a value of ours as canonical JSON.
func canonical(v any) []byte {
	b, err := json.Marshal(v)
	if err == nil {
		var tree any
		if tree, err = strictjson.Parse(b, strictjson.Limits{MaxBytes: 64 << 20}); err == nil {
			if b, err = strictjson.Canonical(tree); err == nil {
				return b
			}
		}
	}
	panic("handoff: value of our own cannot be rendered: " + err.Error())
}

// bindingOf gives what the Store keeps of a sighting.
func bindingOf(s *sighting) store.NewBinding {
	return store.NewBinding{
		TerminalID:     s.id(),
		TerminalKey:    s.pane.Key(),
		IncarnationKey: terminal.IncarnationKey(s.pane, s.proc.Inc),
		Endpoint:       canonical(placeOf(s)),
		PID:            int64(s.proc.Inc.PID),
		ProcessBirth:   s.proc.Inc.BootID + "/" + strconv.FormatUint(s.proc.Inc.Start, 10),
		Evidence:       "foreground_process",
	}
}

// byTerminalID finds the one pane and agent that a terminal_id names.
func (d *Desk) byTerminalID(ctx context.Context, id string) (*sighting, error) {
	want, err := terminal.ParseID(id)
	if err != nil {
		return nil, err
	}
	listing, err := d.Tmux.Panes(ctx)
	if err != nil {
		return nil, err
	}
	var hit *sighting
	var changed error
	for _, p := range listing.Panes {
		if p.Session != want.Session || p.Window != want.Window || p.Index != want.Pane {
			continue
		}
		s, err := d.findIn(ctx, p)
		switch {
		case err != nil:
			changed = fault.New(fault.TerminalChanged, "find %s: the agent is no longer the process in the pane", id).
				WithHint("call list again").Safe()
		case s.proc.Inc.PID != want.PID || string(s.proc.Agent) != want.Agent:
			changed = fault.New(fault.TerminalChanged, "find %s: another agent process runs in the pane", id).
				WithHint("call list again").Safe()
		case hit != nil:
			return nil, fault.New(fault.TerminalAmbiguous, "find %s: two tmux servers have a pane of that name and process", id).Safe()
		default:
			hit = s
		}
	}
	switch {
	case hit != nil:
		return hit, nil
	case changed != nil:
		return nil, changed
	case len(listing.Errors) > 0:
		return nil, fault.New(fault.ObservationUnavail, "find %s: %s", id, fault.CleanLine(listing.Errors[0].Error())).
			WithHint("check that tmux runs and that --tmux-socket names its socket").Safe()
	}
	return nil, fault.New(fault.TerminalNotFound, "find %s: no such pane", id).WithHint("call list again").Safe()
}

// byPlace finds a stored place again: same server, pane, anchor and agent process.
func (d *Desk) byPlace(ctx context.Context, at place) (*sighting, error) {
	a := d.adapter(string(at.Process.Agent))
	if a == nil {
		return nil, fault.New(fault.CapabilityMissing, "find %s: no adapter for agent %q", at.TerminalID, at.Process.Agent)
	}
	pane, err := d.Tmux.Look(ctx, at.Pane)
	if err != nil {
		return nil, err
	}
	proc, err := a.Find(ctx, pane)
	return found(at, a, pane, proc, err)
}

// captureAt finds a stored place again and captures its screen, with one tmux
// client instead of byPlace's and another; the process and its files are looked
// at meanwhile. It is for display: who types looks in order.
func (d *Desk) captureAt(ctx context.Context, at place) (*sighting, terminal.Screen, error) {
	a := d.adapter(string(at.Process.Agent))
	if a == nil {
		return nil, terminal.Screen{}, fault.New(fault.CapabilityMissing, "find %s: no adapter for agent %q", at.TerminalID, at.Process.Agent)
	}
	type finding struct {
		s   sighting
		err error
	}
	find := aside(func() (f finding) {
		f.s.adapter = a
		if f.s.proc, f.err = a.Find(ctx, at.Pane); f.err == nil {
			f.s.identify(ctx)
		}
		return f
	})
	defer find()
	screen, err := d.Tmux.CaptureOne(ctx, at.Pane)
	if err != nil {
		return nil, screen, err
	}
	pane := at.Pane // a capture does not tell the pane's place again
	pane.Dead, pane.InMode, pane.Alternate = screen.Pane.Dead, screen.Pane.InMode, screen.Pane.Alternate
	pane.Width, pane.Height = screen.Pane.Width, screen.Pane.Height
	f := find()
	if _, err := found(at, a, pane, f.s.proc, f.err); err != nil {
		return nil, screen, err
	}
	f.s.pane = pane
	return &f.s, screen, nil
}

// found judges what Find said of the pane of a stored place.
func found(at place, a agent.Adapter, pane terminal.Pane, proc agent.Process, err error) (*sighting, error) {
	if pane.Dead {
		return nil, fault.New(fault.TerminalChanged, "find %s: the pane's program has ended", at.TerminalID)
	}
	if errors.Is(err, agent.ErrNoAgent) || errors.Is(err, agent.ErrSeveralAgents) || (err == nil && proc.Inc != at.Process.Inc) {
		return nil, fault.New(fault.TerminalChanged, "find %s: the agent is no longer the process in the pane", at.TerminalID)
	}
	if err != nil {
		return nil, fault.New(fault.ObservationUnavail, "find %s: %w", at.TerminalID, err)
	}
	return &sighting{pane: pane, proc: proc, adapter: a}, nil
}

// turnPlace reads where a Turn's binding lives.
func (d *Desk) turnPlace(ctx context.Context, t store.Turn) (store.Binding, place, error) {
	b, err := d.Store.Binding(ctx, t.BindingID)
	if err != nil {
		return store.Binding{}, place{}, err
	}
	if b.Generation != t.BindingGeneration || b.ReleasedAt != 0 {
		return b, place{}, fault.New(fault.BindingSuperseded, "turn %s: its Session was attached elsewhere since", t.ID).
			WithHint("close the turn")
	}
	p, err := parsePlace(b.Endpoint)
	return b, p, err
}

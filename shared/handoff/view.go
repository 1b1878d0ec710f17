package handoff

import (
	"context"

	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
)

// blockingStatuses keep a Session from a new send (core §5.1).
var blockingStatuses = []string{
	store.TurnCreated, store.TurnRunning, store.TurnWaitingForAgent,
	store.TurnWaitingForController, store.TurnStalled, store.TurnCancelling,
}

// A view is what the Store says of all panes at one time.
type view struct {
	bound   map[string]store.Bound // by incarnation_key
	fences  map[string]store.Fence // by terminal_key
	turns   []store.Turn           // blocking ones
	watches map[string]store.Watch // active ones, by terminal_key
}

// snapshot reads the view: four queries, whatever the number of panes.
func (d *Desk) snapshot(ctx context.Context) (*view, error) {
	v := &view{bound: map[string]store.Bound{}, fences: map[string]store.Fence{}, watches: map[string]store.Watch{}}
	bound, err := d.Store.Bound(ctx)
	if err != nil {
		return nil, err
	}
	for _, b := range bound {
		v.bound[b.Binding.IncarnationKey] = b
	}
	fences, err := d.Store.Fences(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range fences {
		v.fences[f.TerminalKey] = f
	}
	if v.turns, err = d.Store.Turns(ctx, store.TurnFilter{Statuses: blockingStatuses}); err != nil {
		return nil, err
	}
	watches, err := d.Store.Watches(ctx, store.WatchFilter{ActiveOnly: true})
	if err != nil {
		return nil, err
	}
	for _, w := range watches {
		v.watches[w.TerminalKey] = w
	}
	return v, nil
}

// blocked reports whether an unresolved submission or an unfinished Turn stands
// on the pane.
func (v *view) blocked(terminalKey string) bool {
	if _, ok := v.fences[terminalKey]; ok {
		return true
	}
	return len(v.on(terminalKey)) > 0
}

// on gives the unfinished Turns of a pane.
func (v *view) on(terminalKey string) []store.Turn {
	var out []store.Turn
	for _, t := range v.turns {
		if t.TerminalKey == terminalKey {
			out = append(out, t)
		}
	}
	return out
}

// owner gives the Turn that owns the pane's dispatch, if one does.
func (v *view) owner(terminalKey string) (store.Turn, bool) {
	f, ok := v.fences[terminalKey]
	if !ok || f.Kind != "dispatch" {
		return store.Turn{}, false
	}
	for _, t := range v.turns {
		if t.CurrentMessageID == f.RefID {
			return t, true
		}
	}
	return store.Turn{}, false
}

// of gives the Session bound to exactly this process in this pane.
func (v *view) of(s *sighting) (store.Bound, bool) {
	b, ok := v.bound[terminal.IncarnationKey(s.pane, s.proc.Inc)]
	return b, ok
}

package storage

import (
	"context"
	"time"
)

// Every is the pause between the starts of two inspections of a Watcher.
const Every = 250 * time.Millisecond

// Watcher inspects directories again and again while somebody writes to them.
type Watcher struct {
	Roots    []string // from Roots
	Budget   Budget
	Every    time.Duration       // 0 means Every
	Seen     func(Observation)   // gets every observation; nil ignores them
	Violated func(reason string) // gets the first violation, once; required
}

// Run inspects until ctx is done or a violation is reported, one inspection after
// the other. An inspection that fails is a violation, too.
func (w Watcher) Run(ctx context.Context) error {
	if w.Every <= 0 {
		w.Every = Every
	}
	tick := time.NewTicker(w.Every) // drops the ticks that a long inspection misses
	defer tick.Stop()
	for {
		seen, err := Inspect(ctx, w.Roots, w.Budget)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			w.Violated(InspectionFailed)
			return nil
		}
		if w.Seen != nil {
			w.Seen(seen)
		}
		if !seen.Allowed {
			w.Violated(seen.Reason)
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

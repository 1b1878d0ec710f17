package upstream

import (
	"context"
	"time"
)

// Journal is the one writer of a Ledger.
type Journal struct{ ledger Ledger }

// NewJournal makes a Journal; Run must run while it is used.
func NewJournal(l Ledger) *Journal { return &Journal{ledger: l} }

// Lag is how long what has ended may wait for a reservation to be committed with.
const Lag = 20 * time.Millisecond

// Run commits what waits too long, until ctx ends; then it flushes once more.
func (j *Journal) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Reserve returns when the draft is durably reserved, or refused.
func (j *Journal) Reserve(ctx context.Context, d Draft) (Answer, error) { return Answer{}, nil }

// Settle hands over a row that came to its end.
func (j *Journal) Settle(e Evidence) {}

// Count adds to the counters of a grant; they are written within a second.
func (j *Journal) Count(c Count) {}

// Flush returns when all that was handed over before is durable.
func (j *Journal) Flush(ctx context.Context) error { return nil }

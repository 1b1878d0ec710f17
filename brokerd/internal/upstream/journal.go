package upstream

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"
)

// Bounds of the Journal.
const (
	Lag        = 20 * time.Millisecond  // for which a row that has ended waits for others to be committed with
	CountLag   = time.Second            // the same for counts (broker §13)
	maxDrafts  = 64                     // of one commit
	maxSettled = 16                     // of one commit, so that a reservation behind it waits little
	againAfter = 250 * time.Millisecond // what could not be written is tried again
)

// Journal is the one writer of a Ledger: it gathers what several requests want
// written into one transaction.
//
// Whoever wants a reservation while nothing is being committed commits at once, in
// its own goroutine; who comes meanwhile waits, and one of those commits for all of
// them. A settled row can wait, since a crash before it is written means no more than
// that the outcome is not known, and nobody waits for it: rows that end within Lag are
// one commit, beside the requests. Only where the answers decide on the next reservation
// (Grant.Measured) all rows go in front of it, in the same transaction.
type Journal struct {
	ledger Ledger
	log    *slog.Logger

	mu      sync.Mutex
	busy    bool // somebody commits, or is called to
	waiting []*waiter
	settled []Evidence
	handed  int // rows that came to Settle, up to now
	written int // of them, the oldest first
	counts  map[string]Count
	due     time.Time     // when Run commits what waits; zero when nothing does
	wake    chan struct{} // due is earlier than it was
}

// A waiter is a call of Reserve or Flush that is not answered yet.
type waiter struct {
	draft *Draft // nil for Flush
	turn  chan verdict
}

// A verdict ends the waiting: with an answer, or with the call to commit.
type verdict struct {
	lead   bool
	answer Answer
	err    error
}

// NewJournal makes a Journal; Run must run while it is used.
func NewJournal(l Ledger, log *slog.Logger) *Journal {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Journal{ledger: l, log: log, counts: map[string]Count{}, wake: make(chan struct{}, 1)}
}

// Run commits what has waited long enough, until ctx ends; then it commits the rest.
func (j *Journal) Run(ctx context.Context) error {
	timer := time.NewTimer(CountLag)
	defer timer.Stop()
	for {
		j.mu.Lock()
		due := j.due
		j.mu.Unlock()
		wait := time.Until(due)
		switch {
		case due.IsZero():
			timer.Stop()
		case wait > 0:
			timer.Reset(wait)
		default:
			_ = j.Flush(ctx) // logged; what was not written waits for another try
			continue
		}
		select {
		case <-timer.C:
		case <-j.wake:
		case <-ctx.Done():
			return j.Flush(context.WithoutCancel(ctx))
		}
	}
}

// Reserve returns when the draft is durably reserved, or refused. With an error
// nothing is known, and the reservation counts as spent. The end of ctx does not cut
// it short: whether the reservation was made must be known.
func (j *Journal) Reserve(ctx context.Context, d Draft) (Answer, error) {
	return j.wait(ctx, &waiter{draft: &d, turn: make(chan verdict, 1)})
}

// Flush returns when all that was handed over before is durable.
func (j *Journal) Flush(ctx context.Context) error {
	j.mu.Lock()
	handed := j.handed
	j.mu.Unlock()
	for {
		if _, err := j.wait(ctx, &waiter{turn: make(chan verdict, 1)}); err != nil {
			return err
		}
		j.mu.Lock()
		written := j.written
		j.mu.Unlock()
		if written >= handed {
			return nil
		}
	}
}

// Settle hands over a row that came to its end.
func (j *Journal) Settle(e Evidence) {
	j.mu.Lock()
	j.settled = append(j.settled, e)
	j.handed++
	j.within(Lag)
	j.mu.Unlock()
}

// Count adds to the counters of a grant; they are written within a second.
func (j *Journal) Count(c Count) {
	j.mu.Lock()
	j.add(c)
	j.within(CountLag)
	j.mu.Unlock()
}

func (j *Journal) add(c Count) {
	sum := j.counts[c.GrantID]
	j.counts[c.GrantID] = Count{c.GrantID, sum.Received + c.Received, sum.Refused + c.Refused}
}

// within has Run commit before d has passed; j.mu is held.
func (j *Journal) within(d time.Duration) {
	due := time.Now().Add(d)
	if !j.due.IsZero() && j.due.Before(due) {
		return
	}
	j.due = due
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// wait queues w, commits when it is its turn, and gives the answer.
func (j *Journal) wait(ctx context.Context, w *waiter) (Answer, error) {
	j.mu.Lock()
	j.waiting = append(j.waiting, w)
	lead := !j.busy
	j.busy = true
	j.mu.Unlock()
	if !lead {
		v := <-w.turn
		if !v.lead {
			return v.answer, v.err
		}
	}
	j.commit(context.WithoutCancel(ctx))
	v := <-w.turn
	return v.answer, v.err
}

// commit writes what is waited for, answers who waited for it, and calls the next one.
// The caller is the first in the queue and among those who are answered.
func (j *Journal) commit(ctx context.Context) {
	j.mu.Lock()
	n, rows := 0, 0 // rows: that ended and may go along
	var b Batch
	for ; n < len(j.waiting) && len(b.Drafts) < maxDrafts; n++ {
		d := j.waiting[n].draft
		switch {
		case d == nil:
			rows = max(rows, maxSettled)
		case d.Grant.Measured:
			rows = math.MaxInt
		}
		if d != nil {
			b.Drafts = append(b.Drafts, *d)
		}
	}
	served := j.waiting[:n:n]
	j.waiting = j.waiting[n:]
	var counts map[string]Count
	if rows > 0 {
		rows = min(rows, len(j.settled))
		b.Settled, j.settled = j.settled[:rows:rows], j.settled[rows:]
		counts, j.counts = j.counts, map[string]Count{}
		if len(j.settled) == 0 {
			j.settled, j.due = nil, time.Time{}
		}
	}
	j.mu.Unlock()

	for _, c := range counts {
		b.Counts = append(b.Counts, c)
	}
	var answers []Answer
	var err error
	if len(b.Settled)+len(b.Counts)+len(b.Drafts) > 0 {
		answers, err = j.ledger.Commit(ctx, b)
	}

	j.mu.Lock()
	if err != nil {
		j.keep(b.Settled, counts, err)
	} else {
		j.written += len(b.Settled)
	}
	var next *waiter
	if j.busy = len(j.waiting) > 0; j.busy {
		next = j.waiting[0]
	}
	j.mu.Unlock()
	for _, w := range served {
		v := verdict{err: err}
		if w.draft != nil && err == nil {
			v.answer, answers = answers[0], answers[1:]
		}
		w.turn <- v
	}
	if next != nil {
		next.turn <- verdict{lead: true}
	}
}

// keep puts back what a failed commit did not write; j.mu is held. It cannot grow
// without bound: a row is settled once for a reservation that was committed.
func (j *Journal) keep(ended []Evidence, counts map[string]Count, err error) {
	j.settled = append(ended, j.settled...)
	for _, c := range counts {
		j.add(c)
	}
	if len(j.settled)+len(counts) > 0 {
		j.due = time.Time{} // else rows beyond one commit would be tried again at once
		j.within(againAfter)
	}
	j.log.Warn("rows are not written", "err", err, "waiting", len(j.settled))
}

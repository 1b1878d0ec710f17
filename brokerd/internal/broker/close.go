package broker

import (
	"context"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// close ends a grant beside other work, once: from its first commit on the
// capability opens nothing, then what runs is cancelled, then the rows are settled
// (broker §11). What fails is tried again by the next pass.
func (b *Broker) close(id, reason string) {
	b.mu.Lock()
	s := b.sessions[id]
	if s == nil { // of nobody that lives: a grant that was never served here
		s = &session{id: id}
		b.sessions[id] = s
	}
	again := s.closing
	s.closing = true
	b.mu.Unlock()
	if again {
		return
	}
	b.closes.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), CloseWait+startWait)
		defer cancel()
		g, ended, err := b.end(ctx, id, reason)
		b.mu.Lock()
		s.closing = err == nil
		if err == nil {
			delete(b.sessions, id)
		}
		b.mu.Unlock()
		if err != nil {
			b.log.Warn("close grant", "grant_id", id, "err", err)
			return
		}
		b.release(ctx, s)
		if !ended {
			return // it was over before
		}
		b.log.Info("grant ended", "grant_id", id, "state", g.State, "reason", g.CloseReason,
			"received", g.Received, "forwarded", g.Forwarded, "refused", g.Refused)
	})
}

// end does the work of a close; ended is false for a grant that was at its end.
func (b *Broker) end(ctx context.Context, id, reason string) (g store.Grant, ended bool, err error) {
	if g, err = b.opt.Store.Grant(ctx, id); err != nil || !g.Open() {
		return g, false, err
	}
	if g.State == store.GrantActive {
		if _, err = b.opt.Store.BeginClose(ctx, b.lease, id, reason); err != nil && !fault.Is(err, fault.GrantClosed) {
			return g, false, err
		}
	}
	handlers, cancel := context.WithTimeout(ctx, CloseWait)
	defer cancel()
	if left := b.handler.Close(handlers, id); left > 0 {
		b.log.Error("requests of a closed grant do not end", "grant_id", id, "count", left)
	}
	// Rows that are not written yet would become aborted_by_close, and what they cost
	// would be lost: the grant stays closing until they are.
	if err := b.journal.Flush(ctx); err != nil {
		return g, false, err
	}
	g, err = b.opt.Store.FinishClose(ctx, b.lease, id)
	return g, err == nil, err
}

// closeAll begins to close every grant.
func (b *Broker) closeAll(reason string) {
	for _, id := range b.ids() {
		b.close(id, reason)
	}
}

// abandon ends what runs when the lease is lost: the grants are another brokerd's.
func (b *Broker) abandon(ctx context.Context) {
	for _, id := range b.ids() {
		b.closes.Go(func() { b.handler.Close(ctx, id) })
	}
}

func (b *Broker) ids() (ids []string) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for id := range b.sessions {
		ids = append(ids, id)
	}
	return ids
}

// release gives back what a session holds.
func (b *Broker) release(ctx context.Context, s *session) {
	b.vault.close(s.credential, s.id)
	if s.budget == nil {
		return
	}
	s.unkeep()
	if err := b.opt.Store.Release(context.WithoutCancel(ctx), s.budget); err != nil {
		b.log.Warn("give back the lease of a budget", "grant_id", s.id, "err", err)
	}
}

// Package access is the gate's Authorizer over the Store: who a request comes from,
// what its ticket is for, and how the attempt behind it stands, as committed at the
// moment of the request.
//
// It keeps what it has read only as long as nothing at all was committed to the
// Store since, by this program or another: every request asks for the Store's
// version first. A revocation, a stop or a lost lease therefore counts from its
// commit on.
//
// A use of a ticket with a bound is one conditional statement of the Store. Uses of
// tickets without one are only counted, in memory, and written together every few
// seconds and by Flush; a crash loses the count of the last seconds and nothing else.
package access

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
)

const (
	flushEvery = 2 * time.Second
	flushWait  = 2 * time.Second // for the last counts, at the end of Run
	keptMost   = 4096            // rights that are kept between two commits
)

// Access answers the gate's questions. Its methods may be called from several
// goroutines.
type Access struct {
	store   *store.Store
	version *store.Version
	log     *slog.Logger

	mu   sync.Mutex
	seen int64 // version of what is kept
	kept map[question]gate.Facts
	uses map[string]int64 // by ticket, not written yet
}

var _ gate.Authorizer = (*Access)(nil)

// question is one way to ask for a right.
type question struct {
	secret, ticket        gate.Digest
	peer                  int // uid + 1 of a local peer
	principalID, ticketID string
}

// New makes an Access over a Store, to be closed before it. log may be nil.
func New(ctx context.Context, s *store.Store, log *slog.Logger) (*Access, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	version, err := s.Version(ctx)
	if err != nil {
		return nil, err
	}
	return &Access{store: s, version: version, log: log, kept: map[question]gate.Facts{}, uses: map[string]int64{}}, nil
}

// Run writes the counts of uses now and then until ctx ends, and the last ones then.
func (a *Access) Run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := a.Flush(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("write the uses of tickets", "err", err)
			}
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWait)
			defer cancel()
			return a.Flush(last)
		}
	}
}

// Close gives the connection to the Store back.
func (a *Access) Close() error { return a.version.Close() }

// Admit decides a claim.
func (a *Access) Admit(ctx context.Context, c gate.Claim) (gate.Access, error) {
	q := question{secret: c.Principal, ticket: c.Ticket}
	if c.Peer != nil {
		q = question{peer: *c.Peer + 1, ticket: c.Ticket}
	}
	f, err := a.facts(ctx, q)
	if err != nil {
		return gate.Access{}, err
	}
	return f.Admit(c, a.now())
}

// Consume takes one use of a ticket.
func (a *Access) Consume(ctx context.Context, access gate.Access) error {
	f, err := a.facts(ctx, byID(access))
	if err != nil {
		return err
	}
	if err := f.Still(a.now()); err != nil {
		return err
	}
	if f.Ticket.MaxUses > 0 {
		return a.store.ConsumeTicket(ctx, access.TicketID)
	}
	a.mu.Lock()
	a.uses[access.TicketID]++
	a.mu.Unlock()
	return nil
}

// Still decides whether an access holds now.
func (a *Access) Still(ctx context.Context, access gate.Access) error {
	f, err := a.facts(ctx, byID(access))
	if err != nil {
		return err
	}
	return f.Still(a.now())
}

// Flush writes the uses counted so far; what could not be written stays counted.
func (a *Access) Flush(ctx context.Context) error {
	a.mu.Lock()
	uses := a.uses
	a.uses = map[string]int64{}
	a.mu.Unlock()
	err := a.store.CountTicketUses(ctx, uses)
	if err != nil {
		a.mu.Lock()
		for id, n := range uses {
			a.uses[id] += n
		}
		a.mu.Unlock()
	}
	return err
}

func (a *Access) now() time.Time { return time.UnixMilli(a.store.Now()) }

func byID(access gate.Access) question {
	return question{principalID: access.PrincipalID, ticketID: access.TicketID}
}

// facts gives what is true now: what was kept if the Store's version is still that
// of its reading. The version is taken before the rows are read, so that a commit
// between the two makes the next request read again.
func (a *Access) facts(ctx context.Context, q question) (gate.Facts, error) {
	version, known := a.version.Now(ctx)
	a.mu.Lock()
	if version != a.seen {
		clear(a.kept)
		a.seen = version
	}
	f, ok := a.kept[q]
	a.mu.Unlock()
	if ok && known {
		return f, nil
	}
	right, err := a.ask(ctx, q)
	if err != nil {
		return gate.Facts{}, err
	}
	f = facts(right)
	if known {
		a.keep(version, q, f)
	}
	return f, nil
}

// keep remembers facts unless another version was seen meanwhile. What a claim asked
// for is asked for again by its ids.
func (a *Access) keep(version int64, q question, f gate.Facts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen != version {
		return
	}
	if len(a.kept) >= keptMost {
		clear(a.kept)
	}
	a.kept[q] = f
	if f.Principal.ID != "" && f.Ticket.ID != "" {
		a.kept[question{principalID: f.Principal.ID, ticketID: f.Ticket.ID}] = f
	}
}

func (a *Access) ask(ctx context.Context, q question) (store.BridgeRight, error) {
	switch {
	case q.ticketID != "":
		return a.store.RightByID(ctx, q.principalID, q.ticketID)
	case q.peer > 0:
		return a.store.RightByPeer(ctx, int64(q.peer-1), q.ticket)
	}
	return a.store.RightBySecret(ctx, q.secret, q.ticket)
}

// facts puts rows into the gate's words. A lease that is not active any more ends
// its tickets in the same transaction; should a row say otherwise, it does so here.
func facts(r store.BridgeRight) gate.Facts {
	k := r.Ticket
	return gate.Facts{
		Principal: gate.Principal{ID: r.PrincipalID, Org: r.PrincipalOrg},
		Role:      r.Role,
		Ticket: gate.Ticket{
			ID: k.ID, Digest: k.SecretSHA256, Principal: k.PrincipalID, Org: k.Org, Owner: k.Owner, Station: k.StationID,
			Attempt: int(k.Attempt), Lease: k.LeaseID, Prefix: k.Prefix, Methods: k.Methods, MaxUses: int(k.MaxUses), Uses: int(k.Uses),
			ExpiresAt: time.UnixMilli(k.ExpiresAt), Revoked: k.RevokedAt != 0 || r.LeaseState != store.WorkspaceActive,
		},
		Attempt: gate.Attempt{Number: int(k.Attempt), Lease: r.LeaseID, State: r.State, Stopping: r.Desired == store.WantStopping, StopReason: r.StopReason},
		Newest:  int(r.Newest),
		Org:     r.Org,
		Owner:   r.Owner,
	}
}

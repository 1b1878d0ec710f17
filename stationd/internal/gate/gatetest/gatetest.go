// Package gatetest is an Authorizer in memory, for tests of the gate and of what
// stands behind it. It decides with gate.Facts, as the one over the Store does,
// and its changes ring like the Store's.
package gatetest

import (
	"context"

	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/gate"
)

// Authority holds principals, roles, attempts and tickets. Its methods may be
// called from several goroutines. A name stands for an id.
type Authority struct {
	Now func() time.Time // nil means time.Now

	mu         sync.Mutex
	principals map[string]*principal
	roles      map[[2]string]string // station, principal
	stations   map[string]*station
	tickets    map[string]*gate.Ticket
	consumed   int
	broken     error
	changes    chan struct{}
}

type principal struct {
	gate.Principal
	digest  gate.Digest
	uid     *int
	revoked bool
}

type station struct {
	org, owner string
	newest     int
	attempts   map[int]*gate.Attempt
}

// New makes an empty Authority.
func New() *Authority {
	return &Authority{
		principals: map[string]*principal{}, roles: map[[2]string]string{}, stations: map[string]*station{},
		tickets: map[string]*gate.Ticket{}, changes: make(chan struct{}, 1),
	}
}

// Changes rings after every change.
func (a *Authority) Changes() <-chan struct{} { return a.changes }

// change runs f under the lock and rings.
func (a *Authority) change(f func()) {
	a.mu.Lock()
	f()
	a.mu.Unlock()
	select {
	case a.changes <- struct{}{}:
	default:
	}
}

// Principal adds a principal of an organisation and gives its secret.
func (a *Authority) Principal(org, name string) (secret string) {
	s, digest := gate.NewPrincipalSecret()
	a.change(func() {
		a.principals[name] = &principal{Principal: gate.Principal{ID: name, Org: org}, digest: digest}
	})
	return s.Reveal()
}

// Local lets a local user be a principal.
func (a *Authority) Local(name string, uid int) { a.change(func() { a.principals[name].uid = &uid }) }

// RevokePrincipal ends a principal and its tickets.
func (a *Authority) RevokePrincipal(name string) {
	a.change(func() {
		a.principals[name].revoked = true
		a.revoke(func(t *gate.Ticket) bool { return t.Principal == name })
	})
}

// Role gives a principal a role on a station; "" takes it away. The principal's
// tickets for the station end when the role allows no bridge.
func (a *Authority) Role(stationID, name, role string) {
	a.change(func() {
		a.roles[[2]string{stationID, name}] = role
		if role != "owner" && role != "manager" {
			a.revoke(func(t *gate.Ticket) bool { return t.Principal == name && t.Station == stationID })
		}
	})
}

// Ready begins a station's next attempt, which replaces the one before.
func (a *Authority) Ready(org, owner, stationID, lease string) (attempt int) {
	a.change(func() {
		s := a.stations[stationID]
		if s == nil {
			s = &station{org: org, owner: owner, attempts: map[int]*gate.Attempt{}}
			a.stations[stationID] = s
		}
		a.revoke(func(t *gate.Ticket) bool { return t.Station == stationID })
		s.newest++
		attempt = s.newest
		s.attempts[attempt] = &gate.Attempt{Number: attempt, Lease: lease, State: "ready"}
	})
	return attempt
}

// State moves an attempt to a state of station §4.1.
func (a *Authority) State(stationID string, attempt int, state string) {
	a.change(func() { a.stations[stationID].attempts[attempt].State = state })
}

// Stop is the transaction of step 1 of a stop.
func (a *Authority) Stop(stationID string, attempt int, reason string) {
	a.change(func() {
		at := a.stations[stationID].attempts[attempt]
		at.Stopping, at.StopReason = true, reason
		a.revoke(func(t *gate.Ticket) bool { return t.Station == stationID && t.Attempt == attempt })
	})
}

// Lease gives an attempt another lease, which no ticket can have.
func (a *Authority) Lease(stationID string, attempt int, lease string) {
	a.change(func() { a.stations[stationID].attempts[attempt].Lease = lease })
}

// Issue makes a ticket and gives its secret. Organisation, owner and lease come
// from the station where t leaves them empty; t.ID must be new.
func (a *Authority) Issue(t gate.Ticket) (secret string) {
	s, digest := gate.NewTicket()
	a.change(func() {
		st := a.stations[t.Station]
		t.Digest = digest
		if t.Org == "" {
			t.Org = st.org
		}
		if t.Owner == "" {
			t.Owner = st.owner
		}
		if t.Lease == "" {
			t.Lease = st.attempts[t.Attempt].Lease
		}
		a.tickets[t.ID] = &t
	})
	return s.Reveal()
}

// RevokeTicket ends one ticket.
func (a *Authority) RevokeTicket(id string) { a.change(func() { a.tickets[id].Revoked = true }) }

// Uses gives how often a ticket was consumed.
func (a *Authority) Uses(id string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tickets[id].Uses
}

// Consumed gives how often any ticket was.
func (a *Authority) Consumed() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.consumed
}

// Break makes every question fail with err; nil mends it.
func (a *Authority) Break(err error) { a.change(func() { a.broken = err }) }

// revoke marks the tickets that match. a.mu is held.
func (a *Authority) revoke(match func(*gate.Ticket) bool) {
	for _, t := range a.tickets {
		if match(t) {
			t.Revoked = true
		}
	}
}

func (a *Authority) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// Admit is gate.Authorizer.
func (a *Authority) Admit(_ context.Context, c gate.Claim) (gate.Access, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken != nil {
		return gate.Access{}, a.broken
	}
	var who string
	for name, p := range a.principals {
		if c.Peer != nil && p.uid != nil && *p.uid == *c.Peer || c.Peer == nil && p.digest == c.Principal {
			who = name
		}
	}
	var id string
	for _, t := range a.tickets {
		if t.Digest == c.Ticket {
			id = t.ID
		}
	}
	return a.facts(who, id, c.Station).Admit(c, a.now())
}

// Consume is gate.Authorizer.
func (a *Authority) Consume(_ context.Context, access gate.Access) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken != nil {
		return a.broken
	}
	t := a.tickets[access.TicketID]
	switch {
	case t.Revoked:
		return fault.New(fault.TicketRevoked, "consume the ticket: revoked")
	case !a.now().Before(t.ExpiresAt), t.MaxUses > 0 && t.Uses >= t.MaxUses:
		return fault.New(fault.TicketExpired, "consume the ticket: over")
	}
	t.Uses++
	a.consumed++
	return nil
}

// Still is gate.Authorizer.
func (a *Authority) Still(_ context.Context, access gate.Access) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.broken != nil {
		return a.broken
	}
	return a.facts(access.PrincipalID, access.TicketID, access.Station).Still(a.now())
}

// facts reads what a transaction would. a.mu is held.
func (a *Authority) facts(who, ticketID, stationID string) gate.Facts {
	var f gate.Facts
	if p := a.principals[who]; p != nil && !p.revoked {
		f.Principal = p.Principal
		f.Role = a.roles[[2]string{stationID, who}]
	}
	if t := a.tickets[ticketID]; t != nil {
		f.Ticket = *t
	}
	if s := a.stations[stationID]; s != nil {
		f.Org, f.Owner, f.Newest = s.org, s.owner, s.newest
		if at := s.attempts[f.Ticket.Attempt]; at != nil {
			f.Attempt = *at
		}
	}
	return f
}

var _ gate.Authorizer = (*Authority)(nil)

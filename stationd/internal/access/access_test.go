package access_test

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/access"
	"drawbridge/stationd/internal/gate"
)

var ctx = context.Background()

// world is a Store with a ready attempt of ann's, and the gate's view of it.
type world struct {
	t testing.TB
	*store.Store
	access  *access.Access
	main    *store.Lease
	people  map[string]store.Principal
	secrets map[string]gate.Digest
	station store.Station
	attempt store.StationAttempt

	mu   sync.Mutex
	wall time.Time
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, people: map[string]store.Principal{}, secrets: map[string]gate.Digest{}, wall: time.UnixMilli(1_800_000_000_000)}
	var err error
	w.Store, err = store.Open(ctx, store.Options{Dir: filepath.Join(t.TempDir(), "store"), Program: "stationd", Now: w.now})
	w.ok(err)
	t.Cleanup(func() { w.ok(w.Close()) })
	w.access, err = access.New(ctx, w.Store, nil)
	w.ok(err)
	t.Cleanup(func() { w.ok(w.access.Close()) })
	w.main, err = w.Acquire(ctx, store.StationdLease("box"), time.Hour)
	w.ok(err)
	w.principal("local", "ann")
	w.station = w.newStation("ann")
	w.attempt = w.ready(w.station)
	return w
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wall
}

func (w *world) add(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.wall = w.wall.Add(d)
}

func (w *world) principal(org, name string) {
	w.t.Helper()
	_, digest := gate.NewPrincipalSecret()
	p, err := w.AddPrincipal(ctx, w.main, store.NewPrincipal{Org: org, Name: name, SecretSHA256: digest})
	w.ok(err)
	w.people[name], w.secrets[name] = p, digest
}

func (w *world) newStation(owner string) store.Station {
	w.t.Helper()
	st, _, err := w.CreateStation(ctx, w.main, store.NewStation{PrincipalID: w.people[owner].ID, Profile: "agent", Spec: []byte(`{}`)})
	w.ok(err)
	return st
}

func (w *world) ready(st store.Station) store.StationAttempt {
	w.t.Helper()
	a, err := w.BeginAttempt(ctx, w.main, st.ID, store.NewAttempt{Provider: "local", Host: "box", TTL: time.Hour})
	w.ok(err)
	_, err = w.WorkspaceAcquired(ctx, w.main, a.LeaseID, store.Acquired{HostRef: "h", Workdir: "/w"})
	w.ok(err)
	_, err = w.LaunchAttempt(ctx, w.main, st.ID, a.Number, store.Launch{CommandHash: "c", Document: []byte(`{}`)})
	w.ok(err)
	_, err = w.RecordShim(ctx, w.main, st.ID, a.Number, store.Shim{BootID: "b", PID: 2, Start: 3})
	w.ok(err)
	_, err = w.RecordDaemon(ctx, w.main, st.ID, a.Number, store.Daemon{PID: 4, Start: 5, PGID: 4, Port: 6})
	w.ok(err)
	a, err = w.AttemptIsReady(ctx, w.main, st.ID, a.Number)
	w.ok(err)
	return a
}

func (w *world) stop(reason string) {
	w.t.Helper()
	_, _, err := w.RequestStop(ctx, w.main, w.station.ID, w.attempt.Number, reason, "x")
	w.ok(err)
}

func (w *world) end() {
	w.t.Helper()
	_, err := w.AttemptIsStopping(ctx, w.main, w.station.ID, w.attempt.Number)
	w.ok(err)
	_, err = w.EndAttempt(ctx, w.main, w.station.ID, w.attempt.Number, store.AttemptEnd{Document: []byte(`{}`)})
	w.ok(err)
}

func (w *world) ticket(who string, st store.Station, change func(*store.NewTicket)) (store.Ticket, gate.Digest) {
	w.t.Helper()
	_, digest := gate.NewTicket()
	n := store.NewTicket{SecretSHA256: digest, Issuer: w.people[who].ID, PrincipalID: w.people[who].ID, StationID: st.ID, Prefix: "/v1"}
	if change != nil {
		change(&n)
	}
	k, err := w.IssueTicket(ctx, w.main, n)
	w.ok(err)
	return k, digest
}

// claim is a good request of a principal's with a ticket.
func (w *world) claim(who string, ticket gate.Digest) gate.Claim {
	w.t.Helper()
	target, err := gate.ParseTarget("/v1/x", 0)
	w.ok(err)
	return gate.Claim{Principal: w.secrets[who], Ticket: ticket, Station: w.station.ID, Attempt: int(w.attempt.Number), Method: "GET", Target: target}
}

// refused wants a claim to be refused with a code, twice: as read, and as kept.
func (w *world) refused(what string, c gate.Claim, want fault.Code) {
	w.t.Helper()
	for range 2 {
		if _, err := w.access.Admit(ctx, c); !fault.Is(err, want) {
			w.t.Errorf("%s: got %v, want %s", what, err, want)
		}
	}
}

func (w *world) admitted(c gate.Claim) gate.Access {
	w.t.Helper()
	a, err := w.access.Admit(ctx, c)
	w.ok(err)
	return a
}

// Proves station 17.T2, 17.T3, 17.T4, 17.T5, 17.T6: a viewer with a manager's ticket,
// and a ticket of another org, owner, station, attempt, lease or principal are those
// of a stranger; another prefix and method are refused by name; none uses it up.
func TestAccess_Scope(t *testing.T) {
	w := newWorld(t)
	w.principal("local", "victor")
	w.principal("local", "mia")
	w.principal("other", "olga")
	w.ok(w.GrantRole(ctx, w.main, w.station.ID, w.people["victor"].ID, store.RoleViewer))
	w.ok(w.GrantRole(ctx, w.main, w.station.ID, w.people["mia"].ID, store.RoleManager))
	k, digest := w.ticket("ann", w.station, func(n *store.NewTicket) { n.MaxUses, n.Methods = 1, []string{"GET", "POST"} })
	good := w.claim("ann", digest)
	access := w.admitted(good)
	if access.TicketID != k.ID || access.PrincipalID != w.people["ann"].ID || access.ExpiresAt.UnixMilli() != k.ExpiresAt {
		t.Errorf("admitted as %+v", access)
	}
	for _, who := range []string{"victor", "mia", "olga"} {
		w.refused("ann's ticket with "+who, w.claim(who, digest), fault.Unauthorized)
	}
	second := w.newStation("ann")
	w.ready(second)
	_, foreign := w.ticket("ann", second, nil)
	w.refused("ticket of another station", w.claim("ann", foreign), fault.Unauthorized)
	_, unknown := gate.NewTicket()
	w.refused("unknown ticket", w.claim("ann", unknown), fault.Unauthorized)
	other := good
	other.Attempt = 2
	w.refused("another attempt", other, fault.Unauthorized)
	other = good
	other.Method = "DELETE"
	w.refused("another method", other, fault.MethodDenied)
	other = good
	other.Target, _ = gate.ParseTarget("/v10", 0)
	w.refused("another prefix", other, fault.PathOutsidePrefix)
	if k, err := w.Ticket(ctx, k.ID); err != nil || k.Uses != 0 {
		t.Errorf("%d uses, %v", k.Uses, err)
	}
	w.ok(w.access.Consume(ctx, access))
	if err := w.access.Consume(ctx, access); !fault.Is(err, fault.TicketExpired) {
		t.Errorf("a second use: %v", err)
	}
	w.refused("a used ticket", good, fault.TicketExpired)
}

// Proves station 17.T7: a stop refuses at once, before and after its end.
func TestAccess_Stop(t *testing.T) {
	w := newWorld(t)
	k, digest := w.ticket("ann", w.station, nil)
	access := w.admitted(w.claim("ann", digest))
	w.ok(w.access.Still(ctx, access))
	w.stop(store.StopOperator)
	w.refused("after the stop", w.claim("ann", digest), fault.StationStopping)
	for _, err := range []error{w.access.Still(ctx, access), w.access.Consume(ctx, access)} {
		if !fault.Is(err, fault.StationStopping) {
			t.Errorf("what was admitted: %v", err)
		}
	}
	if k, err := w.Ticket(ctx, k.ID); err != nil || k.RevokedReason != store.StopOperator {
		t.Errorf("%+v, %v", k, err)
	}
	w.end()
	w.refused("after the end", w.claim("ann", digest), fault.StationEnded)
}

// Proves station 17.T8: the ticket of a replaced attempt opens nothing of the new one.
func TestAccess_Replacement(t *testing.T) {
	w := newWorld(t)
	_, digest := w.ticket("ann", w.station, nil)
	old := w.claim("ann", digest)
	w.stop(store.StopReplaced)
	w.end()
	w.attempt = w.ready(w.station)
	if w.attempt.Number != 2 {
		t.Fatalf("attempt %d", w.attempt.Number)
	}
	w.refused("on the new attempt", w.claim("ann", digest), fault.AttemptReplaced)
	w.refused("on the old attempt", old, fault.AttemptReplaced)
}

// Proves station 17.T9: a lost or released lease ends its tickets.
func TestAccess_Lease(t *testing.T) {
	for _, c := range []struct {
		name string
		want fault.Code
		end  func(w *world) error
	}{
		{"lost", fault.TicketRevoked, func(w *world) error {
			_, err := w.LoseWorkspace(ctx, w.main, w.attempt.LeaseID)
			return err
		}},
		{"released", fault.StationEnded, func(w *world) error {
			w.stop(store.StopReleased)
			w.end()
			_, err := w.BeginRelease(ctx, w.main, w.attempt.LeaseID)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			k, digest := w.ticket("ann", w.station, nil)
			access := w.admitted(w.claim("ann", digest))
			w.ok(c.end(w))
			w.refused(c.name, w.claim("ann", digest), c.want)
			if err := w.access.Still(ctx, access); !fault.Is(err, c.want) {
				t.Errorf("what was admitted: %v", err)
			}
			if k, err := w.Ticket(ctx, k.ID); err != nil || k.RevokedAt == 0 {
				t.Errorf("%+v, %v", k, err)
			}
		})
	}
}

// Proves station 17.T10: a manager who is revoked, lowered or gone loses access at the
// next look, and others keep theirs.
func TestAccess_Revocation(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(w *world) error
	}{
		{"role revoked", func(w *world) error { return w.RevokeRole(ctx, w.main, w.station.ID, w.people["mia"].ID) }},
		{"role lowered", func(w *world) error {
			return w.GrantRole(ctx, w.main, w.station.ID, w.people["mia"].ID, store.RoleViewer)
		}},
		{"principal revoked", func(w *world) error {
			_, err := w.RevokePrincipal(ctx, w.main, w.people["mia"].ID)
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.principal("local", "mia")
			w.ok(w.GrantRole(ctx, w.main, w.station.ID, w.people["mia"].ID, store.RoleManager))
			k, digest := w.ticket("mia", w.station, nil)
			_, anns := w.ticket("ann", w.station, nil)
			access := w.admitted(w.claim("mia", digest))
			kept := w.admitted(w.claim("ann", anns))
			w.ok(c.end(w))
			w.refused(c.name, w.claim("mia", digest), fault.Unauthorized)
			if err := w.access.Still(ctx, access); !fault.Is(err, fault.Unauthorized) {
				t.Errorf("what was admitted: %v", err)
			}
			w.ok(w.access.Still(ctx, kept))
			if k, err := w.Ticket(ctx, k.ID); err != nil || k.RevokedAt == 0 {
				t.Errorf("%+v, %v", k, err)
			}
		})
	}
	w := newWorld(t)
	k, digest := w.ticket("ann", w.station, nil)
	_, err := w.RevokeTicket(ctx, w.main, k.ID)
	w.ok(err)
	w.refused("a revoked ticket", w.claim("ann", digest), fault.TicketRevoked)
}

// Proves station 17.T11: a ticket ends at its millisecond, though nothing was
// committed since it was read; and never later than the attempt.
func TestAccess_Expiry(t *testing.T) {
	w := newWorld(t)
	_, digest := w.ticket("ann", w.station, func(n *store.NewTicket) { n.Life = store.TicketLifeLeast })
	access := w.admitted(w.claim("ann", digest))
	w.add(store.TicketLifeLeast - time.Millisecond)
	w.ok(w.access.Still(ctx, access))
	w.add(time.Millisecond)
	w.refused("at its end", w.claim("ann", digest), fault.TicketExpired)
	if err := w.access.Still(ctx, access); !fault.Is(err, fault.TicketExpired) {
		t.Errorf("what was admitted: %v", err)
	}
	w.add(time.Hour - store.TicketLifeLeast - time.Minute)
	if k, _ := w.ticket("ann", w.station, nil); k.ExpiresAt != w.attempt.TTLDeadline {
		t.Errorf("expires at %d, the attempt at %d", k.ExpiresAt, w.attempt.TTLDeadline)
	}
}

// A local user is known by its uid, and by nothing on TCP.
func TestAccess_Peer(t *testing.T) {
	w := newWorld(t)
	p, err := w.EnsurePeer(ctx, w.main, "me", 0)
	w.ok(err)
	w.people["me"] = p
	w.ok(w.GrantRole(ctx, w.main, w.station.ID, p.ID, store.RoleOwner))
	_, digest := w.ticket("me", w.station, nil)
	c, uid := w.claim("me", digest), 0
	w.refused("without a secret on TCP", c, fault.Unauthorized)
	c.Peer = &uid
	w.admitted(c)
	uid = 1
	w.refused("another user", c, fault.Unauthorized)
}

// Uses of a ticket without a bound are counted without a commit for each.
func TestAccess_CountsTogether(t *testing.T) {
	w := newWorld(t)
	k, digest := w.ticket("ann", w.station, nil)
	access := w.admitted(w.claim("ann", digest))
	for range 100 {
		w.ok(w.access.Consume(ctx, access))
	}
	if k, err := w.Ticket(ctx, k.ID); err != nil || k.Uses != 0 {
		t.Errorf("%d uses before the flush, %v", k.Uses, err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	w.ok(w.access.Run(over))
	if k, err := w.Ticket(ctx, k.ID); err != nil || k.Uses != 100 {
		t.Errorf("%d uses, %v", k.Uses, err)
	}
}

package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
)

const origin = "https://origin.example"

// newGrant is the smallest that can be asked for.
func newGrant() store.NewGrant {
	_, hash := redact.NewCapability()
	return store.NewGrant{CapabilitySHA256: hash, Request: store.GrantRequest{Model: "m"}, CredentialRef: "/home/u/auth.json"}
}

// lender is a world with the lease of its brokerd and one endpoint.
type lender struct {
	*world
	lease    *store.Lease
	endpoint store.Endpoint
}

func newLender(t testing.TB) *lender {
	w := newWorld(t)
	l := &lender{world: w, lease: w.acquire(store.BrokerdLease())}
	made, err := w.OpenEndpoints(t.Context(), l.lease, []store.NewEndpoint{{
		BindAddress: "10.0.0.1", BindReason: "test", Port: 4000, BaseURL: "http://host.docker.internal:4000", TransportMode: "live",
	}})
	if err != nil {
		t.Fatal(err)
	}
	l.endpoint = made[0]
	return l
}

func (w *world) acquire(name string) *store.Lease {
	w.t.Helper()
	l, err := w.Acquire(w.t.Context(), name, store.LeaseTTL)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// asked is a requested grant.
func (l *lender) asked(change func(*store.NewGrant)) store.Grant {
	l.t.Helper()
	n := newGrant()
	if change != nil {
		change(&n)
	}
	g, err := l.CreateGrant(l.t.Context(), n)
	if err != nil {
		l.t.Fatal(err)
	}
	return g
}

// active is a grant that serves.
func (l *lender) active(change func(*store.NewGrant)) store.Grant {
	l.t.Helper()
	g := l.asked(change)
	if _, _, err := l.PrepareBudget(l.t.Context(), l.lease, g.ID, origin); err != nil {
		l.t.Fatal(err)
	}
	g, err := l.activate(g.ID)
	if err != nil {
		l.t.Fatal(err)
	}
	return g
}

func (l *lender) activate(id string) (store.Grant, error) {
	return l.ActivateGrant(l.t.Context(), l.lease, id, store.Activation{EndpointID: l.endpoint.ID, CredentialKind: "api_key"})
}

// A grant as a creator asks for it and as the next reader sees it.
func TestGrant_AsAsked(t *testing.T) {
	l := newLender(t)
	n := newGrant()
	n.RunID, n.OwnerID, n.BasePath, n.RemoteCIDR = "run-1", "owner-1", "/v1", "10.0.0.0/24"
	g, err := l.CreateGrant(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	want := n.Request
	want.MaxRequests = store.DefaultGrantRequests
	if diff := cmp.Diff(want, g.Request); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if g.State != store.GrantRequested || g.RunID != "run-1" || g.BasePath != "/v1" || g.ExpiresAt-g.CreatedAt != store.GrantLife.Milliseconds() {
		t.Errorf("got %+v", g)
	}
	if _, _, err := l.PrepareBudget(t.Context(), l.lease, g.ID, origin); err != nil {
		t.Fatal(err)
	}
	if g, err = l.activate(g.ID); err != nil || g.BaseURL != "http://host.docker.internal:4000/v1" || g.Origin != origin || g.TransportMode != "live" {
		t.Errorf("active: got %+v, %v", g, err)
	}
	found, ok, err := l.GrantStanding(t.Context(), n.CapabilitySHA256)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	want2 := store.Standing{GrantID: g.ID, CapabilitySHA256: n.CapabilitySHA256, State: store.GrantActive, ExpiresAt: g.ExpiresAt}
	if diff := cmp.Diff(want2, found); diff != "" {
		t.Errorf("by capability (-want +got):\n%s", diff)
	}
	if _, ok, err := l.GrantStanding(t.Context(), newGrant().CapabilitySHA256); ok || err != nil {
		t.Errorf("another capability: got %t, %v", ok, err)
	}
	of, err := l.GrantsOfRun(t.Context(), "run-1")
	if err != nil || len(of) != 1 {
		t.Errorf("of the run: got %d, %v", len(of), err)
	}
}

func TestGrant_NotAskable(t *testing.T) {
	w := newWorld(t)
	digest := "sha256:" + strings.Repeat("ab", 32)
	for name, tc := range map[string]struct {
		change func(*store.NewGrant)
		code   fault.Code
	}{
		"no model":             {func(n *store.NewGrant) { n.Request.Model = "" }, fault.ModelRequired},
		"long model":           {func(n *store.NewGrant) { n.Request.Model = strings.Repeat("m", 257) }, fault.InvalidArguments},
		"no capability":        {func(n *store.NewGrant) { n.CapabilitySHA256 = [32]byte{} }, fault.InvalidArguments},
		"effort":               {func(n *store.NewGrant) { n.Request.ReasoningEffort = "max" }, fault.InvalidArguments},
		"too many requests":    {func(n *store.NewGrant) { n.Request.MaxRequests = 10_001 }, fault.InvalidArguments},
		"negative requests":    {func(n *store.NewGrant) { n.Request.MaxRequests = -1 }, fault.InvalidArguments},
		"negative tokens":      {func(n *store.NewGrant) { n.Request.MaxTotalTokens = -1 }, fault.InvalidArguments},
		"endpoint":             {func(n *store.NewGrant) { n.Request.Endpoint = "udp" }, fault.InvalidArguments},
		"short life":           {func(n *store.NewGrant) { n.Life = time.Millisecond }, fault.InvalidArguments},
		"long life":            {func(n *store.NewGrant) { n.Life = 25 * time.Hour }, fault.InvalidArguments},
		"base path":            {func(n *store.NewGrant) { n.BasePath = "/v2" }, fault.InvalidArguments},
		"relative credential":  {func(n *store.NewGrant) { n.CredentialRef = "auth.json" }, fault.InvalidArguments},
		"long path":            {func(n *store.NewGrant) { n.CredentialRef = "/" + strings.Repeat("p", 4096) }, fault.InvalidArguments},
		"long label":           {func(n *store.NewGrant) { n.RunID = strings.Repeat("r", 129) }, fault.InvalidArguments},
		"digest":               {func(n *store.NewGrant) { n.Request.RequestBindingDigest, n.Request.LedgerFile = "sha256:AB", "/l" }, fault.InvalidArguments},
		"digest without file":  {func(n *store.NewGrant) { n.Request.RequestBindingDigest = digest }, fault.InvalidArguments},
		"file without digest":  {func(n *store.NewGrant) { n.Request.LedgerFile = "/l" }, fault.InvalidArguments},
		"relative ledger":      {func(n *store.NewGrant) { n.Request.RequestBindingDigest, n.Request.LedgerFile = digest, "l" }, fault.InvalidArguments},
		"initialise of no run": {func(n *store.NewGrant) { n.Request.Initialize = true }, fault.InvalidArguments},
		"a lost lease": {func(n *store.NewGrant) {
			n.Creator = w.acquire("kitrun/x")
			if err := w.Release(t.Context(), n.Creator); err != nil {
				t.Fatal(err)
			}
		}, fault.LeaseLost},
	} {
		t.Run(name, func(t *testing.T) {
			n := newGrant()
			tc.change(&n)
			if _, err := w.CreateGrant(t.Context(), n); !fault.Is(err, tc.code) {
				t.Errorf("got %v, want %s", err, tc.code)
			}
		})
	}
	if open, err := w.OpenGrants(t.Context()); err != nil || len(open) != 0 {
		t.Errorf("%d rows, %v", len(open), err)
	}
}

// A row that cannot be understood isolates itself: it is listed, and names no model.
func TestGrant_UnknownRequest(t *testing.T) {
	l := newLender(t)
	good, bad := l.active(nil), l.active(nil)
	if _, err := l.raw().Exec(`UPDATE broker_grants SET request = '{"model":7}' WHERE grant_id = ?`, bad.ID); err != nil {
		t.Fatal(err)
	}
	all, err := l.OpenGrants(t.Context())
	if err != nil || len(all) != 2 {
		t.Fatalf("got %d, %v", len(all), err)
	}
	for _, g := range all {
		if (g.Request.Model != "") != (g.ID == good.ID) {
			t.Errorf("%s: names %q", g.ID, g.Request.Model)
		}
	}
}

// Every move from every state: only those of broker §4 happen, all others are
// grant_closed and change nothing.
func TestGrant_Moves(t *testing.T) {
	type move func(l *lender, id string) (store.Grant, error)
	moves := map[string]move{
		"activate": func(l *lender, id string) (store.Grant, error) {
			if _, _, err := l.PrepareBudget(t.Context(), l.lease, id, origin); err != nil {
				return store.Grant{}, err
			}
			return l.activate(id)
		},
		"refuse": func(l *lender, id string) (store.Grant, error) {
			return l.RefuseGrant(t.Context(), l.lease, id, store.Refusal{Code: fault.CredentialExpired})
		},
		"withdraw": func(l *lender, id string) (store.Grant, error) {
			return l.WithdrawGrant(t.Context(), l.lease, id, "expired")
		},
		"close":  func(l *lender, id string) (store.Grant, error) { return l.BeginClose(t.Context(), l.lease, id, "done") },
		"finish": func(l *lender, id string) (store.Grant, error) { return l.FinishClose(t.Context(), l.lease, id) },
	}
	reach := map[string][]string{
		store.GrantRequested: {}, store.GrantActive: {"activate"}, store.GrantRefused: {"refuse"}, store.GrantExpired: {"withdraw"},
		store.GrantClosing: {"activate", "close"}, store.GrantClosed: {"activate", "close", "finish"},
	}
	allowed := map[string]map[string]string{
		store.GrantRequested: {"activate": store.GrantActive, "refuse": store.GrantRefused, "withdraw": store.GrantExpired},
		store.GrantActive:    {"close": store.GrantClosing},
		store.GrantClosing:   {"finish": store.GrantClosed},
	}
	l := newLender(t)
	for from, path := range reach {
		for name, m := range moves {
			t.Run(from+" "+name, func(t *testing.T) {
				g := l.asked(nil)
				for _, p := range path {
					var err error
					if g, err = moves[p](l, g.ID); err != nil {
						t.Fatal(err)
					}
				}
				if g.State != from {
					t.Fatalf("begins %s, want %s", g.State, from)
				}
				got, err := m(l, g.ID)
				if want, ok := allowed[from][name]; ok {
					if err != nil || got.State != want {
						t.Errorf("got %s, %v, want %s", got.State, err, want)
					}
					return
				}
				now, readErr := l.Grant(t.Context(), g.ID)
				if readErr != nil {
					t.Fatal(readErr)
				}
				if !fault.Is(err, fault.GrantClosed) || now.Revision != g.Revision {
					t.Errorf("got %v, revision %d to %d", err, g.Revision, now.Revision)
				}
			})
		}
	}
}

// No move happens without the lease, and none under one that was lost.
func TestGrant_Fenced(t *testing.T) {
	l := newLender(t)
	g := l.active(nil)
	asked := l.asked(nil)
	old := l.lease
	l.clk.add(store.LeaseTTL + time.Second)
	other := l.open("brokerd/2/2/y")
	if _, err := other.Acquire(t.Context(), store.BrokerdLease(), store.LeaseTTL); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"close":     second(l.BeginClose(t.Context(), old, g.ID, "x")),
		"finish":    second(l.FinishClose(t.Context(), old, g.ID)),
		"refuse":    second(l.RefuseGrant(t.Context(), old, asked.ID, store.Refusal{Code: fault.CredentialExpired})),
		"withdraw":  second(l.WithdrawGrant(t.Context(), old, asked.ID, "x")),
		"endpoints": l.EndEndpoints(t.Context(), old),
		"open":      second(l.OpenEndpoints(t.Context(), old, nil)),
		"interrupt": second(l.InterruptRequests(t.Context(), old)),
		"purge":     second(l.PurgeGrants(t.Context(), old)),
		"budget":    third(l.PrepareBudget(t.Context(), old, asked.ID, origin)),
	} {
		if !fault.Is(err, fault.LeaseLost) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	answers, err := l.CommitRequests(t.Context(), old, store.RequestBatch{Drafts: []store.RequestDraft{draft(g.ID)}})
	if err != nil || answers[0].Result != store.DraftFenced {
		t.Errorf("draft: got %+v, %v", answers, err)
	}
	if g, err := l.Grant(t.Context(), g.ID); err != nil || g.TotalForwarded != 0 {
		t.Errorf("%d spent, %v", g.TotalForwarded, err)
	}
}

func second[T any](_ T, err error) error      { return err }
func third[T, U any](_ T, _ U, e error) error { return e }

// A wish to close works with its commit, whoever is there to act on it; the first
// reason stays, and only two reasons make states of their own.
func TestGrant_RequestClose(t *testing.T) {
	for reason, state := range map[string]string{
		store.CloseRevoked: store.GrantRevoked, store.CloseExpired: store.GrantExpired, "run_ended": store.GrantClosed,
	} {
		l := newLender(t)
		g := l.active(nil)
		if !g.Authorises(l.clk.now().UnixMilli()) {
			t.Fatal("an active grant does not authorise")
		}
		g, err := l.RequestClose(t.Context(), g.ID, reason)
		if err != nil || g.State != store.GrantActive || g.Authorises(l.clk.now().UnixMilli()) {
			t.Fatalf("asked: got %+v, %v", g, err)
		}
		again, err := l.RequestClose(t.Context(), g.ID, "another")
		if err != nil || again.CloseReason != reason || again.Revision != g.Revision {
			t.Errorf("again: got %+v, %v", again, err)
		}
		if _, err := l.BeginClose(t.Context(), l.lease, g.ID, "third"); err != nil {
			t.Fatal(err)
		}
		g, err = l.FinishClose(t.Context(), l.lease, g.ID)
		if err != nil || g.State != state || g.CloseReason != reason || g.ClosedAt == 0 {
			t.Errorf("%s: got %s, %s, %v", reason, g.State, g.CloseReason, err)
		}
		if after, err := l.RequestClose(t.Context(), g.ID, "late"); err != nil || after.State != state || after.CloseReason != reason {
			t.Errorf("after the end: got %+v, %v", after, err)
		}
	}
	l := newLender(t)
	g := l.asked(nil)
	if _, err := l.RequestClose(t.Context(), g.ID, "not_taken_out"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.PrepareBudget(t.Context(), l.lease, g.ID, origin); err != nil {
		t.Fatal(err)
	}
	if _, err := l.activate(g.ID); !fault.Is(err, fault.GrantClosed) {
		t.Errorf("activate what was given up: got %v", err)
	}
}

// What has a brokerd look closer between two bells.
func TestGrant_Waiting(t *testing.T) {
	l := newLender(t)
	want := func(when string, want bool) {
		t.Helper()
		if got, err := l.GrantsWaiting(t.Context()); err != nil || got != want {
			t.Errorf("%s: got %t, %v", when, got, err)
		}
	}
	want("nothing there", false)
	g := l.active(nil)
	want("one is served", false)
	asked := l.asked(nil)
	want("one is asked for", true)
	if _, err := l.RefuseGrant(t.Context(), l.lease, asked.ID, store.Refusal{Code: fault.CredentialExpired}); err != nil {
		t.Fatal(err)
	}
	want("it was refused", false)
	l.clk.step(store.GrantLife)
	want("one is over", true)
	if _, err := l.BeginClose(t.Context(), l.lease, g.ID, store.CloseExpired); err != nil {
		t.Fatal(err)
	}
	want("it closes", true)
	if _, err := l.FinishClose(t.Context(), l.lease, g.ID); err != nil {
		t.Fatal(err)
	}
	want("it is closed", false)
}

// What a creator waits for, and what it is told.
func TestGrant_Await(t *testing.T) {
	l := newLender(t)
	ctx := t.Context()
	if _, err := l.AwaitGrant(ctx, l.asked(nil).ID, 20*time.Millisecond); !fault.Is(err, fault.BrokerUnavailable) {
		t.Errorf("nobody there: got %v", err)
	}
	if g, err := l.AwaitGrant(ctx, l.active(nil).ID, time.Minute); err != nil || g.BaseURL == "" {
		t.Errorf("active: got %+v, %v", g, err)
	}
	refused := l.asked(nil)
	if _, err := l.RefuseGrant(ctx, l.lease, refused.ID, store.Refusal{Code: fault.CredentialPermissions}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AwaitGrant(ctx, refused.ID, time.Minute); !fault.Is(err, fault.CredentialPermissions) {
		t.Errorf("refused: got %v", err)
	}
	why := l.asked(nil)
	if _, err := l.RefuseGrant(ctx, l.lease, why.ID, store.Refusal{Code: fault.CredentialUnavailable, Why: "it is empty", Hint: "fill it"}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AwaitGrant(ctx, why.ID, time.Minute); !fault.Is(err, fault.CredentialUnavailable) {
		t.Errorf("refused: got %v", err)
	} else if f, _ := fault.As(err); f.Message != "take out grant "+why.ID+": brokerd refuses it: it is empty" || f.Hint != "fill it" {
		t.Errorf("refused with a reason: got %q, %q", f.Message, f.Hint)
	}
	withdrawn := l.asked(nil)
	if _, err := l.WithdrawGrant(ctx, l.lease, withdrawn.ID, "creator_gone"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AwaitGrant(ctx, withdrawn.ID, time.Minute); !fault.Is(err, fault.GrantClosed) {
		t.Errorf("withdrawn: got %v", err)
	}
	open := l.active(nil)
	if _, err := l.AwaitClosed(ctx, open.ID, 20*time.Millisecond); !fault.Is(err, fault.BrokerCloseUnconfirmed) {
		t.Errorf("close: got %v", err)
	}
	if g, err := l.AwaitClosed(ctx, withdrawn.ID, time.Minute); err != nil || g.Open() {
		t.Errorf("closed: got %+v, %v", g, err)
	}
}

// A grant ends with its creator, when that is proven; time alone proves it only for
// a process that cannot be seen.
func TestGrant_CreatorGone(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(l *lender, creator *store.Lease)
		want   bool
	}{
		"lives":    {func(*lender, *store.Lease) {}, false},
		"stopped":  {func(l *lender, _ *store.Lease) { l.clk.add(time.Hour) }, false},
		"dead":     {func(l *lender, c *store.Lease) { l.gone[c.Holder] = true }, true},
		"released": {func(l *lender, c *store.Lease) { _ = l.Release(t.Context(), c) }, true},
		"rebooted": {func(l *lender, _ *store.Lease) { l.clk.reboot("boot-b") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLender(t)
			creator := l.acquire("kitrun/i-1")
			g := l.asked(func(n *store.NewGrant) { n.Creator = creator })
			tc.change(l, creator)
			if got, err := l.CreatorGone(t.Context(), g); err != nil || got != tc.want {
				t.Errorf("got %t, %v", got, err)
			}
			if got, err := l.CreatorGone(t.Context(), l.asked(nil)); err != nil || got {
				t.Errorf("operator: got %t, %v", got, err)
			}
		})
	}
}

// The next brokerd's endpoint takes over the grants of the old one where it is the
// same to a worker.
func TestEndpoints_Follow(t *testing.T) {
	for name, tc := range map[string]struct {
		fresh store.NewEndpoint
		want  bool
	}{
		"same":            {store.NewEndpoint{BindAddress: "10.0.0.1", Port: 4000, BaseURL: "http://host.docker.internal:4000", TransportMode: "live"}, true},
		"another address": {store.NewEndpoint{BindAddress: "10.0.0.2", Port: 4000, BaseURL: "http://host.docker.internal:4000", TransportMode: "live"}, true},
		"another port":    {store.NewEndpoint{BindAddress: "10.0.0.1", Port: 4001, BaseURL: "http://host.docker.internal:4001", TransportMode: "live"}, false},
		"test upstream":   {store.NewEndpoint{BindAddress: "10.0.0.1", Port: 4000, BaseURL: "http://host.docker.internal:4000", TransportMode: "mocked-test-only"}, false},
		"a socket":        {store.NewEndpoint{BindAddress: "unix:/s", BaseURL: "http://host.docker.internal:4000", TransportMode: "live"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLender(t)
			g := l.active(nil)
			made, err := l.OpenEndpoints(t.Context(), l.lease, []store.NewEndpoint{tc.fresh})
			if err != nil {
				t.Fatal(err)
			}
			g, err = l.Grant(t.Context(), g.ID)
			if err != nil || (g.EndpointID == made[0].ID) != tc.want {
				t.Errorf("got endpoint %s of %s, %v, want followed %t", g.EndpointID, made[0].ID, err, tc.want)
			}
			live, err := l.Endpoints(t.Context())
			if err != nil || len(live) != 1 || live[0].ID != made[0].ID {
				t.Errorf("live: got %+v, %v", live, err)
			}
			if err := l.EndEndpoints(t.Context(), l.lease); err != nil {
				t.Fatal(err)
			}
			if live, err := l.Endpoints(t.Context()); err != nil || len(live) != 0 {
				t.Errorf("ended: got %+v, %v", live, err)
			}
		})
	}
}

// What ended a month ago goes, in batches; the budget of a registered run stays.
func TestGrant_Purge(t *testing.T) {
	l := newLender(t)
	ctx := t.Context()
	old := l.active(func(n *store.NewGrant) { n.Request.MaxRequests = 1200 })
	var batch store.RequestBatch
	for range 1200 {
		batch.Drafts = append(batch.Drafts, draft(old.ID))
	}
	if _, err := l.CommitRequests(ctx, l.lease, batch); err != nil {
		t.Fatal(err)
	}
	registered := l.active(registeredRun(true))
	for _, id := range []string{old.ID, registered.ID} {
		if _, err := l.BeginClose(ctx, l.lease, id, "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := l.FinishClose(ctx, l.lease, id); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.NoteBroker(ctx, old.ID, "credential_reread", ""); err != nil {
		t.Fatal(err)
	}
	if events, err := l.BrokerEvents(ctx, old.ID); err != nil || len(events) != 1 || events[0].Code != "credential_reread" {
		t.Errorf("events: got %+v, %v", events, err)
	}
	made, err := l.OpenEndpoints(ctx, l.lease, []store.NewEndpoint{{BindAddress: "10.0.0.2", Port: 4001, BaseURL: "http://host.docker.internal:4001", TransportMode: "live"}})
	if err != nil {
		t.Fatal(err)
	}
	l.endpoint = made[0]
	kept := l.active(nil)
	l.clk.step(store.GrantKeep - time.Minute)
	if more, err := l.PurgeGrants(ctx, l.lease); err != nil || more {
		t.Errorf("too early: got more %t, %v", more, err)
	}
	if _, err := l.Grant(ctx, old.ID); err != nil {
		t.Fatal(err)
	}
	l.clk.step(2 * time.Minute)
	rounds := 1
	for more := true; more; rounds++ {
		var err error
		if more, err = l.PurgeGrants(ctx, l.lease); err != nil || rounds > 9 {
			t.Fatal(rounds, err)
		}
	}
	for id, want := range map[string]bool{old.ID: false, registered.ID: false, kept.ID: true} {
		if _, err := l.Grant(ctx, id); (err == nil) != want {
			t.Errorf("%s: got %v, want it kept %t", id, err, want)
		}
	}
	for id, want := range map[string]bool{old.BudgetID: false, registered.BudgetID: true, kept.BudgetID: true} {
		if _, err := l.Budget(ctx, id); (err == nil) != want {
			t.Errorf("budget %s: got %v, want it kept %t", id, err, want)
		}
	}
	if events, err := l.BrokerEvents(ctx, old.ID); err != nil || len(events) != 0 {
		t.Errorf("events: got %+v, %v", events, err)
	}
	var endpoints int
	if err := l.raw().QueryRow("SELECT count(*) FROM broker_endpoints").Scan(&endpoints); err != nil || endpoints != 1 {
		t.Errorf("%d endpoints, %v", endpoints, err)
	}
}

// registeredRun asks for the shared budget of one run.
func registeredRun(first bool) func(*store.NewGrant) {
	return func(n *store.NewGrant) {
		n.Request.RequestBindingDigest = "sha256:" + strings.Repeat("0d", 32)
		n.Request.LedgerFile, n.Request.Initialize, n.Request.MaxRequests = "/l/ledger.json", first, 7
	}
}

func draft(grantID string) store.RequestDraft {
	return store.RequestDraft{GrantID: grantID, Evidence: fmt.Appendf(nil, `{"seq":0,"grant_id":%q,"outcome":"reserved","status":null,"ended_at":null}`, grantID), StartedAt: 5}
}

package store_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// one asks for one reservation.
func (l *lender) one(id string) store.DraftAnswer {
	l.t.Helper()
	a, err := l.CommitRequests(l.t.Context(), l.lease, store.RequestBatch{Drafts: []store.RequestDraft{draft(id)}})
	if err != nil {
		l.t.Fatal(err)
	}
	return a[0]
}

func (l *lender) settle(e store.RequestEnd) {
	l.t.Helper()
	if e.Outcome == "" {
		e.Outcome = "completed"
	}
	if e.Evidence == nil {
		e.Evidence = fmt.Appendf(nil, `{"seq":%d,"outcome":%q}`, e.Seq, e.Outcome)
	}
	if _, err := l.CommitRequests(l.t.Context(), l.lease, store.RequestBatch{Settled: []store.RequestEnd{e}}); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lender) evidence(id string) (rows []string) {
	l.t.Helper()
	all, err := l.Evidence(l.t.Context(), id)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, r := range all {
		rows = append(rows, string(r))
	}
	return rows
}

// Proves broker 18.16 for the Store: twenty at once, and two writers, get exactly
// what the budget holds, numbered without a gap.
func TestRequests_Budget(t *testing.T) {
	l := newLender(t)
	g := l.active(func(n *store.NewGrant) { n.Request.MaxRequests = 5 })
	second := l.open(l.lease.Holder)
	var reserved, exhausted atomic.Int64
	var seen sync.Map
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			s := l.Store
			if i%2 == 1 {
				s = second
			}
			a, err := s.CommitRequests(t.Context(), l.lease, store.RequestBatch{Drafts: []store.RequestDraft{draft(g.ID)}})
			switch {
			case err != nil:
				t.Error(err)
			case a[0].Result == store.DraftReserved:
				reserved.Add(1)
				if _, twice := seen.LoadOrStore(a[0].Seq, true); twice || a[0].Seq < 1 || a[0].Seq > 5 {
					t.Errorf("seq %d", a[0].Seq)
				}
			case a[0].Result == store.DraftExhausted:
				exhausted.Add(1)
			}
		})
	}
	wait.Wait()
	if reserved.Load() != 5 || exhausted.Load() != 15 {
		t.Errorf("%d reserved, %d exhausted", reserved.Load(), exhausted.Load())
	}
	if rows := l.evidence(g.ID); len(rows) != 5 {
		t.Errorf("%d rows", len(rows))
	}
}

// One batch answers each draft by its own grant, and one refusal takes nothing from
// the others.
func TestRequests_BatchOfSeveral(t *testing.T) {
	l := newLender(t)
	rich, poor, closed := l.active(nil), l.active(func(n *store.NewGrant) { n.Request.MaxRequests = 1 }), l.active(nil)
	if _, err := l.RequestClose(t.Context(), closed.ID, "x"); err != nil {
		t.Fatal(err)
	}
	got, err := l.CommitRequests(t.Context(), l.lease, store.RequestBatch{
		Counts: []store.GrantCount{{GrantID: rich.ID, Received: 3, Refused: 1}},
		Drafts: []store.RequestDraft{draft(rich.ID), draft(poor.ID), draft(closed.ID), draft(poor.ID), draft(rich.ID)},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []store.DraftAnswer{{store.DraftReserved, 1}, {store.DraftReserved, 1}, {store.DraftClosed, 0}, {store.DraftExhausted, 0}, {store.DraftReserved, 2}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	g, err := l.Grant(t.Context(), rich.ID)
	if err != nil || g.Received != 3 || g.Refused != 1 || g.Forwarded != 2 || g.TotalForwarded != 2 {
		t.Errorf("got %+v, %v", g, err)
	}
	want2 := []string{
		fmt.Sprintf(`{"seq":1,"grant_id":%q,"outcome":"reserved","status":null,"ended_at":null}`, rich.ID),
		fmt.Sprintf(`{"seq":2,"grant_id":%q,"outcome":"reserved","status":null,"ended_at":null}`, rich.ID),
	}
	if diff := cmp.Diff(want2, l.evidence(rich.ID)); diff != "" {
		t.Errorf("evidence (-want +got):\n%s", diff)
	}
}

// Proves broker 18.23 for the Store: the clock alone ends a grant.
func TestRequests_Expired(t *testing.T) {
	l := newLender(t)
	g := l.active(func(n *store.NewGrant) { n.Life = time.Second })
	if a := l.one(g.ID); a.Result != store.DraftReserved {
		t.Fatal(a)
	}
	l.clk.step(time.Second)
	if a := l.one(g.ID); a.Result != store.DraftClosed {
		t.Errorf("got %+v", a)
	}
	g, err := l.Grant(t.Context(), g.ID)
	if err != nil || g.State != store.GrantActive || g.Authorises(l.clk.now().UnixMilli()) {
		t.Errorf("got %+v, %v", g, err)
	}
}

// A row is settled once; a batch that is given again counts nothing twice.
func TestRequests_SettledOnce(t *testing.T) {
	l := newLender(t)
	g := l.active(nil)
	a := l.one(g.ID)
	end := store.RequestEnd{GrantID: g.ID, Seq: a.Seq, Outcome: "completed", Evidence: []byte(`{"seq":1,"outcome":"completed"}`), EndedAt: 9, Input: 10, Output: 5}
	l.settle(end)
	l.settle(end)
	l.settle(store.RequestEnd{GrantID: g.ID, Seq: a.Seq, Outcome: "client_gone", Unmeasured: true})
	g, err := l.Grant(t.Context(), g.ID)
	if err != nil || g.MeasuredInput != 10 || g.MeasuredOutput != 5 || g.Unmeasured != 0 {
		t.Errorf("got %+v, %v", g, err)
	}
	if diff := cmp.Diff([]string{`{"seq":1,"outcome":"completed"}`}, l.evidence(g.ID)); diff != "" {
		t.Errorf("evidence (-want +got):\n%s", diff)
	}
	huge := l.one(g.ID)
	for range 3 {
		l.settle(store.RequestEnd{GrantID: g.ID, Seq: huge.Seq, Input: 1<<62 - 1, Output: 1<<53 - 1})
		huge = l.one(g.ID)
	}
	if g, err = l.Grant(t.Context(), g.ID); err != nil || g.MeasuredInput != 1<<62 {
		t.Errorf("sum: got %d, %v", g.MeasuredInput, err)
	}
}

// A ceiling of tokens is paid afterwards: the reservation after it was reached is
// refused. Unmeasured responses add nothing and are counted.
func TestRequests_TokenCeiling(t *testing.T) {
	l := newLender(t)
	g := l.active(func(n *store.NewGrant) { n.Request.MaxTotalTokens = 100 })
	for i, tc := range []struct {
		end  store.RequestEnd
		want string // of the draft before it
	}{
		{store.RequestEnd{Unmeasured: true}, store.DraftReserved},
		{store.RequestEnd{Input: 60, Output: 39}, store.DraftReserved},
		{store.RequestEnd{Input: 1}, store.DraftReserved},
		{store.RequestEnd{}, store.DraftExhausted},
	} {
		a := l.one(g.ID)
		if a.Result != tc.want {
			t.Fatalf("draft %d: got %+v, want %s", i, a, tc.want)
		}
		tc.end.GrantID, tc.end.Seq = g.ID, a.Seq
		l.settle(tc.end)
	}
	g, err := l.Grant(t.Context(), g.ID)
	if err != nil || g.Unmeasured != 1 || g.MeasuredInput+g.MeasuredOutput != 100 || g.TotalForwarded != 3 {
		t.Errorf("got %+v, %v", g, err)
	}
}

// With strict usage the first response without usage ends the grant in the commit
// that says so.
func TestRequests_StrictUsage(t *testing.T) {
	l := newLender(t)
	strict, lax := l.active(func(n *store.NewGrant) { n.Request.StrictUsage = true }), l.active(nil)
	for _, g := range []store.Grant{strict, lax} {
		l.settle(store.RequestEnd{GrantID: g.ID, Seq: l.one(g.ID).Seq, Unmeasured: true})
	}
	if a := l.one(strict.ID); a.Result != store.DraftClosed {
		t.Errorf("strict: got %+v", a)
	}
	if a := l.one(lax.ID); a.Result != store.DraftReserved {
		t.Errorf("lax: got %+v", a)
	}
	if g, err := l.Grant(t.Context(), strict.ID); err != nil || g.CloseReason != store.CloseUnmeasured {
		t.Errorf("got %q, %v", g.CloseReason, err)
	}
}

// Rows that are open when their grant ends are aborted by it; those that a dead
// brokerd left are interrupted. Both stay spent, and a late outcome changes nothing.
// Proves broker 18.17 for the Store.
func TestRequests_LeftOpen(t *testing.T) {
	l := newLender(t)
	closed, left := l.active(nil), l.active(nil)
	l.one(closed.ID)
	l.one(left.ID)
	if _, err := l.BeginClose(t.Context(), l.lease, closed.ID, "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.FinishClose(t.Context(), l.lease, closed.ID); err != nil {
		t.Fatal(err)
	}
	if n, err := l.InterruptRequests(t.Context(), l.lease); err != nil || n != 1 {
		t.Errorf("interrupted %d, %v", n, err)
	}
	now := l.clk.now().UnixMilli()
	for id, outcome := range map[string]string{closed.ID: store.RequestAborted, left.ID: store.RequestInterrupted} {
		l.settle(store.RequestEnd{GrantID: id, Seq: 1, Input: 3})
		want := []string{fmt.Sprintf(`{"seq":1,"grant_id":%q,"outcome":%q,"status":null,"ended_at":%d}`, id, outcome, now)}
		if diff := cmp.Diff(want, l.evidence(id)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", outcome, diff)
		}
		if g, err := l.Grant(t.Context(), id); err != nil || g.TotalForwarded != 1 || g.MeasuredInput != 0 {
			t.Errorf("%s: got %+v, %v", outcome, g, err)
		}
	}
}

// A commit that fails leaves nothing behind and is an error to whoever wants to
// forward. Proves broker 18.18 for the Store.
func TestRequests_CommitFails(t *testing.T) {
	l := newLender(t)
	g := l.active(nil)
	store.FailCommit(l.Store, errors.New("disk full"))
	if a, err := l.CommitRequests(t.Context(), l.lease, store.RequestBatch{Drafts: []store.RequestDraft{draft(g.ID)}}); err == nil || a != nil {
		t.Errorf("got %+v, %v", a, err)
	}
	store.FailCommit(l.Store, nil)
	if g, err := l.Grant(t.Context(), g.ID); err != nil || g.TotalForwarded != 0 || len(l.evidence(g.ID)) != 0 {
		t.Errorf("got %+v, %v", g, err)
	}
	if _, err := l.CommitRequests(t.Context(), l.lease, store.RequestBatch{Drafts: []store.RequestDraft{draft("bg_other")}}); !fault.Is(err, fault.NotFound) {
		t.Errorf("unknown grant: got %v", err)
	}
}

// The budget of a registered run outlives its sessions and takes no other terms.
// Proves broker 18.19 for the Store.
func TestBudget_Registered(t *testing.T) {
	l := newLender(t)
	ctx := t.Context()
	prepare := func(change ...func(*store.NewGrant)) (store.Budget, bool, error) {
		g := l.asked(func(n *store.NewGrant) {
			for _, c := range change {
				c(n)
			}
		})
		return l.PrepareBudget(ctx, l.lease, g.ID, origin)
	}
	if _, _, err := prepare(registeredRun(false)); !fault.Is(err, fault.BudgetMissing) {
		t.Errorf("resumed first: got %v", err)
	}
	first := l.asked(registeredRun(true))
	b, made, err := l.PrepareBudget(ctx, l.lease, first.ID, origin)
	if err != nil || !made || b.AnchorPath != "/l/ledger.json" || b.MaxRequests != 7 {
		t.Fatalf("got %+v, made %t, %v", b, made, err)
	}
	if again, made, err := l.PrepareBudget(ctx, l.lease, first.ID, origin); err != nil || !made || again.ID != b.ID {
		t.Errorf("after a crash: got %+v, made %t, %v", again, made, err)
	}
	if _, err := l.activate(first.ID); err != nil {
		t.Fatal(err)
	}
	l.one(first.ID)
	l.one(first.ID)
	if _, _, err := prepare(registeredRun(true)); !fault.Is(err, fault.BudgetExists) {
		t.Errorf("initialised twice: got %v", err)
	}
	for field, change := range map[string]func(*store.NewGrant){
		"model":            func(n *store.NewGrant) { n.Request.Model = "other" },
		"reasoning_effort": func(n *store.NewGrant) { n.Request.ReasoningEffort = "low" },
		"max_requests":     func(n *store.NewGrant) { n.Request.MaxRequests = 8 },
		"max_total_tokens": func(n *store.NewGrant) { n.Request.MaxTotalTokens = 8 },
		"ledger_file":      func(n *store.NewGrant) { n.Request.LedgerFile = "/l/other.json" },
	} {
		_, _, err := prepare(registeredRun(false), change)
		if f, ok := fault.As(err); !ok || f.Code != fault.BudgetMismatch || f.Details["field"] != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
	elsewhere := l.asked(registeredRun(false))
	if _, _, err := l.PrepareBudget(ctx, l.lease, elsewhere.ID, "https://other.example"); !fault.Is(err, fault.BudgetMismatch) {
		t.Errorf("origin: got %v", err)
	}
	other := func(n *store.NewGrant) { n.Request.RequestBindingDigest = "sha256:" + fmt.Sprintf("%064d", 1) }
	if _, _, err := prepare(registeredRun(false), other); !fault.Is(err, fault.BudgetMissing) {
		t.Errorf("another digest: got %v", err)
	}
	resumed := l.active(registeredRun(false))
	if resumed.Forwarded != 0 || resumed.TotalForwarded != 2 {
		t.Errorf("resumed: got %d of %d", resumed.Forwarded, resumed.TotalForwarded)
	}
	for range 5 {
		if a := l.one(resumed.ID); a.Result != store.DraftReserved {
			t.Fatal(a)
		}
	}
	if a := l.one(resumed.ID); a.Result != store.DraftExhausted {
		t.Errorf("got %+v", a)
	}
}

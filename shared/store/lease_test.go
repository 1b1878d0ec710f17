package store_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func TestLease_OneHolderUntilReleased(t *testing.T) {
	w := newWorld(t)
	other := w.open("watchd/2/2/x")
	l := w.lease("a")
	if !l.Live() || l.Check() != nil || l.Epoch != 1 {
		t.Errorf("got %+v", l)
	}
	_, err := other.Acquire(ctx, "a", store.LeaseTTL)
	wantCode(t, err, fault.LeaseHeld)
	if e, _ := fault.As(err); e.Details["holder"] != "bridge" {
		t.Errorf("details are %v", e.Details)
	}
	_, err = w.Acquire(ctx, "a", store.LeaseTTL) // the holder itself gets no second one
	wantCode(t, err, fault.LeaseHeld)
	if err := w.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	wantCode(t, l.Check(), fault.LeaseLost)
	if got := w.leaseOf(other, "a").Epoch; got != 2 {
		t.Errorf("epoch is %d, want 2", got)
	}
	if err := w.Release(ctx, l); err != nil { // of the past: changes nothing
		t.Fatal(err)
	}
	rows, err := w.Leases(ctx, "a")
	if err != nil || len(rows) != 1 || !rows[0].Live || rows[0].Holder != other.Holder() {
		t.Errorf("got %+v, %v", rows, err)
	}
}

func TestLease_Renew(t *testing.T) {
	w := newWorld(t)
	a, b := w.lease("a"), w.lease("b")
	w.clk.add(10 * time.Second)
	if lost, err := w.Renew(ctx, a, b); err != nil || len(lost) != 0 {
		t.Fatal(lost, err)
	}
	w.clk.add(12 * time.Second)
	if !a.Live() {
		t.Error("a renewed lease is not live")
	}
	w.clk.add(time.Second) // 2 s before its end
	if a.Live() {
		t.Error("an effect may start inside the margin")
	}
	if lost, err := w.Renew(ctx, a); err != nil || len(lost) != 0 || !a.Live() {
		t.Error(lost, err)
	}
	w.clk.add(2 * time.Second) // now b is over, a is not
	lost, err := w.Renew(ctx, a, b)
	if err != nil || len(lost) != 1 || lost[0] != b || b.Live() || !a.Live() {
		t.Errorf("lost %v, %v", lost, err)
	}
}

func TestLease_ProvenDeadHolderIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.lease("a")
	other := w.open("watchd/2/2/x")
	_, err := other.Acquire(ctx, "a", store.LeaseTTL)
	wantCode(t, err, fault.LeaseHeld)
	w.gone[w.Holder()] = true
	if got := w.leaseOf(other, "a").Epoch; got != 2 {
		t.Errorf("epoch is %d, want 2", got)
	}
}

func TestLease_KilledHolderIsReplaced(t *testing.T) {
	dir := t.TempDir() + "/s"
	s := mustOpen(t, dir)
	p := start(t, "hold", dir, "x")
	p.want("held")
	_, err := s.Acquire(ctx, "x", store.LeaseTTL)
	wantCode(t, err, fault.LeaseHeld)
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Await(ctx, "x", store.LeaseTTL, 5*time.Second); err != nil {
		t.Fatal(err)
	}
}

// Proves core 19.10 (leases): a step of the wall clock moves no lease, and a lease
// of another boot is free at once.
func TestLease_OnlyTheBootClockCounts(t *testing.T) {
	w := newWorld(t)
	l := w.lease("a")
	for _, step := range []time.Duration{-time.Hour, 5 * time.Hour} {
		w.clk.step(step)
		if lost, err := w.Renew(ctx, l); err != nil || len(lost) != 0 || !l.Live() {
			t.Errorf("after a step of %s: %v %v", step, lost, err)
		}
	}
	other := w.open("watchd/2/2/x")
	w.clk.reboot("boot-b")
	if l.Live() {
		t.Error("a lease of the last boot is live")
	}
	if lost, err := w.Renew(ctx, l); err != nil || len(lost) != 1 {
		t.Errorf("renew after the reboot: %v %v", lost, err)
	}
	if got := w.leaseOf(other, "a").Epoch; got != 2 {
		t.Errorf("epoch is %d, want 2", got)
	}
}

func TestLease_Await(t *testing.T) {
	w := newWorld(t)
	l := w.lease("a")
	other := w.open("watchd/2/2/x")
	_, err := other.Await(ctx, "a", store.LeaseTTL, 30*time.Millisecond)
	wantCode(t, err, fault.LeaseHeld)
	got := make(chan error, 1)
	go func() {
		_, err := other.Await(ctx, "a", store.LeaseTTL, 10*time.Second)
		got <- err
	}()
	if err := w.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
	cut, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := w.Await(cut, "a", store.LeaseTTL, time.Hour); err == nil {
		t.Error("a cancelled wait succeeds")
	}
}

// Proves core 19.4: between two processes there are never two holders, and epochs
// strictly grow.
func TestLease_TwoProcessesTenThousandTimes(t *testing.T) {
	dir := fastDir(t) + "/s"
	mustOpen(t, dir)
	const each = 5000
	a, b := start(t, "leases", dir, fmt.Sprint(each)), start(t, "leases", dir, fmt.Sprint(each))
	a.want("ready")
	b.want("ready")
	a.tell()
	b.tell()
	var last, other int64
	if _, err := fmt.Sscanf(a.line(), "last %d", &last); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(b.line(), "last %d", &other); err != nil {
		t.Fatal(err)
	}
	if got := max(last, other); got != 2*each {
		t.Errorf("the last epoch is %d, want %d", got, 2*each)
	}
	a.done()
	b.done()
}

// Proves core 19.5: a holder that was suspended past its time commits nothing,
// and its lease says that it may type nothing.
func TestLease_SuspendedHolderWritesNothing(t *testing.T) {
	dir := t.TempDir() + "/s"
	s := mustOpen(t, dir)
	p := start(t, "suspend", dir)
	p.want("prepared")
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	l, err := s.Await(ctx, store.TerminalLease("key-a"), store.TerminalTTL, 20*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	sub, err := s.AbortDispatch(ctx, l, "msg-1", "dispatcher_gone") // as the sweep does
	if err != nil || !sub.Dispatch.SafeToRetry {
		t.Fatal(sub, err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.tell()
	p.want("nothing")
	p.done()
}

// Against a model: whatever programs, time and reboots do, a lease has at most one
// holder, and only the last one's handle counts.
func TestLease_Model(t *testing.T) {
	w := newWorld(t)
	programs := []*store.Store{w.Store, w.open("watchd/2/2/x"), w.open("outboxd/3/3/x")}
	round, boots := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		type model struct {
			lease *store.Lease
			owner int
			until int64
			boot  string
		}
		state := map[string]*model{}
		var old []*store.Lease
		a, b := fmt.Sprintf("%d/a", round), fmt.Sprintf("%d/b", round)
		names := rapid.SampledFrom([]string{a, b})
		who := rapid.IntRange(0, 2)
		free := func(m *model) bool {
			boot, id := w.clk.bootTime()
			return m == nil || m.lease == nil || m.boot != id || m.until <= boot
		}
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				name, i := names.Draw(rt, "name"), who.Draw(rt, "who")
				m := state[name]
				l, err := programs[i].Acquire(ctx, name, store.LeaseTTL)
				if (err == nil) != free(m) {
					rt.Fatalf("acquire %s by %d: %v, free is %t", name, i, err, free(m))
				}
				if err != nil {
					return
				}
				if m != nil && m.lease != nil {
					old = append(old, m.lease)
					if l.Epoch <= m.lease.Epoch {
						rt.Fatalf("epoch %d after %d", l.Epoch, m.lease.Epoch)
					}
				}
				boot, id := w.clk.bootTime()
				state[name] = &model{l, i, boot + store.LeaseTTL.Milliseconds(), id}
			},
			"renew": func(rt *rapid.T) {
				m := state[names.Draw(rt, "name")]
				if m == nil {
					rt.Skip()
				}
				dead := free(m)
				lost, err := programs[m.owner].Renew(ctx, m.lease)
				if err != nil || (len(lost) == 1) != dead {
					rt.Fatalf("renew: %v %v, dead is %t", lost, err, dead)
				}
				if !dead {
					boot, _ := w.clk.bootTime()
					m.until = boot + store.LeaseTTL.Milliseconds()
				}
			},
			"release": func(rt *rapid.T) {
				name := names.Draw(rt, "name")
				m := state[name]
				if m == nil {
					rt.Skip()
				}
				if err := programs[m.owner].Release(ctx, m.lease); err != nil {
					rt.Fatal(err)
				}
				old = append(old, m.lease)
				m.until = 0
			},
			"time":   func(rt *rapid.T) { w.clk.add(time.Duration(rapid.IntRange(0, 20).Draw(rt, "s")) * time.Second) },
			"wall":   func(rt *rapid.T) { w.clk.step(time.Duration(rapid.IntRange(-9, 9).Draw(rt, "h")) * time.Hour) },
			"reboot": func(*rapid.T) { boots++; w.clk.reboot(fmt.Sprint("boot-", boots)) },
			"": func(rt *rapid.T) {
				for _, l := range old {
					if l.Live() {
						rt.Fatalf("the old lease %s of epoch %d is live", l.Name, l.Epoch)
					}
				}
				rows, err := w.Leases(ctx, fmt.Sprintf("%d/", round))
				if err != nil {
					rt.Fatal(err)
				}
				for _, r := range rows {
					if r.Live == free(state[r.Name]) {
						rt.Fatalf("row %+v, free is %t", r, free(state[r.Name]))
					}
				}
			},
		})
	})
}

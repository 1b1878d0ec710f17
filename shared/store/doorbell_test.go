package store_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"drawbridge/shared/store"
)

// Fifty commits of another process wake this one fifty times, within
// milliseconds.
func TestDoorbell_WakesAnotherProcess(t *testing.T) {
	dir := t.TempDir() + "/s"
	s := mustOpen(t, dir)
	bell := store.NewDoorbell(s, nil)
	wake, cancel := bell.Subscribe()
	defer cancel()
	run(t, bell.Run)
	const n = 50
	p := start(t, "commits", dir, fmt.Sprint(n), "ring")
	p.want("ready")
	settle(wake)
	var late []int64
	for range n {
		p.tell()
		select {
		case <-wake:
		case <-time.After(5 * time.Second):
			t.Fatal("not woken")
		}
		woken := time.Now().UnixMicro()
		began, err := strconv.ParseInt(p.line(), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		late = append(late, woken-began)
		settle(wake)
	}
	slices.Sort(late)
	t.Logf("from the begin of three commits to the wake: median %d µs, max %d µs", late[n/2], late[n-1])
	if median := late[n/2]; median > 100_000 {
		t.Errorf("median wake after %d µs", median)
	}
}

// settle waits until nothing rings for longer than a look at data_version takes.
func settle(wake <-chan struct{}) {
	for {
		select {
		case <-wake:
		case <-time.After(30 * time.Millisecond):
			return
		}
	}
}

// Renewals, offers and acquired leases ring no bell, or fifty monitors would wake
// everyone ten times a second.
func TestDoorbell_RenewalIsSilent(t *testing.T) {
	dir := t.TempDir() + "/s"
	s := mustOpen(t, dir)
	l, err := s.Acquire(ctx, "x", store.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	before := bellTime(t, dir)
	for range 20 {
		if lost, err := s.Renew(ctx, l); err != nil || len(lost) > 0 {
			t.Fatal(lost, err)
		}
	}
	if got := bellTime(t, dir); got != before {
		t.Error("a renewal touched the bell")
	}
	if err := s.Release(ctx, l); err != nil {
		t.Fatal(err)
	}
	if got := bellTime(t, dir); got == before {
		t.Error("a release did not touch the bell")
	}
}

func bellTime(t *testing.T, dir string) time.Time {
	t.Helper()
	st, err := os.Stat(dir + "/bell")
	if err != nil {
		t.Fatal(err)
	}
	return st.ModTime()
}

// A program that dies between commit and bell is heard within seconds.
func TestDoorbell_CommitWithoutBell(t *testing.T) {
	w := newWorld(t)
	bell := store.NewDoorbell(w.Store, nil)
	wake, cancel := bell.Subscribe()
	defer cancel()
	run(t, bell.Run)
	settle(wake)
	if _, err := w.raw().Exec(`INSERT INTO leases(name) VALUES ('x')`); err != nil {
		t.Fatal(err)
	}
	select {
	case <-wake:
	case <-time.After(10 * time.Second):
		t.Fatal("not woken")
	}
}

func TestDoorbell_WithoutFileNotification(t *testing.T) {
	defer store.NoNotification()()
	dir := t.TempDir() + "/s"
	s := mustOpen(t, dir)
	bell := store.NewDoorbell(s, nil)
	wake, cancel := bell.Subscribe()
	defer cancel()
	stop := run(t, bell.Run)
	defer stop()
	p := start(t, "commits", dir, "3", "ring")
	p.want("ready")
	for range 3 {
		settle(wake)
		p.tell()
		p.line()
		select {
		case <-wake:
		case <-time.After(10 * time.Second):
			t.Fatal("not woken")
		}
	}
}

func TestDoorbell_BellFileReplaced(t *testing.T) {
	w := newWorld(t)
	bell := store.NewDoorbell(w.Store, nil)
	wake, cancel := bell.Subscribe()
	defer cancel()
	run(t, bell.Run)
	settle(wake)
	if err := os.Remove(w.dir + "/bell"); err != nil {
		t.Fatal(err)
	}
	settle(wake)
	other := w.open("other/1/1/x") // makes the file again
	if err := other.Release(ctx, w.leaseOf(other, "x")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-wake:
	case <-time.After(10 * time.Second):
		t.Fatal("not woken")
	}
}

func TestDoorbell_SubscribersAreIndependent(t *testing.T) {
	w := newWorld(t)
	bell := store.NewDoorbell(w.Store, nil)
	a, cancelA := bell.Subscribe()
	b, cancelB := bell.Subscribe()
	defer cancelB()
	run(t, bell.Run)
	settle(a)
	settle(b)
	cancelA()
	if err := w.Release(ctx, w.lease("x")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b:
	case <-time.After(10 * time.Second):
		t.Fatal("not woken")
	}
	select {
	case <-a:
		t.Error("a cancelled subscriber is woken")
	default:
	}
}

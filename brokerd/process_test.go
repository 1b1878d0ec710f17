package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Proves broker 18.17: a crash between the commit of the reservation and the call
// leaves the request spent, its row interrupted, and the provider untouched; the next
// brokerd serves the grant on, at the same port.
func TestCrash_AfterTheReservation(t *testing.T) {
	w := newWorld(t)
	d := w.serve("DRAWBRIDGE_TEST_EXIT_AT=request_reserved")
	g := w.lend(func(n *store.NewGrant) { n.Request.MaxRequests = 2 })
	if _, err := g.send(t.Context(), body); err == nil {
		t.Error("an answer came")
	}
	d.exits(crashpoint.ExitCode)
	if g.now().State != store.GrantActive || w.seen() != 0 {
		t.Errorf("got %s, the provider saw %d", g.now().State, w.seen())
	}
	w.serve()
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestInterrupted}) {
		t.Errorf("got %v", got)
	}
	g.post(200)
	g.post(429)
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestInterrupted, "completed"}) || w.seen() != 1 {
		t.Errorf("got %v, the provider saw %d", got, w.seen())
	}
}

// The same by SIGKILL while the answer streams.
func TestCrash_KilledInAStream(t *testing.T) {
	w := newWorld(t)
	begun := w.held(t)
	d := w.serve()
	g := w.lend(nil)
	resp, err := g.send(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-begun
	d.signal(syscall.SIGKILL).exits(-1)
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the cut stream looks whole")
	}
	w.script(nil)
	w.serve()
	g.post(200)
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestInterrupted, "completed"}) {
		t.Errorf("got %v", got)
	}
}

// A crash at each further point: what the next brokerd makes of the grant.
func TestCrash_EachPoint(t *testing.T) {
	for _, tc := range []struct {
		point string
		state string // in the end
		posts int    // 200s that the grant gives under the next brokerd
	}{
		{"budget_prepared", store.GrantActive, 1},
		{"grant_activated", store.GrantActive, 1},
		{"request_settled", store.GrantActive, 1},
		{"grant_closing", store.GrantRevoked, 0},
		{"grant_closed", store.GrantRevoked, 0},
	} {
		t.Run(tc.point, func(t *testing.T) {
			w := newWorld(t)
			d := w.serve("DRAWBRIDGE_TEST_EXIT_AT=" + tc.point)
			g := w.ask(nil)
			switch tc.point {
			case "request_settled", "grant_closing", "grant_closed":
				g.Grant = g.becomes(store.GrantActive)
				if resp, err := g.send(t.Context(), body); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
			if tc.state == store.GrantRevoked {
				if _, err := w.RequestClose(t.Context(), g.ID, store.CloseRevoked); err != nil {
					t.Fatal(err)
				}
			}
			d.exits(crashpoint.ExitCode)
			w.serve()
			g.Grant = g.becomes(tc.state)
			if tc.posts > 0 {
				g.post(200)
			} else {
				g.post401(t)
			}
		})
	}
}

// Proves broker 18.32: SIGTERM with a running stream.
func TestStop_InAStream(t *testing.T) {
	w := newWorld(t)
	begun := w.held(t)
	d := w.serve()
	g, waiting := w.lend(nil), w.lend(nil)
	resp, err := g.send(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-begun
	begin := time.Now()
	d.signal(syscall.SIGTERM).told("STOPPING=1").exits(0)
	if took := time.Since(begin); took > 6*time.Second {
		t.Errorf("took %v", took)
	}
	for _, l := range []lent{g, waiting} {
		if got := l.now(); got.State != store.GrantClosed || got.CloseReason != "broker_shutdown" {
			t.Errorf("got %s, %q", got.State, got.CloseReason)
		}
	}
	if got := g.outcomes(); !slices.Equal(got, []string{store.RequestAborted}) {
		t.Errorf("got %v", got)
	}
	w.serve()
	if _, err := w.AwaitGrant(t.Context(), g.ID, time.Second); !fault.Is(err, fault.GrantClosed) {
		t.Errorf("a restart revived it: %v", err)
	}
}

// Proves broker 18.33: one brokerd for a Store, the next takes over from a dead one;
// and one whose owner has gone serves another creator's grant to its end.
func TestTwo_OneStore(t *testing.T) {
	w := newWorld(t)
	first := w.serve()
	g := w.lend(nil)
	w.start(false).exits(75)
	g.post(200)
	first.signal(syscall.SIGKILL).exits(-1)
	w.serve()
	g.post(200)
}

func TestOrphan_ServesOthers(t *testing.T) {
	w := newWorld(t)
	d := w.start(true).told("READY=1")
	mine, theirs := w.creates("kitrun/mine"), w.creates("kitrun/theirs")
	own := w.lend(func(n *store.NewGrant) { n.Creator = mine })
	other := w.lend(func(n *store.NewGrant) { n.Creator = theirs })
	d.cut()
	if err := w.Release(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	if end := own.becomes(store.GrantClosed); end.CloseReason != "creator_gone" {
		t.Errorf("got %q", end.CloseReason)
	}
	other.post(200)
	late := w.lend(func(n *store.NewGrant) { n.Creator = theirs }) // it still takes up what others ask for
	late.post(200)
	for _, l := range []lent{other, late} {
		if _, err := w.RequestClose(t.Context(), l.ID, "run_ended"); err != nil {
			t.Fatal(err)
		}
	}
	d.exits(0)
	for _, l := range []lent{other, late} {
		if got := l.now(); got.CloseReason != "run_ended" {
			t.Errorf("got %q", got.CloseReason)
		}
	}
	rows, err := w.Leases(t.Context(), store.BrokerdLease())
	if err != nil || rows[0].Live {
		t.Errorf("lease: %+v, %v", rows, err)
	}
}

// A creator that is killed takes its grant with it, with what runs under it, and no
// other's.
func TestCreator_Killed(t *testing.T) {
	w := newWorld(t)
	begun := w.held(t)
	w.serve()
	other := w.lend(nil)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, w.auth)
	cmd.Env = []string{creatorVariable + "=" + w.dir}
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	g := lent{w: w}
	var failure string
	if _, err := fmt.Fscanln(out, &g.ID, &g.capability, &failure); err != nil || failure != "<nil>" {
		t.Fatal(err, failure)
	}
	g.Grant = g.now()
	resp, err := g.send(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-begun
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	begin := time.Now()
	if end := g.becomes(store.GrantClosed); end.CloseReason != "creator_gone" {
		t.Errorf("got %q", end.CloseReason)
	}
	if took := time.Since(begin); took > 6*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the cut stream looks whole")
	}
	g.post401(t)
	w.script(nil)
	other.post(200)
}

// A brokerd that is stopped loses its lease; when it wakes up, the Store's next one
// serves, and the old one forwards nothing more and ends.
func TestTwo_StoppedTooLong(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.serve()
	g := w.lend(nil)
	first.signal(syscall.SIGSTOP)
	eventually(t, "the lease is over", func() bool {
		rows, err := w.Leases(t.Context(), store.BrokerdLease())
		return err == nil && !rows[0].Live
	})
	second := w.serve()
	if end := g.becomes(store.GrantClosed); end.CloseReason != "endpoint_lost" {
		t.Errorf("got %q", end.CloseReason)
	}
	other := w.lend(nil)
	first.signal(syscall.SIGCONT)
	first.exits(75)
	g.BaseURL = other.BaseURL
	g.post401(t)
	other.post(200)
	second.signal(syscall.SIGTERM).exits(0)
}

// A sibling with nothing lent ends with its owner, and leaves a wish that came too
// late to the next one.
func TestOrphan_NothingLent(t *testing.T) {
	w := newWorld(t)
	d := w.start(true).told("READY=1")
	d.signal(syscall.SIGINT) // meant for its owner
	w.lend(nil).close()
	d.cut()
	d.exits(0)
	late := w.ask(nil)
	if late.now().State != store.GrantRequested {
		t.Errorf("got %s", late.now().State)
	}
	w.serve()
	late.becomes(store.GrantActive)
}

func (l lent) close() store.Grant {
	l.w.t.Helper()
	if _, err := l.w.RequestClose(context.Background(), l.ID, "run_ended"); err != nil {
		l.w.t.Fatal(err)
	}
	g, err := l.w.AwaitClosed(context.Background(), l.ID, store.CloseWait)
	if err != nil {
		l.w.t.Fatal(err)
	}
	return g
}

// creates takes a lease as a kitrun does.
func (w *world) creates(name string) *store.Lease {
	w.t.Helper()
	l, err := w.Acquire(context.Background(), name, time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// A grant whose endpoint the next brokerd does not have is closed and says so.
func TestCrash_EndpointLost(t *testing.T) {
	w := newWorld(t)
	d := w.serve()
	g := w.lend(nil)
	d.signal(syscall.SIGKILL).exits(-1)
	w.serve("-listen", "unix:"+filepath.Join(w.home, "s", "b.sock"))
	if end := g.becomes(store.GrantClosed); end.CloseReason != "endpoint_lost" {
		t.Errorf("got %q", end.CloseReason)
	}
}

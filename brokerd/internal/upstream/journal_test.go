package upstream_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/brokerd/internal/upstream"
)

// recorder is a Ledger that notes what each commit was given.
type recorder struct {
	mu      sync.Mutex
	batches []string
	seq     int64
	fail    error
	hold    chan struct{} // each commit waits for one; nil: none
}

func (r *recorder) Lookup(context.Context, [32]byte) (upstream.Grant, bool, error) {
	return upstream.Grant{}, false, nil
}

func (r *recorder) Commit(_ context.Context, b upstream.Batch) ([]upstream.Answer, error) {
	if r.hold != nil {
		<-r.hold
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	note := ""
	for _, e := range b.Settled {
		note += fmt.Sprint("end", e.Seq, " ")
	}
	for _, c := range b.Counts {
		note += fmt.Sprint(c.GrantID, "+", c.Received, "/", c.Refused, " ")
	}
	r.batches = append(r.batches, note+fmt.Sprint(len(b.Drafts)))
	if r.fail != nil {
		return nil, r.fail
	}
	answers := make([]upstream.Answer, len(b.Drafts))
	for i := range answers {
		r.seq++
		answers[i].Seq = r.seq
	}
	return answers, nil
}

func (r *recorder) seen() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.batches...)
}

// journal runs f beside a running Journal, in a time of its own.
func journal(t *testing.T, r *recorder, f func(j *upstream.Journal)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		j := upstream.NewJournal(r, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- j.Run(ctx) }()
		f(j)
		cancel()
		if err := <-ended; err != nil && r.fail == nil {
			t.Errorf("Run = %v", err)
		}
	})
}

func check(t *testing.T, r *recorder, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, r.seen()); diff != "" {
		t.Errorf("commits (-want +got):\n%s", diff)
	}
}

// A reservation waits for nothing else; rows that end in a short time are one commit.
// What the answers cost stands before the next reservation of a grant that depends on it.
func TestJournal_OneCommit(t *testing.T) {
	for _, c := range []struct {
		grant upstream.Grant
		want  []string
	}{
		{upstream.Grant{}, []string{"1", "1", "1", "end1 end2 end3 g+3/0 0"}},
		{upstream.Grant{Measured: true}, []string{"g+1/0 1", "end1 g+1/0 1", "end2 g+1/0 1", "end3 0"}},
	} {
		r := &recorder{}
		journal(t, r, func(j *upstream.Journal) {
			for i := range int64(3) {
				j.Count(upstream.Count{GrantID: "g", Received: 1})
				a, err := j.Reserve(t.Context(), upstream.Draft{Grant: c.grant})
				if err != nil || a.Seq != i+1 {
					t.Errorf("Reserve = %+v, %v", a, err)
				}
				j.Settle(upstream.Evidence{Seq: a.Seq})
			}
			time.Sleep(2 * upstream.Lag)
			synctest.Wait()
		})
		check(t, r, c.want...)
	}
}

// Nothing waits longer than it may, and what waits for less takes the rest along.
func TestJournal_Lag(t *testing.T) {
	r := &recorder{}
	journal(t, r, func(j *upstream.Journal) {
		at := func(d time.Duration, want int) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if n := len(r.seen()); n != want {
				t.Errorf("%d commits, want %d", n, want)
			}
		}
		j.Count(upstream.Count{GrantID: "g", Received: 1})
		j.Count(upstream.Count{GrantID: "g", Refused: 1})
		at(upstream.CountLag-time.Millisecond, 0)
		at(time.Millisecond, 1)
		j.Count(upstream.Count{GrantID: "g", Received: 2})
		at(upstream.CountLag/2, 1)
		j.Settle(upstream.Evidence{Seq: 1})
		at(upstream.Lag-time.Millisecond, 1)
		at(time.Millisecond, 2)
		at(time.Hour, 2) // nothing to do, nothing done
		j.Settle(upstream.Evidence{Seq: 2})
		j.Count(upstream.Count{GrantID: "h", Refused: 1})
	})
	check(t, r, "g+1/1 0", "end1 g+2/0 0", "end2 h+0/1 0") // the last when Run ends
}

// Many rows that end together are written a few at a time, so that a reservation stands
// behind few, and Flush waits for all of them.
func TestJournal_Many(t *testing.T) {
	r := &recorder{}
	journal(t, r, func(j *upstream.Journal) {
		for i := range int64(20) {
			j.Settle(upstream.Evidence{Seq: i})
		}
		if err := j.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		if len(r.seen()) != 2 {
			t.Errorf("commits %q", r.seen())
		}
	})
	first := ""
	for i := range 16 {
		first += fmt.Sprint("end", i, " ")
	}
	check(t, r, first+"0", "end16 end17 end18 end19 0")
}

// Reservations that come while a commit runs share the next one.
func TestJournal_Together(t *testing.T) {
	r := &recorder{}
	journal(t, r, func(j *upstream.Journal) {
		r.hold = make(chan struct{})
		answers := make(chan int64, 100)
		reserve := func(n int) {
			for range n {
				go func() {
					a, err := j.Reserve(t.Context(), upstream.Draft{})
					if err != nil {
						t.Error(err)
					}
					answers <- a.Seq
				}()
			}
			synctest.Wait()
		}
		reserve(1)
		reserve(70)
		flushed := make(chan error)
		go func() { flushed <- j.Flush(t.Context()) }()
		synctest.Wait()
		r.hold <- struct{}{}
		synctest.Wait()
		if len(answers) != 1 {
			t.Errorf("%d are answered by the first commit", len(answers))
		}
		r.hold <- struct{}{}
		r.hold <- struct{}{}
		if err := <-flushed; err != nil {
			t.Error(err)
		}
		all := map[int64]bool{}
		for range 71 {
			all[<-answers] = true
		}
		if len(all) != 71 {
			t.Errorf("%d different answers", len(all))
		}
	})
	check(t, r, "1", "64", "6")
}

// What a failed commit did not write is written later; a reservation in it is not made
// again.
func TestJournal_Fails(t *testing.T) {
	r := &recorder{fail: errors.New("disk full")}
	journal(t, r, func(j *upstream.Journal) {
		j.Settle(upstream.Evidence{Seq: 1})
		j.Count(upstream.Count{GrantID: "g", Received: 1})
		if _, err := j.Reserve(t.Context(), upstream.Draft{Grant: upstream.Grant{Measured: true}}); err == nil {
			t.Error("no error")
		}
		j.Settle(upstream.Evidence{Seq: 2})
		if err := j.Flush(t.Context()); err == nil {
			t.Error("no error")
		}
		r.mu.Lock()
		r.fail = nil
		r.mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
	})
	check(t, r, "end1 g+1/0 1", "end1 end2 g+1/0 0", "end1 end2 g+1/0 0")
}

// A Ledger that fails is tried again after a pause, also when more rows wait than one
// commit takes.
func TestJournal_FailsMany(t *testing.T) {
	r := &recorder{fail: errors.New("disk full")}
	journal(t, r, func(j *upstream.Journal) {
		for seq := range int64(40) {
			j.Settle(upstream.Evidence{Seq: seq})
		}
		time.Sleep(time.Second)
		r.mu.Lock()
		r.fail = nil
		r.mu.Unlock()
		if n := len(r.seen()); n < 3 || n > 5 {
			t.Errorf("tried %d times within a second", n)
		}
		if err := j.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

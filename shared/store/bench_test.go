package store_test

import (
	"database/sql"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/store"
)

// BenchmarkUnit is the CPU side of one delivery: claim, start and settle in memory,
// without the disk.
func BenchmarkUnit(b *testing.B) {
	b.Run("store", func(b *testing.B) {
		w := newWorld(b)
		w.fill([]string{"s"}, b.N)
		l := w.lease("outboxd/test")
		f := store.RouteFamily{ProfileID: "profile", ControllerSessionID: "s"}
		before := cpuTime()
		b.ResetTimer()
		for range b.N {
			c, ok, err := w.ClaimCallback(ctx, l, f, 0)
			if err != nil || !ok {
				b.Fatal(ok, err)
			}
			if err := w.MarkStarted(ctx, l, c.DeliveryID, c.AttemptID); err != nil {
				b.Fatal(err)
			}
			if _, err := w.SettleCallback(ctx, store.Outcome{DeliveryID: c.DeliveryID, AttemptID: c.AttemptID, Disposition: store.Accepted, AcceptanceID: "a"}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
	})
	b.Run("raw", func(b *testing.B) {
		w := newWorld(b)
		w.fill([]string{"s"}, b.N)
		must(b, w.raw(), `DROP TRIGGER callbacks_moves`)
		db, err := sql.Open("sqlite3", "file:"+filepath.Join(w.dir, "store.db")+"?_txlock=immediate&_busy_timeout=0&_journal_mode=WAL&_foreign_keys=on&_synchronous=FULL&_stmt_cache_size=32")
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		db.SetMaxOpenConns(1)
		before := cpuTime()
		b.ResetTimer()
		for range b.N {
			if err := rawUnit(db, "s"); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
	})
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkTurn is the CPU side of one whole Turn: leases, prepared, input, accepted,
// running, activity, completed.
func BenchmarkTurn(b *testing.B) {
	w := newWorld(b)
	before := cpuTime()
	b.ResetTimer()
	for i := range b.N {
		n := strconv.Itoa(i)
		f := w.prepare(n, "pane-"+n, "t"+n).accept("t" + n)
		if _, err := w.TurnRunning(ctx, f.monitor(), store.Activity{At: w.Now()}); err != nil {
			b.Fatal(err)
		}
		if _, err := w.TouchActivity(ctx, f.monitor(), store.Activity{At: w.Now()}); err != nil {
			b.Fatal(err)
		}
		f.finish(n)
	}
	b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
}

// BenchmarkReservation is the CPU side of one request of a worker: the look at its grant,
// and a reservation.
func BenchmarkReservation(b *testing.B) {
	l := newLender(b)
	g := l.active(func(n *store.NewGrant) { n.Request.MaxRequests = store.MaxGrantRequests })
	d := draft(g.ID)
	d.Evidence = []byte(`{"seq":0,"grant_id":"bg_00000000000000000000000000000000","text":"` + strings.Repeat("x", 800) + `"}`)
	b.Run("look", func(b *testing.B) {
		for range b.N {
			if _, ok, err := l.GrantStanding(ctx, g.CapabilitySHA256); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
	n := 0
	b.Run("reserve", func(b *testing.B) {
		before := cpuTime()
		for range b.N {
			if n++; n >= store.MaxGrantRequests {
				g, n = l.active(func(n *store.NewGrant) { n.Request.MaxRequests = store.MaxGrantRequests }), 0
				d.GrantID = g.ID
			}
			a, err := l.CommitRequests(ctx, l.lease, store.RequestBatch{Drafts: []store.RequestDraft{d}})
			if err != nil || a[0].Result != store.DraftReserved {
				b.Fatal(a, err)
			}
		}
		b.ReportMetric(float64((cpuTime()-before).Microseconds())/float64(b.N), "cpu-us/op")
	})
}

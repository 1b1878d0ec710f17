package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Proves core 19.38 (the Store's side): an outboxd that is killed after its claim,
// or after its marker.
func TestCallback_KilledOutboxd(t *testing.T) {
	for stage, want := range map[string]string{"claimed": store.CallbackPending, "started": store.CallbackUncertain} {
		t.Run(stage, func(t *testing.T) {
			w := newWorld(t)
			w.done("1")
			s := mustOpen(t, w.dir) // real clock and processes
			p := start(t, "claimed", w.dir, stage)
			attempt := p.line()
			if n, err := s.ExpireClaims(ctx); n != 0 || err != nil {
				t.Fatal("a living claim expired", n, err)
			}
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			eventually(t, 5*time.Second, "the claim of the dead expires", func() bool {
				n, err := s.ExpireClaims(ctx)
				if err != nil {
					t.Fatal(err)
				}
				return n == 1
			})
			c, err := s.Callback(ctx, "delivery-1")
			if err != nil || c.Attempts != 1 || (c.Status != want && !(stage == "claimed" && c.Status == store.CallbackRetryWait)) {
				t.Fatal(c, err)
			}
			l, err := s.Await(ctx, "outboxd/test", time.Minute, 5*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			again, ok, err := s.ClaimCallback(ctx, l, family, 0)
			if err != nil || ok != (stage == "claimed") {
				t.Fatal(again, ok, err)
			}
			if ok && (again.Attempts != 2 || again.AttemptID == attempt) {
				t.Errorf("got %+v", again)
			}
		})
	}
}

// Against a model: whatever outboxds, clocks, closes and deaths do, one attempt at
// a time, none after a start without outcome, never more than five, and content that
// never changes.
func TestCallback_Model(t *testing.T) {
	w := newWorld(t)
	o := w.outbox()
	round := 0
	rapid.Check(t, func(rt *rapid.T) {
		round++
		n := fmt.Sprint("m", round)
		o.f.ControllerSessionID = "controller-" + n
		f := w.prepare(n, "pane-"+n, "t"+n).accept("t" + n)
		done := completion(n)
		done.Callback.RouteControllerSessionID = o.f.ControllerSessionID
		if _, err := w.ClaimCompletion(ctx, f.monitor(), done); err != nil {
			rt.Fatal(err)
		}
		if err := w.Release(ctx, f.term, f.mon); err != nil {
			rt.Fatal(err)
		}
		var claims []store.Callback
		marked := map[string]bool{}
		final, starts, open := "", 0, false // open: a start without an outcome
		rt.Repeat(map[string]func(*rapid.T){
			"claim": func(rt *rapid.T) {
				c, ok, err := w.ClaimCallback(ctx, o.lease, o.f, 0)
				if err != nil {
					rt.Fatal(err)
				}
				if !ok {
					return
				}
				if final != "" || open || len(claims) >= 5 {
					rt.Fatalf("claimed after %q, open %t, %d claims", final, open, len(claims))
				}
				claims = append(claims, c)
			},
			"start": func(rt *rapid.T) {
				if len(claims) == 0 {
					rt.Skip()
				}
				c := claims[rapid.IntRange(0, len(claims)-1).Draw(rt, "claim")]
				if err := w.MarkStarted(ctx, o.lease, c.DeliveryID, c.AttemptID); err != nil {
					if !fault.Is(err, fault.CallbackUnavailable) {
						rt.Fatal(err)
					}
					return
				}
				if open || marked[c.AttemptID] {
					rt.Fatal("two starts at one time")
				}
				marked[c.AttemptID], open = true, true
				starts++
			},
			"settle": func(rt *rapid.T) {
				if len(claims) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(claims)-1).Draw(rt, "claim")
				out := store.Outcome{DeliveryID: claims[i].DeliveryID, AttemptID: claims[i].AttemptID, Code: "c",
					Disposition: rapid.SampledFrom([]string{store.Accepted, store.RetryableFailure, store.PermanentFailure, store.Uncertain}).Draw(rt, "disposition")}
				if out.Disposition == store.Accepted {
					out.AcceptanceID, out.Code = "a", ""
				}
				before, err := w.Callback(ctx, out.DeliveryID)
				if err != nil {
					rt.Fatal(err)
				}
				after, err := w.SettleCallback(ctx, out)
				if err != nil {
					rt.Fatal(err)
				}
				if i == len(claims)-1 {
					open = false
				}
				if final != "" && after.Status != final && !(final == store.CallbackUncertain && after.Status == store.CallbackAccepted &&
					before.LastErrorCode == store.CodeClaimExpired && i == len(claims)-1) {
					rt.Fatalf("%s became %s", final, after.Status)
				}
				if !after.Open() {
					final = after.Status
				}
			},
			"expire": func(rt *rapid.T) {
				w.clk.add(3 * time.Minute)
				if _, err := w.ExpireClaims(ctx); err != nil {
					rt.Fatal(err)
				}
			},
			"time": func(rt *rapid.T) { w.clk.add(time.Duration(rapid.IntRange(0, 90).Draw(rt, "s")) * time.Second) },
			"back": func(rt *rapid.T) { w.clk.step(-time.Duration(rapid.IntRange(0, 90).Draw(rt, "min")) * time.Minute) },
			"hurry": func(rt *rapid.T) {
				if _, _, err := w.RetryCallbackNow(ctx, "turn-"+n); fault.CodeOf(err) == fault.Internal {
					rt.Fatal(err)
				}
			},
			"abandon": func(rt *rapid.T) {
				if rapid.IntRange(0, 9).Draw(rt, "rarely") > 0 {
					rt.Skip()
				}
				if _, err := w.AbandonCallback(ctx, "delivery-"+n); err != nil && !fault.Is(err, fault.CallbackUnavailable) {
					rt.Fatal(err)
				}
			},
			"": func(rt *rapid.T) {
				c, err := w.Callback(ctx, "delivery-"+n)
				if err != nil {
					rt.Fatal(err)
				}
				if diff := cmp.Diff(*done.Callback, c.NewCallback); diff != "" {
					rt.Fatal(diff)
				}
				if c.UpdatedAt < c.CreatedAt || c.Attempts != int64(len(claims)) {
					rt.Fatalf("got %+v with %d claims", c, len(claims))
				}
				if final != "" && c.Open() {
					rt.Fatalf("%s opened again", final)
				}
				if !c.Open() {
					final = c.Status
				}
			},
		})
	})
}

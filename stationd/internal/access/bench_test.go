package access_test

import (
	"testing"

	"drawbridge/shared/store"
)

// What a request pays for its right: kept means that nothing was committed since the
// last one, read that something was.
func BenchmarkAccess_Admit(b *testing.B) {
	w := newWorld(b)
	_, digest := w.ticket("ann", w.station, nil)
	c := w.claim("ann", digest)
	b.Run("kept", func(b *testing.B) {
		for b.Loop() {
			w.admitted(c)
		}
	})
	b.Run("read", func(b *testing.B) {
		for at := w.Now(); b.Loop(); at++ { // a write that changes nothing is no commit
			b.StopTimer()
			w.ok(w.Beat(ctx, w.main, w.station.ID, w.attempt.Number, store.Beats{Observed: at + 1}))
			b.StartTimer()
			w.admitted(c)
		}
	})
}

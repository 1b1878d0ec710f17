package gate

import (
	"sync"
	"time"
)

// Bounds of guessing (station §10.4).
const (
	maxFailures   = 10
	failureWindow = time.Minute
	maxAddresses  = 4096
)

// failures counts the refusals of strangers by where they came from.
type failures struct {
	mu   sync.Mutex
	seen map[string][]time.Time // oldest first, at most maxFailures
}

// wait gives how long an address has to wait before it is looked at again; 0
// when it does not.
func (f *failures) wait(from string, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	times := f.seen[from]
	if len(times) < maxFailures {
		return 0
	}
	return max(0, failureWindow-now.Sub(times[0]))
}

// note counts one refusal.
func (f *failures) note(from string, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.seen == nil {
		f.seen = map[string][]time.Time{}
	}
	if _, known := f.seen[from]; !known && len(f.seen) >= maxAddresses {
		f.forget(now)
	}
	times := append(f.seen[from], now)
	if len(times) > maxFailures {
		times = times[1:]
	}
	f.seen[from] = times
}

// forget drops the addresses that are quiet, or all when none is: whoever can
// fill the table has addresses enough anyway.
func (f *failures) forget(now time.Time) {
	for from, times := range f.seen {
		if now.Sub(times[len(times)-1]) >= failureWindow {
			delete(f.seen, from)
		}
	}
	if len(f.seen) >= maxAddresses {
		clear(f.seen)
	}
}

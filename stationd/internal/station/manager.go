package station

import (
	"context"

	"drawbridge/shared/store"
)

// Manager runs the stations of one host.
type Manager struct {
	opts      Options
	recovered chan struct{}
}

// New makes a Manager; nothing happens before Run.
func New(opts Options) (*Manager, error) {
	return &Manager{opts: opts, recovered: make(chan struct{})}, nil
}

// Run takes the lease of this host, recovers what an earlier stationd left, and
// supervises until ctx ends; then it does with the attempts what OnExit says, and
// returns when each has ended or is left alone, at the latest after Drain.
func (m *Manager) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Recovered is closed when what an earlier stationd left was taken up for the first
// time: READY comes after it.
func (m *Manager) Recovered() <-chan struct{} { return m.recovered }

// Lease is the Store lease of the acting stationd, for writes about principals,
// members and tickets; nil while this one stands by.
func (m *Manager) Lease() *store.Lease { return nil }

// Healthy reports whether the supervising loop turns: WATCHDOG beats only then.
func (m *Manager) Healthy() bool { return true }

// Start makes a station and begins its first attempt. It returns when the attempt's
// row is durable; the attempt goes on by itself.
func (m *Manager) Start(ctx context.Context, by store.Principal, q StartRequest) (Started, error) {
	return Started{}, unavailable("start a station")
}

// Replace ends the attempt of a station with attempt_replaced, if it has one, and
// begins the next.
func (m *Manager) Replace(ctx context.Context, by store.Principal, stationID string) (Started, error) {
	return Started{}, unavailable("replace an attempt")
}

// Await waits until an attempt is in one of the states, or has ended.
func (m *Manager) Await(ctx context.Context, stationID string, attempt int64, states ...string) (store.StationAttempt, error) {
	return store.StationAttempt{}, unavailable("wait for an attempt")
}

// Stop asks for the end of a station's newest attempt. It returns when the wish is
// durable, with the attempt as it is then; of one that is stopping or has ended it
// changes nothing. Await waits for the end.
func (m *Manager) Stop(ctx context.Context, by store.Principal, stationID string) (store.StationAttempt, error) {
	return store.StationAttempt{}, unavailable("stop a station")
}

// ReleaseLease gives a lease back: its attempt ends with lease_released first. With
// force and a reason one that could not be given back is let go.
func (m *Manager) ReleaseLease(ctx context.Context, by store.Principal, leaseID string, force bool, reason string) (store.Workspace, error) {
	return store.Workspace{}, unavailable("release a lease")
}

package station

import (
	"context"
	"slices"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
)

// StartRequest asks for a new station.
type StartRequest struct {
	Spec []byte // JSON, station §6.1
	Key  string // of the client, "" for none: the same key and spec give the same station
}

// Started is a station whose attempt's row is durable.
type Started struct {
	Station store.Station
	Attempt int64
	Bridge  string // path below which clients will find the daemon; "" without a bridge
}

func unavailable(doing string) error {
	return fault.New(fault.LeaseHeld, "%s: this stationd does not act", doing).
		WithHint("another stationd of this host holds the lease, or this one begins or ends; try again")
}

// Start makes a station and begins its first attempt. It returns when the attempt's
// row is durable; the attempt goes on by itself. Everything that can be refused
// before that is refused without a row. The same key and spec give the station of
// the first time, whatever became of it.
func (m *Manager) Start(ctx context.Context, by store.Principal, q StartRequest) (Started, error) {
	const doing = "start a station"
	t, err := m.current(ctx, doing)
	if err != nil {
		return Started{}, err
	}
	p, err := m.check(q.Spec)
	if err != nil {
		return Started{}, err
	}
	st, made, err := m.opts.Store.CreateStation(ctx, t.lead, store.NewStation{PrincipalID: by.ID, Profile: p.Profile, Spec: q.Spec, Key: q.Key})
	if err != nil {
		return Started{}, err
	}
	if !made && st.CurrentAttempt != 0 {
		return started(st, st.CurrentAttempt, p), nil
	}
	return t.start(ctx, doing, st, p)
}

// Replace ends the attempt of a station with attempt_replaced, if it has one, and
// begins the next. Two at a time begin one: the other gets attempt_exists.
func (m *Manager) Replace(ctx context.Context, by store.Principal, stationID string) (Started, error) {
	const doing = "replace an attempt"
	t, err := m.current(ctx, doing)
	if err != nil {
		return Started{}, err
	}
	st, err := m.opts.Store.Station(ctx, stationID)
	if err != nil {
		return Started{}, err
	}
	p, err := m.check(st.Spec)
	if err != nil {
		return Started{}, err
	}
	out, failed := make(chan Started, 1), make(chan error, 1)
	ok := t.begin(func() { // it goes on when the client does not wait for it
		got, err := t.replace(doing, by, st, p)
		if err != nil {
			failed <- err
			return
		}
		out <- got
	})
	if !ok {
		return Started{}, unavailable(doing)
	}
	select {
	case got := <-out:
		return got, nil
	case err := <-failed:
		return Started{}, err
	case <-ctx.Done():
		return Started{}, context.Cause(ctx)
	}
}

// replace is Replace after the checks.
func (t *term) replace(doing string, by store.Principal, st store.Station, p plan) (Started, error) {
	if a := t.live(st.ID); a != nil {
		if _, err := a.ask(t.base, store.StopReplaced, by.ID); err != nil {
			return Started{}, err
		}
		select {
		case <-a.done:
		case <-t.base.Done():
			return Started{}, unavailable(doing)
		}
	}
	now, err := t.m.opts.Store.Station(t.base, st.ID)
	if err != nil {
		return Started{}, err
	}
	if now.CurrentAttempt != st.CurrentAttempt {
		return Started{}, fault.New(fault.AttemptExists, "%s of station %s: attempt %d has begun meanwhile", doing, st.ID, now.CurrentAttempt)
	}
	return t.start(t.base, doing, now, p)
}

// start makes the row of the next attempt, and gives it its conductor.
func (t *term) start(ctx context.Context, doing string, st store.Station, p plan) (Started, error) {
	if t.quit.Err() != nil {
		return Started{}, unavailable(doing)
	}
	a := t.newAttempt(st, p)
	if err := t.claim(a); err != nil {
		return Started{}, err
	}
	s := t.m.opts.Store
	l, err := s.Acquire(ctx, store.StationLease(st.ID), store.LeaseTTL)
	if err != nil {
		t.forget(a)
		return Started{}, err
	}
	row, err := s.BeginAttempt(ctx, l, st.ID, store.NewAttempt{Provider: p.Provider, Host: t.m.opts.Host, TTL: p.TTLTime, Idle: p.IdleTime})
	if err != nil {
		t.forget(a)
		_ = s.Release(context.WithoutCancel(ctx), l)
		return Started{}, err
	}
	a.own(l, row)
	if !t.begin(func() { a.conduct(a.start) }) { // its row is for the next stationd to recover
		t.forget(a)
		a.lose(errLeft)
		_ = s.Release(context.WithoutCancel(ctx), l)
		return Started{}, unavailable(doing)
	}
	t.m.moved()
	if now, err := s.Station(ctx, st.ID); err == nil {
		st = now
	}
	return started(st, row.Number, p), nil
}

func started(st store.Station, n int64, p plan) Started {
	out := Started{Station: st, Attempt: n}
	if p.Bridge != nil {
		out.Bridge = gate.BridgePath(st.ID, int(n))
	}
	return out
}

// Stop asks for the end of a station's newest attempt. It returns when the wish is
// durable, with the attempt as it is then; of one that is stopping or has ended it
// changes nothing. Await waits for the end.
func (m *Manager) Stop(ctx context.Context, by store.Principal, stationID string) (store.StationAttempt, error) {
	const doing = "stop a station"
	st, err := m.opts.Store.Station(ctx, stationID)
	if err != nil {
		return store.StationAttempt{}, err
	}
	row, err := m.opts.Store.StationAttempt(ctx, stationID, st.CurrentAttempt)
	if err != nil || row.Desired == store.WantStopping {
		return row, err
	}
	t, err := m.current(ctx, doing)
	if err != nil {
		return row, err
	}
	if a := t.live(stationID); a != nil {
		return a.ask(ctx, store.StopOperator, by.ID)
	}
	if t.begins(stationID) {
		return row, unavailable(doing)
	}
	row, _, err = m.opts.Store.RequestStop(ctx, t.lead, stationID, row.Number, store.StopOperator, by.ID) // out of reach: the next stationd goes on with it
	return row, err
}

// Await waits until an attempt is in one of the states, or has ended and its lease
// was given back or could not be.
func (m *Manager) Await(ctx context.Context, stationID string, attempt int64, states ...string) (store.StationAttempt, error) {
	tick := time.NewTicker(m.pace.look)
	defer tick.Stop()
	for {
		change := m.change()
		row, err := m.opts.Store.StationAttempt(ctx, stationID, attempt)
		switch {
		case err != nil:
			return row, err
		case row.Live() && slices.Contains(states, row.State):
			return row, nil
		case !row.Live() && !m.conducted(stationID, attempt):
			return row, nil
		}
		select {
		case <-change:
		case <-tick.C:
		case <-ctx.Done():
			return row, context.Cause(ctx)
		}
	}
}

// conducted reports whether an attempt still has a conductor here.
func (m *Manager) conducted(stationID string, number int64) bool {
	t := m.term()
	if t == nil {
		return false
	}
	a := t.live(stationID)
	return a != nil && a.current().Number == number
}

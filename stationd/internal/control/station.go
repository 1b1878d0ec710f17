package control

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/station"
)

// KeyHeader carries the client's key of a start: the same key and spec give the same
// station.
const KeyHeader = "Idempotency-Key"

// What a status may wait for.
const (
	WaitReady = "ready" // the attempt is ready, or has ended
	WaitEnded = "ended" // the attempt has ended, and its cleanup is done or has failed
)

func (s *Server) start(q *request) error {
	keys := q.Header.Values(KeyHeader)
	if len(keys) > 1 {
		return fault.New(fault.InvalidArguments, "%s is given %d times", KeyHeader, len(keys))
	}
	started, err := s.opts.Manager.Start(q.Context(), q.by, station.StartRequest{Spec: q.body, Key: q.Header.Get(KeyHeader)})
	if err != nil {
		return err
	}
	return s.reply(q, s.started(started))
}

func (s *Server) replace(q *request) error {
	id := q.vars["station"]
	if _, err := s.may(q, id, operate); err != nil {
		return err
	}
	started, err := s.opts.Manager.Replace(q.Context(), q.by, id)
	if err != nil {
		return err
	}
	return s.reply(q, s.started(started))
}

func (s *Server) started(n station.Started) Started {
	out := Started{StationID: n.Station.ID, Attempt: n.Attempt}
	if n.Bridge != "" {
		b := s.bridge(n.Station.ID, n.Attempt)
		out.Bridge = &b
	}
	return out
}

// bridge is where clients find an attempt's daemon.
func (s *Server) bridge(stationID string, attempt int64) Bridge {
	b := Bridge{Path: gate.BridgePath(stationID, int(attempt))}
	if port := s.opts.GatePort; port != 0 {
		b.URL = "http://127.0.0.1:" + strconv.Itoa(port) + b.Path
		b.Host = gate.HostLabel(stationID, int(attempt)) + ":" + strconv.Itoa(port)
	}
	return b
}

// stop answers with the attempt as it is, also when it had ended before.
func (s *Server) stop(q *request) error {
	id := q.vars["station"]
	if _, err := s.may(q, id, operate); err != nil {
		return err
	}
	a, err := s.opts.Manager.Stop(q.Context(), q.by, id)
	if err != nil {
		return err
	}
	return s.reply(q, Stopped{StationID: a.StationID, Attempt: a.Number, State: a.State, StopReason: orNil(a.StopReason)})
}

func (s *Server) list(q *request) error {
	all, err := s.opts.Store.Stations(q.Context(), q.by.ID)
	if err != nil {
		return err
	}
	out := StationList{Stations: []Summary{}, More: len(all) > maxStations}
	for _, st := range all[:min(len(all), maxStations)] {
		full, err := s.opts.Store.StationStatus(q.Context(), st.ID)
		if err != nil {
			return err
		}
		out.Stations = append(out.Stations, summary(full))
	}
	return s.reply(q, out)
}

// status answers at once, or with wait when the attempt is as far as that, and after
// some seconds anyhow: then the client asks again.
func (s *Server) status(q *request) error {
	id := q.vars["station"]
	role, err := s.may(q, id, see)
	if err != nil {
		return err
	}
	number, err := q.attempt()
	if err != nil {
		return err
	}
	wait := q.query.Get("wait")
	if wait != "" && wait != WaitReady && wait != WaitEnded {
		return fault.New(fault.InvalidArguments, "wait is %q, not %s or %s", wait, WaitReady, WaitEnded)
	}
	ctx, cancel := s.waiting(q.Context())
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, longPoll)
	defer cancel()
	var st store.StationStatus
	err = s.poll(ctx, func() (bool, error) {
		var err error
		st, err = s.opts.Store.StationStatus(q.Context(), id)
		return wait == "" || reached(st, number, wait), err
	})
	if err != nil {
		return err
	}
	out := Status{Summary: summary(st), Org: st.Station.Org, Role: role}
	if role != store.RoleViewer && st.Attempt.Number != 0 {
		out.Detail = s.detail(st)
		if out.Detail.Failure, err = s.failure(q.Context(), st.Attempt); err != nil {
			return err
		}
	}
	return s.reply(q, out)
}

// reached reports whether an attempt, 0 for the newest, is where somebody waits for.
func reached(st store.StationStatus, number int64, wait string) bool {
	a := st.Attempt
	switch {
	case number != 0 && a.Number != number:
		return a.Number > number // it was replaced
	case wait == WaitReady:
		return a.State == store.AttemptReady || a.State == store.AttemptTerminal
	}
	return a.State == store.AttemptTerminal && (st.Cleanup == store.SeenDone || st.Cleanup == store.SeenFailed)
}

// attempt is the number in the query, 0 without one.
func (q *request) attempt() (int64, error) {
	text := q.query.Get("attempt")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 {
		return 0, fault.New(fault.InvalidArguments, "attempt is no number from 1 on")
	}
	return n, nil
}

func summary(st store.StationStatus) Summary {
	return Summary{
		StationID: st.Station.ID, Name: specName(st.Station.Spec), Owner: st.Station.Owner, Profile: st.Station.Profile, CreatedAt: at(st.Station.CreatedAt),
		Facts: Facts{
			State: st.State, DesiredState: st.Desired, Attempt: st.Number, LastObservedAt: orNever(st.ObservedAt),
			StopReason: orNil(st.StopReason), LeaseState: orNil(st.LeaseState),
			Supervisor: st.Supervisor, Command: st.Command, Cleanup: st.Cleanup,
		},
	}
}

func (s *Server) detail(st store.StationStatus) *Detail {
	a := st.Attempt
	d := &Detail{
		AttemptState: a.State, LeaseID: a.LeaseID, Provider: st.Lease.Provider, Containment: a.Containment, Egress: a.Egress,
		CommandHash: a.CommandHash, ShimPID: a.ShimPID, DaemonPID: a.DaemonPID, Port: a.Port,
		StartedAt: orNever(a.StartedAt), ReadyAt: orNever(a.ReadyAt), EndedAt: orNever(a.EndedAt),
		TTLDeadline: orNever(a.TTLDeadline), IdleMS: a.IdleMS, LastActivity: orNever(a.ActivityAt),
		StopAt: orNever(a.StopAt), StopBy: a.StopBy, Exit: a.Exit, Left: a.Cleanup,
	}
	if _, ok := bridgePrefix(st.Station.Spec); ok && a.State == store.AttemptReady {
		b := s.bridge(a.StationID, a.Number)
		d.Bridge = &b
	}
	if st.Cleanup == store.SeenFailed {
		var kept struct{ Code string }
		_ = json.Unmarshal(st.Lease.Cleanup, &kept) // of processes that are left it holds none
		d.LeaseFailure = kept.Code
	}
	return d
}

// failure is why an attempt that stops was never ready, nil where nothing says so.
func (s *Server) failure(ctx context.Context, a store.StationAttempt) (*Failure, error) {
	if a.StopReason == "" || a.ReadyAt != 0 {
		return nil, nil
	}
	e, ok, err := s.opts.Store.LastStationEvent(ctx, a.StationID, a.Number, station.FailedEvent)
	if err != nil || !ok {
		return nil, err
	}
	var f Failure
	if json.Unmarshal(e.Detail, &f) != nil {
		return nil, nil
	}
	return &f, nil
}

// at is a time of the Store.
func at(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

func orNever(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := at(ms)
	return &t
}

func orNil(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// specName is the name that a spec gives for people.
func specName(spec []byte) string {
	var s struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal(spec, &s)
	return s.Name
}

// bridgePrefix is the part of the daemon that a spec lets clients in to; ok is false
// for one without a way in.
func bridgePrefix(spec []byte) (prefix string, ok bool) {
	var s struct {
		Bridge *struct {
			PathPrefix string `json:"pathPrefix"`
		} `json:"bridge"`
	}
	if json.Unmarshal(spec, &s) != nil || s.Bridge == nil {
		return "", false
	}
	return cmp.Or(s.Bridge.PathPrefix, "/"), true
}

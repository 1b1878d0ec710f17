package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Bounds of station events (station §13.4).
const (
	MaxAttemptEvents = 10_000 // then they are counted only
	maxEventDetail   = 16 << 10
	maxEventKind     = 64
)

// Kinds that the chain itself knows.
const (
	endedEvent  = "ended"  // its detail names the digest of the evidence document
	purgedEvent = "purged" // its detail names what was removed from the chain
)

// StationEvent is one link of a station's chain (station §13.5).
type StationEvent struct {
	StationID string
	Seq       int64
	Attempt   int64 // 0: of the station
	At        int64
	Kind      string
	Detail    []byte // canonical JSON
	Prev      [sha256.Size]byte
	Hash      [sha256.Size]byte
}

// Chain is the head of a station's chain.
type Chain struct {
	Count int64 // the last number, those that were purged included
	Head  [sha256.Size]byte
}

const eventCols = `station_id, seq, coalesce(attempt, 0), ts, kind, detail_json, prev_hash, hash`

func scanStationEvent(r scanner) (e StationEvent, err error) {
	var prev, hash []byte
	err = r.Scan(&e.StationID, &e.Seq, &e.Attempt, &e.At, &e.Kind, &e.Detail, &prev, &hash)
	copy(e.Prev[:], prev)
	copy(e.Hash[:], hash)
	return e, err
}

var (
	chainInsert = define(`
INSERT INTO station_events(station_id, seq, attempt, ts, kind, detail_json, prev_hash, hash)
VALUES (:station, :seq, :attempt, :ts, :kind, :detail, :prev, :hash)`)

	eventLast = define(`
SELECT ` + eventCols + `
FROM station_events
WHERE station_id = :station
ORDER BY seq DESC
LIMIT 1`)

	eventOfKind = define(`
SELECT ` + eventCols + `
FROM station_events
WHERE station_id = :station AND attempt = :attempt AND kind = :kind
ORDER BY seq DESC
LIMIT 1`)

	eventsAfter = define(`
SELECT ` + eventCols + `
FROM station_events
WHERE station_id = :station AND seq > :after
ORDER BY seq
LIMIT :limit`)

	eventsCounted = define(`
UPDATE station_attempts
SET events = events + 1
WHERE station_id = :station AND attempt = :attempt`)

	eventsDropped = define(`
UPDATE station_attempts
SET events_dropped = events_dropped + 1
WHERE station_id = :station AND attempt = :attempt`)
)

// AppendStationEvent adds an event to a station's chain; attempt 0 is one of the
// station. detail has strings, integers, booleans, lists and objects, and passed the
// redactor. Beyond MaxAttemptEvents an event is counted only.
func (s *Store) AppendStationEvent(ctx context.Context, l *Lease, stationID string, attempt int64, kind string, detail map[string]any) error {
	if !validName(kind) || len(kind) > maxEventKind || kind == endedEvent || kind == purgedEvent {
		return fault.New(fault.Internal, "add an event to station %.64s: kind %.80q", stationID, kind)
	}
	return s.onStation(ctx, l, stationID, func(t *tx) error {
		if attempt != 0 {
			a, err := t.attempt(stationID, attempt)
			if err != nil {
				return err
			}
			if a.Events >= MaxAttemptEvents {
				t.silent = true
				_, err := t.exec(eventsDropped, "station", stationID, "attempt", attempt)
				return err
			}
		}
		return t.chainEvent(stationID, attempt, kind, detail)
	})
}

// StationEvents lists events after a number, at most limit.
func (s *Store) StationEvents(ctx context.Context, stationID string, after, limit int64) ([]StationEvent, error) {
	all, err := list(pool{ctx, s.rdb}, scanStationEvent, eventsAfter, "station", stationID, "after", after, "limit", limit)
	return all, storeError("list station events", err)
}

// LastStationEvent gives the newest event of a kind of an attempt; ok is false when
// there is none, or no more.
func (s *Store) LastStationEvent(ctx context.Context, stationID string, attempt int64, kind string) (e StationEvent, ok bool, err error) {
	e, ok, err = first(pool{ctx, s.rdb}, scanStationEvent, eventOfKind, "station", stationID, "attempt", attempt, "kind", kind)
	return e, ok, storeError("read a station event", err)
}

// StationChain gives the head of a station's chain.
func (s *Store) StationChain(ctx context.Context, stationID string) (Chain, error) {
	e, ok, err := first(pool{ctx, s.rdb}, scanStationEvent, eventLast, "station", stationID)
	if err != nil || !ok {
		return Chain{Head: chainStart(stationID)}, storeError("read the chain", err)
	}
	return Chain{e.Seq, e.Hash}, nil
}

// event adds the next link in the open transaction.
func (t *tx) chainEvent(stationID string, attempt int64, kind string, detail map[string]any) error {
	text, err := strictjson.Canonical(detail)
	if err != nil {
		return fault.New(fault.Internal, "add event %s to station %.64s: its detail: %w", kind, stationID, err)
	}
	if len(text) > maxEventDetail {
		return fault.New(fault.LimitExceeded, "add event %s to station %.64s: its detail has %d bytes, at most are %d", kind, stationID, len(text), maxEventDetail)
	}
	last, ok, err := first(t, scanStationEvent, eventLast, "station", stationID)
	if err != nil {
		return err
	}
	if !ok {
		last.Hash = chainStart(stationID)
	}
	e := StationEvent{StationID: stationID, Seq: last.Seq + 1, Attempt: attempt, At: max(t.now, last.At), Kind: kind, Detail: text, Prev: last.Hash}
	if e.Hash, err = e.link(); err != nil {
		return err
	}
	if _, err := t.exec(chainInsert, "station", stationID, "seq", e.Seq, "attempt", orNull(attempt), "ts", e.At, "kind", kind, "detail", text,
		"prev", blob(e.Prev[:]), "hash", blob(e.Hash[:])); err != nil {
		return err
	}
	if attempt == 0 {
		return nil
	}
	return t.must(eventsCounted, "station", stationID, "attempt", attempt)
}

// chainStart is what the first event of a station follows.
func chainStart(stationID string) [sha256.Size]byte { return sha256.Sum256([]byte(stationID)) }

// link computes the hash of an event from its other fields.
func (e StationEvent) link() (sum [sha256.Size]byte, err error) {
	detail, err := strictjson.Parse(e.Detail, strictjson.Limits{})
	if err != nil {
		return sum, err
	}
	var attempt any
	if e.Attempt != 0 {
		attempt = e.Attempt
	}
	text, err := strictjson.Canonical(map[string]any{
		"stationId": e.StationID, "seq": e.Seq, "attempt": attempt, "ts": e.At, "kind": e.Kind, "detail": detail})
	if err != nil {
		return sum, err
	}
	return sha256.Sum256(append(e.Prev[:], text...)), nil
}

func hexOf(sum [sha256.Size]byte) string { return hex.EncodeToString(sum[:]) }

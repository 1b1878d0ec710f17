package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/strictjson"
)

// StationKeep is how long events and evidence of an ended attempt stay (station
// §13.4).
const StationKeep = 90 * 24 * time.Hour

var (
	purgeAttemptNext = define(`
SELECT ` + attemptCols + `
FROM station_attempts a INDEXED BY attempt_ended
JOIN workspace_leases w ON w.lease_id = a.lease_id
WHERE a.state = 'terminal' AND a.ended_at <= :before AND w.state = 'released'
ORDER BY a.ended_at
LIMIT 1`)

	purgeAttemptEvents = define(`
DELETE FROM station_events
WHERE station_id = :station AND attempt = :attempt
RETURNING ` + eventCols)

	purgeAttemptTickets = define(`
DELETE FROM station_tickets
WHERE station_id = :station AND attempt = :attempt`)

	purgeAttemptEvidence = define(`
DELETE FROM station_evidence
WHERE station_id = :station AND attempt = :attempt`)

	purgeAttempt = define(`
DELETE FROM station_attempts
WHERE station_id = :station AND attempt = :attempt AND state = 'terminal'`)

	purgeWorkspace = define(`
DELETE FROM workspace_leases
WHERE lease_id = :lease_id AND state = 'released' AND NOT EXISTS (SELECT 1 FROM station_attempts a WHERE a.lease_id = :lease_id)`)
)

// PurgeAttempt removes the oldest attempt that ended, with its lease released, longer
// than StationKeep ago: whole, with its events, tickets, document and lease. What it
// removed from the chain stands in a last event, so that the chain still verifies.
// more is true when it removed one. It needs the lease of the acting stationd.
func (s *Store) PurgeAttempt(ctx context.Context, l *Lease) (more bool, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent, more = true, false
		if err := t.guard(l); err != nil {
			return err
		}
		a, ok, err := first(t, scanStationAttempt, purgeAttemptNext, "before", t.now-StationKeep.Milliseconds())
		if err != nil || !ok {
			return err
		}
		more = true
		return t.purge(a)
	})
	if err == nil && more {
		crashpoint.At("attempt_purged")
	}
	return more && err == nil, err
}

func (t *tx) purge(a StationAttempt) error {
	pairs := []any{"station", a.StationID, "attempt", a.Number}
	events, err := list(t, scanStationEvent, purgeAttemptEvents, pairs...)
	if err != nil {
		return err
	}
	for _, st := range []stmt{purgeAttemptTickets, purgeAttemptEvidence, purgeAttempt} {
		if _, err := t.exec(st, pairs...); err != nil {
			return err
		}
	}
	if _, err := t.exec(purgeWorkspace, "lease_id", a.LeaseID); err != nil {
		return err
	}
	return t.chainEvent(a.StationID, 0, purgedEvent, map[string]any{"attempt": a.Number, "events": int64(len(events)), "runs": stretches(events)})
}

// stretches gives the events that were removed as runs of following numbers, each
// with the hash of its last.
func stretches(events []StationEvent) []any {
	slices.SortFunc(events, func(a, b StationEvent) int { return cmp.Compare(a.Seq, b.Seq) })
	out := []any{}
	for i := 0; i < len(events); {
		j := i
		for j+1 < len(events) && events[j+1].Seq == events[j].Seq+1 {
			j++
		}
		out = append(out, map[string]any{"from": events[i].Seq, "to": events[j].Seq, "hash": hexOf(events[j].Hash)})
		i = j + 1
	}
	return out
}

// runsOf reads stretches back; what is not of that form is left out.
func runsOf(detail []byte) (all []run) {
	tree, err := strictjson.Parse(detail, strictjson.Limits{})
	if err != nil {
		return nil
	}
	runs, _ := strictjson.Pointer(tree, "/runs")
	items, _ := runs.([]any)
	for _, item := range items {
		o, _ := item.(map[string]any)
		from, _ := o["from"].(strictjson.Number)
		to, _ := o["to"].(strictjson.Number)
		hash, _ := o["hash"].(string)
		first, ok1 := from.Int64()
		last, ok2 := to.Int64()
		if ok1 && ok2 && first <= last {
			all = append(all, run{first, last, hash})
		}
	}
	return all
}

// text reads one string of a document; "" when there is none.
func text(document []byte, pointer string) string {
	tree, err := strictjson.Parse(document, strictjson.Limits{})
	if err != nil {
		return ""
	}
	v, _ := strictjson.Pointer(tree, pointer)
	s, _ := v.(string)
	return s
}

func hashOf(text string) (sum [sha256.Size]byte) {
	if b, err := hex.DecodeString(text); err == nil && len(b) == len(sum) {
		copy(sum[:], b)
	}
	return sum
}

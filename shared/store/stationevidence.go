package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"strconv"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// maxEvidence is the size of one evidence document.
const maxEvidence = 4 << 20

// verifyPage is how many events are read at once.
const verifyPage = 1000

// StationEvidence is the one document about an attempt (station §13.1).
type StationEvidence struct {
	StationID string
	Attempt   int64
	At        int64
	Document  []byte
	SHA256    [sha256.Size]byte
}

// StationCheck is what a check of a station's chain and documents found.
type StationCheck struct {
	Events    int64 // links that were checked
	Purged    int64 // numbers that a purge accounts for
	Documents int64
	Chain     Chain
	Flaws     []Flaw // none: everything is as it was written
}

// Flaw names a place that is not as it was written.
type Flaw struct {
	Place string // "event 12", "evidence of attempt 3"
	What  string
}

// flawsMost bounds a StationCheck.
const flawsMost = 100

func scanStationEvidence(r scanner) (e StationEvidence, err error) {
	var sum []byte
	err = r.Scan(&e.StationID, &e.Attempt, &e.At, &e.Document, &sum)
	copy(e.SHA256[:], sum)
	return e, err
}

const evidenceCols = `station_id, attempt, ts, document, sha256`

var (
	evidenceInsert = define(`
INSERT INTO station_evidence(station_id, attempt, ts, document, sha256)
VALUES (:station, :attempt, :now, :document, :sum)`)

	evidenceByNumber = define(`
SELECT ` + evidenceCols + `
FROM station_evidence
WHERE station_id = :station AND attempt = :attempt`)

	evidenceOf = define(`
SELECT ` + evidenceCols + `
FROM station_evidence
WHERE station_id = :station
ORDER BY attempt`)
)

// evidence writes the document of an attempt and gives its digest in hex.
func (t *tx) evidence(stationID string, number int64, document []byte) (string, error) {
	if len(document) == 0 || len(document) > maxEvidence {
		return "", fault.New(fault.Internal, "write the evidence of attempt %d of station %s: %d bytes; a document has 1 to %d", number, stationID, len(document), maxEvidence)
	}
	sum := sha256.Sum256(document)
	_, err := t.exec(evidenceInsert, "station", stationID, "attempt", number, "now", t.now, "document", document, "sum", blob(sum[:]))
	return hexOf(sum), err
}

// StationEvidence gives the document of an attempt, or not_found.
func (s *Store) StationEvidence(ctx context.Context, stationID string, number int64) (StationEvidence, error) {
	return only(pool{ctx, s.rdb}, scanStationEvidence, "evidence of station", stationID, evidenceByNumber, "station", stationID, "attempt", number)
}

// VerifyStation recomputes the chain of a station and the digests of its documents on
// one snapshot. It shows accidents and edits after the fact; it is no signature.
func (s *Store) VerifyStation(ctx context.Context, stationID string) (v StationCheck, err error) {
	err = s.view(ctx, func(t *tx) error {
		if _, err := t.station(stationID); err != nil {
			return err
		}
		c := checker{tx: t, v: &v, station: stationID, want: chainStart(stationID), digests: map[int64]string{}}
		if err := c.read(); err != nil {
			return err
		}
		c.chain()
		return c.documents()
	})
	return v, err
}

// run is a stretch of numbers that a purge removed, and the hash of the last.
type run struct {
	From, To int64
	Hash     string
}

type checker struct {
	*tx
	v       *StationCheck
	station string
	events  []StationEvent
	want    [sha256.Size]byte // what the next event follows
	runs    map[int64]run     // by first number
	digests map[int64]string  // of documents, by attempt, from the events
}

func (c *checker) flaw(place, what string) {
	if len(c.v.Flaws) < flawsMost {
		c.v.Flaws = append(c.v.Flaws, Flaw{place, what})
	}
}

func placeOfEvent(seq int64) string { return "event " + strconv.FormatInt(seq, 10) }

func placeOfEvidence(attempt int64) string {
	return "evidence of attempt " + strconv.FormatInt(attempt, 10)
}

// read fetches the events and what the purges among them say.
func (c *checker) read() error {
	c.runs = map[int64]run{}
	for after := int64(0); ; {
		page, err := list(c.tx, scanStationEvent, eventsAfter, "station", c.station, "after", after, "limit", int64(verifyPage))
		if err != nil {
			return err
		}
		for _, e := range page {
			switch e.Kind {
			case purgedEvent:
				for _, r := range runsOf(e.Detail) {
					c.runs[r.From] = r
				}
			case endedEvent:
				c.digests[e.Attempt] = text(e.Detail, "/evidence")
			}
		}
		c.events = append(c.events, page...)
		if len(page) < verifyPage {
			return nil
		}
		after = page[len(page)-1].Seq
	}
}

// chain walks the links. A gap has to be what purges removed.
func (c *checker) chain() {
	next := int64(1)
	for _, e := range c.events {
		place := placeOfEvent(e.Seq)
		for next < e.Seq {
			r, ok := c.runs[next]
			if !ok || r.To >= e.Seq {
				c.flaw(placeOfEvent(next), "it is missing")
				c.want = e.Prev
				break
			}
			c.v.Purged += r.To - r.From + 1
			next, c.want = r.To+1, hashOf(r.Hash)
		}
		sum, err := e.link()
		switch {
		case e.Prev != c.want:
			c.flaw(place, "it does not follow the one before")
		case err != nil, !canonical(e.Detail):
			c.flaw(place, "its detail is not as it was written")
		case sum != e.Hash:
			c.flaw(place, "its hash is another")
		}
		c.v.Events++
		next, c.want = e.Seq+1, e.Hash
		c.v.Chain = Chain{e.Seq, e.Hash}
	}
	if len(c.events) == 0 {
		c.flaw("event 1", "it is missing")
	}
}

// documents compares each document with its digest and with the event that it was
// written with.
func (c *checker) documents() error {
	all, err := list(c.tx, scanStationEvidence, evidenceOf, "station", c.station)
	if err != nil {
		return err
	}
	for _, e := range all {
		place := placeOfEvidence(e.Attempt)
		sum := sha256.Sum256(e.Document)
		switch {
		case sum != e.SHA256:
			c.flaw(place, "its digest is another")
		case c.digests[e.Attempt] != hexOf(sum):
			c.flaw(place, "it is not the document that the event of its attempt names")
		}
		delete(c.digests, e.Attempt)
		c.v.Documents++
	}
	for _, attempt := range slices.Sorted(maps.Keys(c.digests)) {
		c.flaw(placeOfEvidence(attempt), "it is missing")
	}
	return nil
}

func canonical(detail []byte) bool {
	tree, err := strictjson.Parse(detail, strictjson.Limits{})
	if err != nil {
		return false
	}
	again, err := strictjson.Canonical(tree)
	return err == nil && bytes.Equal(again, detail)
}

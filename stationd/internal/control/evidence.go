package control

import (
	"encoding/hex"
	"encoding/json"
	"net/http"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// ExportSchema names the document of an export.
const (
	ExportSchema  = "drawbridge/station-export"
	ExportVersion = 1
)

// evidence answers with the documents of a station, or of one attempt; with verify
// also with what recomputing the chain found; with export as a document of all that
// is needed to recompute it elsewhere.
func (s *Server) evidence(q *request) error {
	id := q.vars["station"]
	if _, err := s.may(q, id, see); err != nil {
		return err
	}
	number, err := q.attempt()
	if err != nil {
		return err
	}
	verify, err := q.flag("verify")
	if err != nil {
		return err
	}
	export, err := q.flag("export")
	if err != nil {
		return err
	}
	if export && (number != 0 || verify) {
		return fault.New(fault.InvalidArguments, "an export is of the whole station")
	}
	out := Evidence{StationID: id, Documents: []Document{}}
	if verify || export {
		if out.Check, err = s.check(q, id); err != nil {
			return err
		}
	}
	numbers, err := s.documented(q, id, number)
	if err != nil {
		return err
	}
	if export {
		return s.export(q, id, numbers, *out.Check)
	}
	if verify {
		return s.reply(q, out)
	}
	for _, n := range numbers {
		d, err := s.document(q, id, n)
		if err != nil {
			return err
		}
		out.Documents = append(out.Documents, d)
	}
	return s.reply(q, out)
}

// documented lists the attempts that have a document, or the one that is asked for.
func (s *Server) documented(q *request, id string, number int64) (out []int64, err error) {
	if number != 0 {
		return []int64{number}, nil
	}
	all, err := s.opts.Store.StationAttempts(q.Context(), id)
	for _, a := range all {
		if a.State == store.AttemptTerminal {
			out = append(out, a.Number)
		}
	}
	return out, err
}

func (s *Server) document(q *request, id string, number int64) (Document, error) {
	e, err := s.opts.Store.StationEvidence(q.Context(), id, number)
	return Document{Attempt: e.Attempt, At: at(e.At), SHA256: hex.EncodeToString(e.SHA256[:]), Document: e.Document}, err
}

func (s *Server) check(q *request, id string) (*Check, error) {
	v, err := s.opts.Store.VerifyStation(q.Context(), id)
	if err != nil {
		return nil, err
	}
	c := &Check{Events: v.Events, Purged: v.Purged, Documents: v.Documents, Head: hex.EncodeToString(v.Chain.Head[:]), Flaws: []Flaw{}}
	for _, f := range v.Flaws {
		c.Flaws = append(c.Flaws, Flaw(f))
	}
	return c, nil
}

// event is a link of the chain in an export, with the fields of its hash.
type event struct {
	StationID string          `json:"stationId"`
	Seq       int64           `json:"seq"`
	Attempt   *int64          `json:"attempt"`
	TS        int64           `json:"ts"`
	Kind      string          `json:"kind"`
	Detail    json.RawMessage `json:"detail"`
	PrevHash  string          `json:"prevHash"`
	Hash      string          `json:"hash"`
}

// export writes piece by piece: the documents of a long life would not fit memory.
// One that breaks off is no JSON document.
func (s *Server) export(q *request, id string, numbers []int64, check Check) error {
	out := newPieces(q)
	out.text(`{"schema":"` + ExportSchema + `","version":`)
	out.value(ExportVersion)
	out.text(`,"stationId":`)
	out.value(id)
	out.text(`,"exportedAt":`)
	out.value(at(s.opts.Store.Now()))
	out.text(`,"check":`)
	out.value(check)
	out.text(`,"documents":[`)
	for i, n := range numbers {
		d, err := s.document(q, id, n)
		if err != nil {
			return out.abort(err)
		}
		out.separate(i)
		out.value(d)
	}
	out.text(`],"events":[`)
	count := 0
	for after := int64(0); out.err == nil; {
		page, err := s.opts.Store.StationEvents(q.Context(), id, after, eventPage)
		if err != nil {
			return out.abort(err)
		}
		for _, e := range page {
			out.separate(count)
			out.value(eventOf(e))
			count, after = count+1, e.Seq
		}
		if len(page) < eventPage {
			break
		}
	}
	out.text("]}\n")
	return out.abort(out.err)
}

func eventOf(e store.StationEvent) event {
	out := event{
		StationID: e.StationID, Seq: e.Seq, TS: e.At, Kind: e.Kind, Detail: e.Detail,
		PrevHash: hex.EncodeToString(e.Prev[:]), Hash: hex.EncodeToString(e.Hash[:]),
	}
	if e.Attempt != 0 {
		out.Attempt = &e.Attempt
	}
	return out
}

// pieces writes an answer whose length is not known. After an error it writes
// nothing.
type pieces struct {
	q   *request
	ctl *http.ResponseController
	err error
}

func newPieces(q *request) *pieces {
	q.w.Header().Set("Content-Type", "application/json")
	q.w.WriteHeader(http.StatusOK)
	return &pieces{q: q, ctl: http.NewResponseController(q.w)}
}

func (p *pieces) text(text string) { p.write([]byte(text)) }

func (p *pieces) separate(i int) {
	if i > 0 {
		p.text(",")
	}
}

func (p *pieces) value(v any) {
	data, err := marshal(v)
	if err != nil && p.err == nil {
		p.err = err
	}
	p.write(data)
}

func (p *pieces) write(data []byte) {
	if p.err != nil {
		return
	}
	_ = p.ctl.SetWriteDeadline(time.Now().Add(writeWait))
	_, p.err = p.q.w.Write(data)
}

// abort breaks an answer off that has begun, so that nobody takes it for whole.
func (p *pieces) abort(err error) error {
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

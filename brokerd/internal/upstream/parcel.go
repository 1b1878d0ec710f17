package upstream

import (
	"io"
	"sync"
)

// rooms are for bodies: as they came while they are parsed, and in their canonical form
// until they are sent. Nothing keeps a part of one. A few are kept for the next bodies; a
// sync.Pool would keep those of a crowd.
var rooms = make(chan []byte, 16)

// takeRoom gives an empty room.
func takeRoom() []byte {
	select {
	case room := <-rooms:
		return room[:0]
	default:
		return nil
	}
}

// putRoom gives a room back; a large body may be the only one.
func putRoom(room []byte) {
	if cap(room) == 0 || cap(room) > roomy {
		return
	}
	select {
	case rooms <- room:
	default:
	}
}

// A parcel is a body on its way to the provider. The transport keeps the request as
// long as the answer takes, which may be an hour, and must not keep the body with it.
type parcel struct {
	doc Document // not to be used once the parcel was dropped, but by a reader

	mu      sync.Mutex
	readers int  // that were opened and not closed
	dropped bool // no reader is opened any more
}

// newParcel makes the canonical form of a body.
func newParcel(body []byte) (*parcel, error) {
	doc, err := canonical(takeRoom(), body)
	if err != nil {
		return nil, err
	}
	return &parcel{doc: doc}, nil
}

// drop says that the answer has begun, or never will. It may be said twice.
func (p *parcel) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped = true
	p.release()
}

// release lets the bytes go when nobody reads them; p.mu is held.
func (p *parcel) release() {
	if p.dropped && p.readers == 0 {
		putRoom(p.doc)
		p.doc = nil
	}
}

// hold keeps the bytes until letGo.
func (p *parcel) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers++
}

func (p *parcel) letGo() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers--
	p.release()
}

// texts are the digests of the texts of a request.
type texts struct {
	digests   []string
	truncated bool
}

// texts has the digests made beside other work, and gives them by a channel.
func (p *parcel) texts() <-chan texts {
	out := make(chan texts, 1)
	p.hold()
	go func() {
		defer p.letGo()
		digests, truncated := p.doc.InputDigests()
		out <- texts{digests, truncated}
	}()
	return out
}

// open gives a reader of the body from its beginning.
func (p *parcel) open() io.ReadCloser {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.readers++
	return &parcelReader{p: p, rest: p.doc}
}

// A parcelReader may be closed while it is read: the transport does so when the request
// is given up.
type parcelReader struct {
	p    *parcel
	rest []byte // p.mu
	done bool   // p.mu
}

func (r *parcelReader) Read(b []byte) (int, error) {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close is called once the transport reads no more.
func (r *parcelReader) Close() error {
	r.p.mu.Lock()
	done := r.done
	r.done, r.rest = true, nil
	r.p.mu.Unlock()
	if !done {
		r.p.letGo()
	}
	return nil
}

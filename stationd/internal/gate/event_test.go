package gate_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"drawbridge/stationd/internal/gate"
)

// streams are whole event streams of all kinds, and the events a client sees.
var streams = []struct {
	name, text string
	events     int
}{
	{"LF", "data: a\n\nid: 7\nevent: x\ndata: b\ndata: c\n\n", 2},
	{"CRLF", "data: a\r\n\r\nid: 7\r\nevent: x\r\ndata: b\r\ndata: c\r\n\r\n", 2},
	{"CR", "data: a\r\rid: 7\revent: x\rdata: b\rdata: c\r\r", 2},
	{"mixed", "data: a\r\n\ndata: b\n\r\ndata: c\r\r\ndata: d\n\r", 4},
	{"comments", ": hello\n\n:\n\ndata: a\n\n: again\n: and again\n\n", 1},
	{"no colon", "data\n\n", 1},
	{"no data", "event: x\nid: 1\n\nretry: 10\n\ndatabase: 1\n\ndat: 2\n\n data: 3\n\n", 0},
	{"BOM", "\xef\xbb\xbfdata: a\n\n", 0},
	{"blank lines", "\n\n\ndata: a\n\n\n\n", 1},
	{"binary", "data: \x00\xff\x80\n\n", 1},
	{"unfinished", "data: a\n\ndata: b\n", 1},
	{"nothing", "", 0},
}

// Proves station 17.S2: whatever the line ends, and wherever the stream is cut,
// the bytes that come out are those that went in, cut at the ends of events.
func TestSplit(t *testing.T) {
	for _, tc := range streams {
		t.Run(tc.name, func(t *testing.T) {
			for cut := range len(tc.text) + 1 {
				r := io.MultiReader(strings.NewReader(tc.text[:cut]), strings.NewReader(tc.text[cut:]))
				check(t, r, tc.text, tc.events)
			}
			check(t, iotest.OneByteReader(strings.NewReader(tc.text)), tc.text, tc.events)
			check(t, iotest.DataErrReader(strings.NewReader(tc.text)), tc.text, tc.events)
		})
	}
}

func check(t *testing.T, r io.Reader, text string, events int) {
	t.Helper()
	pieces, seen, err := gate.Split(r)
	sum := 0
	for _, n := range seen {
		sum += n
	}
	if got := strings.Join(pieces, ""); got != text || err != nil || sum != events {
		t.Fatalf("got %q, %v, %d events, want %q, %d", got, err, sum, text, events)
	}
	for i, p := range pieces[:max(0, len(pieces)-1)] {
		trimmed := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(p)
		whole := strings.HasSuffix(trimmed, "\n\n") || trimmed == "\n"
		if !whole {
			t.Fatalf("piece %d of %q is not whole events: %q", i, text, p)
		}
	}
}

// Proves station 17.S2: an event of 1 MiB passes, one byte more ends the stream.
func TestSplit_Large(t *testing.T) {
	event := "data: " + strings.Repeat("x", gate.MaxEvent-8) + "\n\n"
	pieces, _, err := gate.Split(strings.NewReader("data: a\n\n" + event + event))
	if want := []string{"data: a\n\n", event, event}; !cmp.Equal(strings.Join(pieces, ""), strings.Join(want, "")) || err != nil {
		t.Fatalf("%d pieces, %v", len(pieces), err)
	}
	pieces, _, err = gate.Split(strings.NewReader("data: a\n\ndata: x" + event[6:]))
	if len(pieces) != 1 || err == nil {
		t.Errorf("%d pieces, %v", len(pieces), err)
	}
}

// What is broken off is not handed out.
func TestSplit_Broken(t *testing.T) {
	broken := errors.New("broken")
	pieces, _, err := gate.Split(io.MultiReader(strings.NewReader("data: a\n\ndata: b\n"), iotest.ErrReader(broken)))
	if diff := cmp.Diff([]string{"data: a\n\n"}, pieces); diff != "" || !errors.Is(err, broken) {
		t.Errorf("%v\n%s", err, diff)
	}
}

func FuzzSplit(f *testing.F) {
	for _, tc := range streams {
		f.Add([]byte(tc.text), uint64(1))
	}
	f.Fuzz(func(t *testing.T, text []byte, seed uint64) {
		whole, _, err := gate.Split(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		cut, _, err := gate.Split(&randomReader{bytes.NewReader(text), rand.New(rand.NewPCG(seed, 0))})
		if got := strings.Join(cut, ""); err != nil || got != string(text) || strings.Join(whole, "") != got {
			t.Fatalf("%q became %q, %v", text, got, err)
		}
	})
}

// randomReader reads a few bytes at a time.
type randomReader struct {
	io.Reader
	rand *rand.Rand
}

func (r *randomReader) Read(b []byte) (int, error) {
	return r.Reader.Read(b[:min(len(b), 1+r.rand.IntN(5))])
}

package wire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/stationd/internal/wire"
)

func TestReader(t *testing.T) {
	code := 0
	sent := wire.Message{Event: wire.EventExit, Exit: &wire.End{Reason: wire.ReasonExited, Code: &code}, Data: []byte("\x00\xff")}
	var buf bytes.Buffer
	if err := wire.Write(&buf, sent); err != nil {
		t.Fatal(err)
	}
	r := wire.NewReader(&buf)
	var got wire.Message
	if err := r.Read(&got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sent, got); diff != "" {
		t.Error(diff)
	}
	if err := r.Read(&got); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	for name, tc := range map[string]struct {
		text string
		want error // nil: any
	}{
		"cut":     {`{"id":1}`, io.ErrUnexpectedEOF},
		"long":    {strings.Repeat(" ", wire.MaxLine+1), nil},
		"unknown": {`{"x":1}` + "\n", nil},
		"twice":   {`{"id":1,"id":2}` + "\n", nil},
	} {
		err := wire.NewReader(strings.NewReader(tc.text)).Read(new(wire.Request))
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := wire.Write(io.Discard, wire.Message{Data: make([]byte, wire.MaxLine)}); err == nil {
		t.Error("a line over its bound was written")
	}
}

// Whatever a line holds, reading it ends, and what was read can be written.
func FuzzReader(f *testing.F) {
	f.Add([]byte(`{"id":1,"op":"hello","nonce":"x"}` + "\n"))
	f.Add([]byte(`{"id":2,"op":"launch","launch":{"args":["/bin/true"],"env":[],"dir":"/"}}` + "\n"))
	f.Add([]byte("{}\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := wire.NewReader(bytes.NewReader(data))
		for range bytes.Count(data, []byte("\n")) + 1 {
			var q wire.Request
			if r.Read(&q) == nil {
				if err := wire.Write(io.Discard, q); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

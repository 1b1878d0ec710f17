package nodehost_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"drawbridge/kitrun/internal/nodehost"
)

// FuzzReadFrame reads what a process may write: a frame, the end, or an error, and
// never more memory than came.
func FuzzReadFrame(f *testing.F) {
	frame := func(body string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body...)
	}
	for _, seed := range [][]byte{
		nil, {0}, {0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {4, 0, 0, 1}, {4, 0, 0, 0, '{'},
		frame(`{"kind":"ready","protocol":1,"node":"v22.1.0"}`), frame(`{"kind":"call","id":1,"method":"worker.run","params":{"a":[1]}}`),
		frame(`{"kind":"result","deliveryId":"d","result":null}`), frame(`[]`), frame(`{"id":"1"}`), frame(`{"kind":"error"}{}`),
		append(frame(`{"kind":"abort","id":3}`), frame(`{"kind":"abort","id":4}`)...),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			_, err := nodehost.ReadFrame(r)
			switch {
			case err == nil:
			case errors.Is(err, io.EOF), errors.Is(err, nodehost.ErrFrame):
				return
			default:
				t.Fatalf("an error of neither kind: %v", err)
			}
		}
	})
}

// What is written is read again.
func TestFrame(t *testing.T) {
	var b bytes.Buffer
	for _, body := range []string{`{"kind":"a"}`, `{"kind":"b","result":"` + string(bytes.Repeat([]byte("x"), 3<<20)) + `"}`} {
		if err := nodehost.WriteFrame(&b, json.RawMessage(body)); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"a", "b"} {
		if kind, err := nodehost.ReadFrame(&b); kind != want || err != nil {
			t.Errorf("got %q, %v, want %q", kind, err, want)
		}
	}
	if _, err := nodehost.ReadFrame(&b); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	if err := nodehost.WriteFrame(io.Discard, string(make([]byte, nodehost.MaxFrame))); err == nil {
		t.Error("a frame above the bound was written")
	}
}

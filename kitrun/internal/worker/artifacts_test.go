package worker_test

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

// A file has its name only when it is whole; one that cannot be finished leaves nothing.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	names := func() (names []string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	meanwhile := readerFunc(func([]byte) (int, error) {
		if slices.Contains(names(), "id.receipt.json") {
			t.Error("half a receipt passes for one")
		}
		return 0, io.EOF
	})
	if _, err := worker.Keep(dir, "id", ".receipt.json", io.MultiReader(strings.NewReader("{}"), meanwhile)); err != nil {
		t.Fatal(err)
	}
	want := []string{"id.receipt.json"}
	if diff := cmp.Diff(want, names()); diff != "" {
		t.Error(diff)
	}
	if _, err := worker.Keep(dir, "id", ".receipt.json", strings.NewReader("other")); !fault.Is(err, fault.OutputExists) {
		t.Errorf("a second one: %v", err)
	}
	fails := readerFunc(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF })
	if _, err := worker.Keep(dir, "id-2", ".receipt.json", fails); !fault.Is(err, fault.ReceiptUnwritten) {
		t.Errorf("one that cannot be finished: %v", err)
	}
	if diff := cmp.Diff(want, names()); diff != "" {
		t.Error(diff)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// Output is kept up to its bound, wherever it is cut, and without the capability.
func TestCapture(t *testing.T) {
	secret, _ := redact.NewCapability()
	const most = 16 << 20
	for _, tc := range []struct {
		name string
		in   string
		over int
		want string
	}{
		{"nothing", "", 0, ""},
		{"exactly the bound", strings.Repeat("x", most), 0, strings.Repeat("x", most)},
		{"one more", strings.Repeat("x", most+1), 1, strings.Repeat("x", most)},
		{"the capability", "a " + secret.Reveal() + " b " + secret.Reveal(), 0, "a " + worker.CapabilityWord + " b " + worker.CapabilityWord},
		{"its beginning at the end", "a " + secret.Reveal()[:40], 0, "a " + secret.Reveal()[:40]},
	} {
		for _, step := range []int{7, 32 << 10} {
			if step < 1000 && len(tc.in) > 1000 {
				continue // the same in many small steps
			}
			t.Run(tc.name, func(t *testing.T) {
				over := 0
				c, err := worker.NewCapture(t.TempDir(), secret, func() { over++ })
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				for rest := []byte(tc.in); len(rest) > 0; {
					n := min(step, len(rest))
					if got, err := c.Write(rest[:n]); got != n || err != nil {
						t.Fatalf("wrote %d of %d, %v", got, n, err)
					}
					rest = rest[n:]
				}
				read := func(most int64) []byte {
					r, err := c.End(most)
					if err != nil {
						t.Fatal(err)
					}
					data, err := io.ReadAll(r)
					if err != nil {
						t.Fatal(err)
					}
					return data
				}
				if got := read(-1); !bytes.Equal(got, []byte(tc.want)) || over != tc.over {
					t.Errorf("%d bytes, %d times over; want %d and %d", len(got), over, len(tc.want), tc.over)
				}
				if got, want := read(5), tc.want[max(0, len(tc.want)-5):]; string(got) != want {
					t.Errorf("the last bytes are %q, want %q", got, want)
				}
				if n, err := c.Write([]byte("late")); n != 4 || err != nil || len(read(-1)) != len(tc.want) {
					t.Errorf("what comes late: %d, %v", n, err)
				}
			})
		}
	}
}

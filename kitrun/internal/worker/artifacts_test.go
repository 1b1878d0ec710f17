package worker_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/redact"
)

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

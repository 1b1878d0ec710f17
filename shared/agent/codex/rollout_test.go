package codex_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent/codex"
)

// both reads a file from both ends and reports where they disagree.
func both(t *testing.T, data []byte) []codex.Span {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.jsonl")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	forwards, err := codex.Forwards(path)
	if err != nil {
		t.Fatal(err)
	}
	backwards, err := codex.Backwards(path)
	if err != nil {
		t.Fatal(err)
	}
	slices.Reverse(backwards)
	if diff := cmp.Diff(forwards, backwards); diff != "" {
		t.Fatalf("forwards and backwards differ:\n%s", diff)
	}
	return forwards
}

func TestRollout_Lines(t *testing.T) {
	const k = 1 << 10
	for _, tc := range []struct {
		name string
		text string
		want int
	}{
		{"empty", "", 0},
		{"no newline", "abc", 0},
		{"one", "abc\n", 1},
		{"a rest", "abc\ndef", 1},
		{"empty lines", "\n\n\n", 3},
		{"a line as long as a piece", strings.Repeat("x", 16*k-1) + "\n" + strings.Repeat("y", 16*k-1) + "\n", 2},
		{"a newline at the border of a piece", strings.Repeat("x", 5*k) + "\n" + strings.Repeat("y", 16*k-1) + "\n", 2},
		{"lines longer than every buffer", strings.Repeat(strings.Repeat("x", 3000*k)+"\n", 3), 3},
		{"many", strings.Repeat("line\n", 50000), 50000},
		{"many and a long rest", strings.Repeat("line\n", 5000) + strings.Repeat("x", 2000*k), 5000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := both(t, []byte(tc.text)); len(got) != tc.want {
				t.Errorf("%d lines, want %d", len(got), tc.want)
			}
		})
	}
}

// FuzzLines: both readers see the same lines, and only whole ones.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{}\n{}\n{"), uint16(0))
	f.Add([]byte("\n\n"), uint16(17000))
	f.Fuzz(func(t *testing.T, data []byte, fill uint16) {
		data = append(bytes.Repeat([]byte("x"), int(fill)), data...)
		spans := both(t, data)
		if n := bytes.Count(data, []byte("\n")); len(spans) != n {
			t.Fatalf("%d lines, want %d", len(spans), n)
		}
		for _, s := range spans {
			if data[s.End-1] != '\n' || bytes.IndexByte(data[s.Start:s.End-1], '\n') >= 0 {
				t.Fatalf("%v is not one line", s)
			}
		}
	})
}

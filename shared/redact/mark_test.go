package redact_test

import (
	"strings"
	"testing"

	"drawbridge/shared/redact"
)

// half runs a stream that never ends, as one of a process that was killed: what was
// passed on, and the last mark.
func half(t *testing.T, r *redact.Redactor, from redact.Mark, pieces ...string) (string, redact.Mark) {
	t.Helper()
	var out strings.Builder
	last := from
	s := r.Resume(from, func(text []byte, m redact.Mark) error {
		out.Write(text)
		last = m
		return nil
	})
	for _, p := range pieces {
		write(t, s, p)
	}
	shown, mark := out.String(), last
	if err := s.Close(); err != nil { // its timer
		t.Fatal(err)
	}
	return shown, mark
}

// A stream that goes on at its last mark with what follows it, in another process,
// gives the same as whole: for every text and every place at which the first ended.
func TestStream_Resume(t *testing.T) {
	r := sample(redact.Options{})
	for i, tc := range cases {
		text := "one\n" + tc.in + "\ntwo\nthree " + tc.in + "\nend\n"
		if i%20 == 0 {
			text += strings.Repeat("a longer line, token=abc ", 700) + "\n" // it is passed on in pieces
		}
		if strings.HasPrefix(tc.name, "pem unfinished") {
			text += "-----END X-----\n"
		}
		want := r.Text(text)
		step := 1
		for cut := 0; cut <= len(text); cut += step {
			first, mark := half(t, r, redact.Mark{}, text[:cut])
			second, end := half(t, r, mark, text[mark.Taken:])
			if got := first + second; got != want || end.Taken != int64(len(text)) {
				n := 0
				for n < min(len(got), len(want)) && got[n] == want[n] {
					n++
				}
				t.Fatalf("%s: killed at %d, resumed at %+v, end %+v of %d: differs from %d on:\n got %.200q\nwant %.200q", tc.name, cut, mark, end, len(text), n, got[n:], want[n:])
			}
			if cut > len(tc.in)+10 {
				step = 499
			}
		}
	}
}

// After a gap nothing shows that could have begun in it.
func TestStream_Lost(t *testing.T) {
	r := sample(redact.Options{})
	for _, tc := range []struct{ name, before, after, want string }{
		{"rest of a token", "key " + skKey[:12], skKey[12:] + " x\nnext one\n", "[redacted]\nnext one\n"},
		{"inside of a token", "a\n", skKey[5:] + " x\nnext one\n", "a\n[redacted]\nnext one\n"},
		{"folded header", "a\n", "rest\n it is folded\n\tand again\nnext one\n", "a\n[redacted]\n [redacted]\n\t[redacted]\nnext one\n"},
		{"inside of a PEM block", "a\n", "cdEF\n" + strings.SplitN(pemKey, "\n", 2)[1] + "\nnext one\nb64 is shown\n", "a\n[redacted]\nnext one\nb64 is shown\n"},
		{"PEM block open before", pemOpen + "\n", "cdEF\nGHij==\n-----END X-----\nnext one\n", "[redacted][redacted]\nnext one\n"},
		{"hidden line before", strings.Repeat("x", 300<<10), "x\nnext one\n", "[redacted]\nnext one\n"},
	} {
		var out strings.Builder
		s := r.Stream(&out)
		write(t, s, tc.before)
		if err := s.Lost(100); err != nil {
			t.Fatal(err)
		}
		write(t, s, tc.after)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if out.String() != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, out.String(), tc.want)
		}
		if err := s.Lost(1); err == nil {
			t.Errorf("%s: a closed stream loses", tc.name)
		}
	}
}

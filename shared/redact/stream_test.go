package redact_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"drawbridge/shared/redact"
)

// Proves station 17.D7: a secret split over two writes with a second between
// them is not shown, and what is not the beginning of one is, after a moment.
func TestStream_Idle(t *testing.T) {
	for _, tc := range []struct{ name, first, shown, second, all string }{
		{"pattern", "key " + skKey[:9], "key ", skKey[9:] + "\n", "key [redacted]\n"},
		{"known", "see " + known[:9], "see ", known[9:] + " x\n", "see [redacted] x\n"},
		{"header", "Authorization: Bearer a", "", "bc\nx\n", "Authorization: [redacted]\nx\n"},
		{"member", `{"token": "a`, "", `bc", "n": 1}` + "\n", `{"token": "[redacted]", "n": 1}` + "\n"},
		{"value apart from its name", `x {"token": "abc"`, "x ", ` , "n": 1}` + "\n", `x {"token": "[redacted]" , "n": 1}` + "\n"},
		{"flag", "run --token ", "run ", "abc -v\n", "run --token [redacted] -v\n"},
		{"first word", "  ", "  ", "password: abc\n", "  password: [redacted]\n"},
		{"first word later", "> ", "> ", "password: abc\n", "> password: [redacted]\n"},
		{"prompt", "Continue? [y/n] ", "Continue? [y/n] ", "y\n", "Continue? [y/n] y\n"},
		{"half a word", "progress 4", "progress ", "2%\n", "progress 42%\n"},
		{"pem", "x " + pemOpen[:20], "x ", pemOpen[20:] + "\n-----END X-----\ny\n", "x [redacted]\ny\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out buffer
				s := sample(redact.Options{}).Stream(&out)
				write(t, s, tc.first)
				if out.String() != "" {
					t.Errorf("shown at once: %q", out.String())
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if out.String() != tc.shown {
					t.Errorf("shown after a second: %q, want %q", out.String(), tc.shown)
				}
				write(t, s, tc.second)
				if out.String() != tc.all {
					t.Errorf("shown at the end: %q, want %q", out.String(), tc.all)
				}
				if err := s.Close(); err != nil || out.String() != tc.all {
					t.Errorf("after Close: %q, %v", out.String(), err)
				}
			})
		})
	}
}

// buffer may be written by the timer of a stream.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func write(t *testing.T, s *redact.Stream, text string) {
	t.Helper()
	if _, err := s.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// A long line is passed on in pieces, and gives the same as whole.
func TestStream_LongLine(t *testing.T) {
	r := sample(redact.Options{})
	for name, line := range map[string]string{
		"words":         strings.Repeat("some words and token=abc then ", 4000) + "end\n",
		"members":       strings.Repeat(`{"token": "a b c", "text": "x y"} , `, 4000) + "\n",
		"known":         strings.Repeat(known+" , ", 6000) + "\n",
		"no word first": strings.Repeat("= ", 20000) + "password: abc\nx\n",
	} {
		var out bytes.Buffer
		s := r.Stream(&out)
		for piece := range bytes.Lines([]byte(line)) {
			for len(piece) > 0 {
				n := min(1000, len(piece))
				write(t, s, string(piece[:n]))
				piece = piece[n:]
			}
			if name == "words" && out.Len() < len(line)/4 {
				t.Errorf("%s: only %d of %d bytes passed on before the end", name, out.Len(), len(line))
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if want := r.Text(line); out.String() != want {
			t.Errorf("%s: differs from whole (%d and %d bytes)", name, out.Len(), len(want))
		}
	}
}

// A line that cannot be cut anywhere is hidden: the memory is bounded and
// nothing slips through.
func TestStream_EndlessToken(t *testing.T) {
	var out bytes.Buffer
	s := sample(redact.Options{}).Stream(&out)
	write(t, s, "first\n")
	for range 1000 {
		write(t, s, strings.Repeat("x", 1000))
	}
	write(t, s, " tail of it\nnext\n")
	if err := s.Close(); err != nil || out.String() != "first\n[redacted]\nnext\n" {
		t.Errorf("%d bytes, %v: %.200q", out.Len(), err, out.String())
	}
}

// What a hidden line opened goes on behind it: a PEM block, wherever its mark is cut, and
// a folded header.
func TestStream_EndlessToken_Opens(t *testing.T) {
	const begin = "-----BEGIN PRIVATE KEY-----"
	long := strings.Repeat("x", 300<<10)
	for name, pieces := range map[string][]string{
		"in the first piece": {"y" + long + begin},
		"far behind":         {long, "y", begin},
		"header":             {"Authorization: " + long},
	} {
		for cut := range len(begin) {
			var out bytes.Buffer
			s := sample(redact.Options{}).Stream(&out)
			rest := strings.Join(pieces[1:], "") + "\n"
			write(t, s, pieces[0][:len(pieces[0])-cut])
			write(t, s, pieces[0][len(pieces[0])-cut:])
			write(t, s, rest[:len(rest)-1-min(cut, len(rest)-1)])
			write(t, s, rest[len(rest)-1-min(cut, len(rest)-1):])
			if name == "header" {
				write(t, s, "  hunter2x9\n")
			} else {
				write(t, s, "MIIEvQIBADANBgkqhkiG9w0B\nhunter2x9\n-----END PRIVATE KEY-----\n")
			}
			write(t, s, "shown again\n")
			if err := s.Close(); err != nil || strings.Contains(out.String(), "hunter2x9") || strings.Contains(out.String(), "MIIE") || !strings.HasSuffix(out.String(), "\nshown again\n") {
				t.Fatalf("%s, cut %d: %d bytes, %v: %.200q", name, cut, out.Len(), err, out.String())
			}
		}
	}
}

type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) { f.n++; return 0, errors.New("disk full") }

func TestStream_Error(t *testing.T) {
	f := &failing{}
	s := redact.New(redact.Options{}).Stream(f)
	for range 3 {
		if _, err := s.Write([]byte("line\n")); err == nil {
			t.Error("no error")
		}
	}
	if err := s.Close(); err == nil || f.n != 1 {
		t.Errorf("Close = %v after %d writes", err, f.n)
	}
	if _, err := s.Write([]byte("x")); err == nil {
		t.Error("Write after Close")
	}
	if err := s.Close(); err == nil {
		t.Error("second Close forgets the error")
	}
}

package redact_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"drawbridge/shared/redact"
)

const exactWord = "[gone]"

func exactOf(values ...string) *redact.Exact {
	var secrets []redact.Secret
	for _, v := range values {
		secrets = append(secrets, redact.NewSecret(v))
	}
	return redact.NewExact(exactWord, secrets...)
}

func TestExact(t *testing.T) {
	const token = `sk-abcdabcdEF"gh\ij`
	for _, tc := range []struct {
		name   string
		values []string
		in     string
		want   string
		hidden int64
	}{
		{"nothing known", nil, "any text", "any text", 0},
		{"empty value", []string{""}, "any text", "any text", 0},
		{"alone", []string{token}, token, exactWord, 1},
		{"inside", []string{token}, "x" + token + "y", "x" + exactWord + "y", 1},
		{"as JSON writes it", []string{token}, `{"a":"sk-abcdabcdEF\"gh\\ij"}`, `{"a":"` + exactWord + `"}`, 1},
		{"two in a row", []string{token}, token + token, exactWord + exactWord, 2},
		{"all but the last byte", []string{token}, token[:len(token)-1] + "k", token[:len(token)-1] + "k", 0},
		{"a beginning before it", []string{token}, token[:9] + token, token[:9] + exactWord, 1},
		{"a beginning at the end", []string{token}, "x" + token[:9], "x" + token[:9], 0},
		{"overlapping itself", []string{"abcdeabc"}, "abcdeabcdeabc.", exactWord + ".", 1},
		{"a run", []string{"aaaaaaaa"}, "b" + strings.Repeat("a", 30) + "b", "b" + exactWord + "b", 1},
		{"one inside the other", []string{"cdefghij", "abcdefghijkl"}, "abcdefghijk_abcdefghijkl", "ab" + exactWord + "k_" + exactWord, 2},
		{"one begins the other", []string{"abcdefgh", "abcdefghijkl"}, "abcdefghijk_abcdefghijkl", exactWord + "ijk_" + exactWord, 2},
		{"two that overlap", []string{"abcdefgh", "efghijkl"}, "_abcdefghijkl_", "_" + exactWord + "_", 1},
		{"short", []string{"abc"}, "aabcabab", "a" + exactWord + "abab", 1},
		{"one byte", []string{"a"}, "banana", "b" + exactWord + "n" + exactWord + "n" + exactWord, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := exactOf(tc.values...)
			for cut := range len(tc.in) + 1 {
				f := x.Filter()
				got := f.Take(nil, []byte(tc.in[:cut]))
				got = f.Take(got, []byte(tc.in[cut:]))
				got = f.End(got)
				if string(got) != tc.want || f.Hidden() != tc.hidden {
					t.Fatalf("cut at %d: %q with %d hidden, want %q with %d", cut, got, f.Hidden(), tc.want, tc.hidden)
				}
			}
			f := x.Filter()
			var got []byte
			for i := range len(tc.in) {
				got = f.Take(got, []byte(tc.in[i:i+1]))
			}
			if got = f.End(got); string(got) != tc.want || f.Hidden() != tc.hidden {
				t.Fatalf("byte by byte: %q with %d hidden, want %q with %d", got, f.Hidden(), tc.want, tc.hidden)
			}
			if x.Finds(tc.in) != (tc.hidden > 0) {
				t.Errorf("Finds = %v", x.Finds(tc.in))
			}
		})
	}
}

// Held back is never more than what begins a value, and never a whole value.
func TestExact_HoldsBackOnlyBeginnings(t *testing.T) {
	const token = "sk-abcdsk-abEFGHIJ"
	for _, tc := range []struct{ in, held string }{
		{"data: x\n\n", ""}, {"data: s", "s"}, {"data: sk-abcdsk-", "sk-abcdsk-"}, {"sk-abcdsk-x", ""}, {"sk-abcdsk-abcd", "sk-abcd"},
		{token, ""}, {token + "s", "s"}, {"sk-sk-", "sk-"},
	} {
		f := exactOf(token).Filter()
		got := string(f.Take(nil, []byte(tc.in)))
		want := strings.ReplaceAll(strings.TrimSuffix(tc.in, tc.held), token, exactWord)
		if got != want {
			t.Errorf("after %q: %q was passed on, want %q", tc.in, got, want)
		}
	}
}

// A value that begins again and again, in whatever room, costs no more room and time
// than another.
func TestExact_Hostile(t *testing.T) {
	periodic := strings.Repeat("ab", 4096)
	for name, in := range map[string]string{
		"beginnings of a periodic value": strings.Repeat("ab", 1<<19),
		"heads":                          strings.Repeat("aXbabababab", 1<<17),
	} {
		f := exactOf(periodic+"c", "zzzzzzzzzzzzzzzz").Filter()
		var out []byte
		for piece := []byte(in); len(piece) > 0; {
			n := min(len(piece), 32<<10)
			out = f.Take(out, piece[:n])
			piece = piece[n:]
		}
		if out = f.End(out); string(out) != in {
			t.Errorf("%s: changed", name)
		}
	}
}

// FuzzExact compares with a replacement of the whole text, for every way to cut it.
func FuzzExact(f *testing.F) {
	f.Add("the secret-value1 and secret-secret-value1", "secret-value1", uint64(1))
	f.Add(`x\"y\\z\"y\\zx"y\z`, `"y\z`, uint64(2))
	f.Add("aaaaaaaaaaaabaaaab", "aaaab", uint64(3))
	f.Add("sk-1sk-1sk-12", "sk-12", uint64(4))
	f.Fuzz(func(t *testing.T, text, value string, seed uint64) {
		if value == "" || len(text) > 1<<12 || len(value) > 1<<10 {
			return
		}
		for _, r := range value {
			if r < 0x21 || r > 0x7E { // as in a header
				return
			}
		}
		x := exactOf(value)
		whole := x.Filter()
		want := whole.End(whole.Take(nil, []byte(text)))
		if strings.Contains(exactWord, value) {
			return
		}
		rnd := rand.New(rand.NewPCG(seed, 0))
		cut := x.Filter()
		var got []byte
		for rest := []byte(text); len(rest) > 0; {
			n := 1 + rnd.IntN(len(rest))
			got = cut.Take(got, rest[:n])
			rest = rest[n:]
		}
		got = cut.End(got)
		if !bytes.Equal(got, want) || cut.Hidden() != whole.Hidden() {
			t.Fatalf("in pieces %q (%d), whole %q (%d)", got, cut.Hidden(), want, whole.Hidden())
		}
		// What is left holds no value: between two words nothing was put together.
		for part := range strings.SplitSeq(string(got), exactWord) {
			if !strings.Contains(text, exactWord) && strings.Contains(part, value) {
				t.Fatalf("%q still holds %q", got, value)
			}
		}
		// Without a value that overlaps another, it is a plain replacement.
		quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value)
		if quoted == value && !selfOverlapping(value) {
			if plain := strings.ReplaceAll(text, value, exactWord); string(got) != plain {
				t.Fatalf("got %q, want %q", got, plain)
			}
		}
	})
}

func selfOverlapping(v string) bool {
	for n := 1; n < len(v); n++ {
		if strings.HasPrefix(v, v[len(v)-n:]) {
			return true
		}
	}
	return false
}

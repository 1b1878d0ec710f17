package codex_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

func newAdapter(t testing.TB) *codex.Adapter {
	t.Helper()
	set, err := rule.Load("")
	if err != nil {
		t.Fatal(err)
	}
	return codex.New(codex.Options{Rules: set})
}

func TestPrepare(t *testing.T) {
	a := newAdapter(t)
	max := strings.Repeat("x", 32768)
	for _, tc := range []struct {
		name, in, want string
		code           fault.Code
	}{
		{"plain", "fix the test", "fix the test", ""},
		{"both ends trimmed", " \n\tfix\n the test \u00a0\n", "fix\n the test", ""},
		{"inner white space kept", "a\t b\n\n  c", "a\t b\n\n  c", ""},
		{"blank", " \n\t\u2003", "", fault.InvalidArguments},
		{"empty", "", "", fault.InvalidArguments},
		{"shell", "!echo hi", "", fault.NativeSlashCommand},
		{"shell behind blanks", "  !echo hi", "", fault.NativeSlashCommand},
		{"command", "/status", "", fault.NativeSlashCommand},
		{"path first", "/tmp/foo is a path", "", fault.NativeSlashCommand},
		{"slash on a later line", "look\n/status", "look\n/status", ""},
		{"mention last", "read @README.md", "read @README.md +", ""},
		{"mention alone", "@README.md", "@README.md +", ""},
		{"mention on the last line", "read\n@README.md", "read\n@README.md +", ""},
		{"skill last", "use $imagegen\n", "use $imagegen +", ""},
		{"mention in the middle", "read @README.md now", "read @README.md now", ""},
		{"an address", "write to me@example.com", "write to me@example.com", ""},
		{"carriage return", "a\r\nb", "", fault.InvalidArguments},
		{"escape", "a\x1b[201~b", "", fault.InvalidArguments},
		{"C1", "a\u009b201~b", "", fault.InvalidArguments},
		{"NUL", "a\x00b", "", fault.InvalidArguments},
		{"DEL", "a\x7fb", "", fault.InvalidArguments},
		{"line separator", "a\u2028b", "", fault.InvalidArguments},
		{"invalid UTF-8", "a\xffb", "", fault.InvalidArguments},
		{"longest", max, max, ""},
		{"longest with blanks around", " " + max + "\n", max, ""},
		{"too long", max + "x", "", fault.InvalidArguments},
		{"too long by the word put behind", max[:32765] + " @", "", fault.InvalidArguments},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := a.Prepare(tc.in)
			if tc.code != "" {
				if !fault.Is(err, tc.code) || got != (agent.Prepared{}) {
					t.Errorf("%+v, %v, want %s", got, err, tc.code)
				}
				if in := strings.TrimSpace(tc.in); err != nil && len(in) > 6 && strings.Contains(err.Error(), in) {
					t.Errorf("the error quotes the request: %v", err)
				}
				return
			}
			// The word behind a mention is the rule file's; here only that there is one.
			want := tc.want
			if w, ok := strings.CutSuffix(want, " +"); ok {
				rest, ok := strings.CutPrefix(got.Typed, w+" ")
				if !ok || rest == "" || strings.ContainsAny(rest, "@$/! \n") {
					t.Errorf("typed %q", got.Typed)
				}
				want = got.Typed
			}
			sum := sha256.Sum256([]byte(want))
			if err != nil || got.Typed != want || got.Expected != want || got.RequestHash != hex.EncodeToString(sum[:]) {
				t.Errorf("%+v, %v, want %q", got, err, want)
			}
		})
	}
}

func TestLanded(t *testing.T) {
	a := newAdapter(t)
	long := strings.Repeat("x", 1001)
	for _, tc := range []struct {
		name, typed string
		composer    agent.Composer
		want        bool
	}{
		{"exact", "hello", agent.Composer{Draft: "hello"}, true},
		{"shorter", "hello", agent.Composer{Draft: "hell"}, false},
		{"longer", "hello", agent.Composer{Draft: "hello!"}, false},
		{"a word before", "hello", agent.Composer{Draft: "oh hello"}, false},
		{"empty composer", "hello", agent.Composer{Empty: true}, false},
		{"no composer", "hello", agent.Composer{Draft: "hello", Held: "unseen"}, false},
		{"lines", "a\nb\nc", agent.Composer{Draft: "a\nb\nc"}, true},
		{"a line missing", "a\nb\nc", agent.Composer{Draft: "a\nb"}, false},
		{"a line more", "a\nb", agent.Composer{Draft: "a\nb\nc"}, false},
		{"blank lines", "a\n\n\nb", agent.Composer{Draft: "a\n\n\nb"}, true},
		{"a blank line missing", "a\n\n\nb", agent.Composer{Draft: "a\n\nb"}, false},
		{"a blank line more", "a\nb", agent.Composer{Draft: "a\n\nb"}, false},
		{"wrapped at a blank", "one two three", agent.Composer{Draft: "one\ntwo three"}, true},
		{"wrapped, blank carried over", "one two three", agent.Composer{Draft: "one\n two three"}, true},
		{"wrapped in a word", "abcdefgh", agent.Composer{Draft: "abc\ndefgh"}, true},
		{"a character lost at the break", "abcdefgh", agent.Composer{Draft: "abc\nefgh"}, false},
		{"a run of blanks over a break", "a      b", agent.Composer{Draft: "a\nb"}, true},
		{"a run of blanks with a row of its own", "a      b", agent.Composer{Draft: "a\n\n  b"}, true},
		{"an empty row where one blank stands", "a b", agent.Composer{Draft: "a\n\nb"}, false},
		{"trailing blanks of a line", "a   \nb", agent.Composer{Draft: "a\nb"}, true},
		{"trailing blanks with a row of their own", "a   \nb", agent.Composer{Draft: "a\n\nb"}, true},
		{"and a blank line after them", "a   \n\nb", agent.Composer{Draft: "a\n\n\nb"}, true},
		{"scrolled, indentation lost", "l1\nl2\n  l3\nl4\nl5", agent.Composer{Draft: "l2\nl3\nl4\nl5", Scrolled: true}, false},
		{"indentation", "a\n    b", agent.Composer{Draft: "a\n    b"}, true},
		{"indentation lost", "a\n    b", agent.Composer{Draft: "a\nb"}, false},
		{"tabs", "a\tb\n\tc", agent.Composer{Draft: "a b\n c"}, true},
		{"characters without width", "a\u200bb\ufeffc e\u0301 👍🏽", agent.Composer{Draft: "abc e 👍"}, true},
		{"no-break space", "a\u00a0b", agent.Composer{Draft: "a b"}, true},
		{"1000 shown", long[:1000], agent.Composer{Draft: long[:500] + "\n" + long[:500]}, true},
		{"1001 by number", long, agent.Composer{Draft: "[Pasted Content 1001 chars]", Pasted: 1001}, true},
		{"1001 by another number", long, agent.Composer{Draft: "[Pasted Content 1002 chars]", Pasted: 1002}, false},
		{"number of characters, not bytes", strings.Repeat("é", 1500), agent.Composer{Draft: "[Pasted Content 1500 chars]", Pasted: 1500}, true},
		{"a placeholder for a short text", "hello", agent.Composer{Draft: "[Pasted Content 5 chars]", Pasted: 5}, false},
		{"the placeholder's words as text", "[Pasted Content 7 chars]", agent.Composer{Draft: "[Pasted Content 7 chars]", Pasted: 7}, true},
		{"scrolled", "l1\nl2\nl3\nl4\nl5\nl6", agent.Composer{Draft: "l3\nl4\nl5\nl6", Scrolled: true}, true},
		{"scrolled in a wrapped line", "one two three four five\nl2\nl3\nl4", agent.Composer{Draft: "three four\nfive\nl2\nl3\nl4", Scrolled: true}, true},
		{"scrolled, blank carried over", "one two three four five\nl2\nl3\nl4", agent.Composer{Draft: "three four\n five\nl2\nl3\nl4", Scrolled: true}, true},
		{"scrolled, another end", "l1\nl2\nl3\nl4\nl5\nl6", agent.Composer{Draft: "l3\nl4\nl5\nl7", Scrolled: true}, false},
		{"scrolled, not all of it", "l1\nl2\nl3\nl4\nl5\nl6", agent.Composer{Draft: "l2\nl3\nl4\nl5", Scrolled: true}, false},
		{"scrolled, more than the text", "l2\nl3\nl4\nl5", agent.Composer{Draft: "l1\nl2\nl3\nl4\nl5", Scrolled: true}, false},
		{"scrolled, too little seen", "l1\nl2\nl3\nl4\nl5\nl6", agent.Composer{Draft: "l5\nl6", Scrolled: true}, false},
		{"an end that is not marked as scrolled", "l1\nl2\nl3\nl4\nl5\nl6", agent.Composer{Draft: "l3\nl4\nl5\nl6"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.composer.Seen = tc.composer.Held != "unseen"
			if got := a.Landed(tc.composer, agent.Prepared{Typed: tc.typed, Expected: tc.typed}); got != tc.want {
				t.Errorf("%v, want %v", got, tc.want)
			}
		})
	}
}

// FuzzLanded: a text wrapped at any width is proven, and the proof fails when a
// visible character is lost.
func FuzzLanded(f *testing.F) {
	a := fuzzAdapter
	for _, s := range []string{"hello world", "a\n\n  b", "日本語 text 👍🏽", strings.Repeat("word ", 60), "\tx\ty", "a" + strings.Repeat(" ", 50) + "b"} {
		f.Add(s, uint8(20))
	}
	f.Fuzz(func(t *testing.T, text string, width uint8) {
		p, err := a.Prepare(text)
		if err != nil || utf8.RuneCountInString(p.Typed) > 1000 {
			return
		}
		draft := wrap(codex.Visible, p.Typed, int(width%100)+3)
		if !a.Landed(agent.Composer{Seen: true, Draft: draft}, p) {
			t.Fatalf("%q wrapped as %q is not proven", p.Typed, draft)
		}
		runes := []rune(draft)
		for i, r := range runes {
			if r != ' ' && r != '\n' && codex.Visible(string(r)) != "" {
				less := string(runes[:i]) + string(runes[i+1:])
				if a.Landed(agent.Composer{Seen: true, Draft: less}, p) && strings.Count(less, string(r)) != strings.Count(draft, string(r)) {
					t.Fatalf("%q is proven by %q", p.Typed, less)
				}
				break
			}
		}
	})
}

// wrap breaks each line at blanks, or within a word where none is left.
func wrap(visible func(string) string, text string, width int) string {
	var rows []string
	for _, line := range strings.Split(text, "\n") {
		rest := []rune(visible(line))
		for first := true; first || len(rest) > 0; first = false {
			n := min(width, len(rest))
			row := string(rest[:n])
			if n < len(rest) && rest[n] != ' ' {
				if at := strings.LastIndex(strings.TrimLeft(row, " "), " "); at > 0 && strings.TrimSpace(row) != "" {
					lead := len(row) - len(strings.TrimLeft(row, " "))
					row = row[:lead+at]
				}
			}
			rest = rest[utf8.RuneCountInString(row):]
			rows = append(rows, strings.TrimRight(row, " "))
			rest = []rune(strings.TrimLeft(string(rest), " "))
		}
	}
	return strings.Join(rows, "\n")
}

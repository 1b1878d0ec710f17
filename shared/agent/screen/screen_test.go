package screen_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent/screen"
)

// draw writes the screen in a readable form: each run of equal style in braces.
func draw(s *screen.Screen) string {
	var b strings.Builder
	for _, r := range s.Rows {
		for i, c := range r.Cells {
			if i == 0 || c.Style != r.Cells[i-1].Style {
				b.WriteString("{" + c.Style.String() + "}")
			}
			b.WriteString(c.Text)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestParse(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "ab\ncd\n", "{plain}ab\n{plain}cd\n"},
		{"no newline at the end", "ab", "{plain}ab\n"},
		{"blank rows", "a\n\n\n", "{plain}a\n\n\n"},
		{"style carries over rows", "\x1b[2ma\nb\x1b[0mc", "{dim}a\n{dim}b{plain}c\n"},
		{"bold and dim together", "\x1b[2m-\n\x1b[1m> \x1b[0mx", "{dim}-\n{bold dim}> {plain}x\n"},
		{"22 ends both", "\x1b[1;2ma\x1b[22mb", "{bold dim}a{plain}b\n"},
		{"empty parameter resets", "\x1b[1ma\x1b[mb\x1b[1;;4mc", "{bold}a{plain}b{underline}c\n"},
		{"palette", "\x1b[31ma\x1b[38;5;223mb\x1b[94mc\x1b[39md", "{fg=1}a{fg=223}b{fg=12}c{plain}d\n"},
		{"rgb", "\x1b[38;2;246;226;183ma\x1b[48;2;0;0;1mb", "{fg=#f6e2b7}a{fg=#f6e2b7 bg=#000001}b\n"},
		{"colon forms", "\x1b[38:5:75ma\x1b[38:2::1:2:3mb\x1b[4:3mc\x1b[4:0md", "{fg=75}a{fg=#010203}b{underline fg=#010203}c{fg=#010203}d\n"},
		{"underline colour is skipped", "\x1b[58;5;9;1ma\x1b[58;2;1;2;3;7mb", "{bold}a{bold reverse}b\n"},
		{"cut colour", "\x1b[38;5ma\x1b[38;2;1mb\x1b[38mc", "{plain}abc\n"},
		{"all attributes off", "\x1b[1;3;4;5;7;8;9;53ma\x1b[22;23;24;25;27;28;29;55mb", "{bold italic underline blink reverse hidden strike overline}a{plain}b\n"},
		{"hyperlink", "\x1b]8;;https://example.invalid\x1b\\link\x1b]8;;\x07 x", "{plain}link x\n"},
		{"other sequences", "\x1b[2Ja\x1b[?25lb\x1b(Bc\x1b7d\x1b[>1me\x1b[1 qf", "{plain}abcdef\n"},
		{"string to the end of its row", "a\x1b]0;title\nb", "{plain}a\n{plain}b\n"},
		{"escape at the end", "a\x1b", "{plain}a\n"},
		{"broken sequence", "\x1b[1\nb", "\n{plain}b\n"},
		{"controls", "a\x00\r\x08\x7fb\u0085c", "{plain}abc\n"},
		{"line drawing set", "\x0eq\x0fx\x0e\x1b[0mq", "{charset}q{plain}x{charset}q\n"},
		{"invalid UTF-8", "a\xffb\xc3", "{plain}a\uFFFDb\uFFFD\n"},
		{"combining", "e\u0301x\u200d", "{plain}e\u0301x\u200d\n"},
		{"combining first", "\u0301a", "{plain}a\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := draw(screen.Parse([]byte(tc.in), 80, 0))
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestParse_Wide(t *testing.T) {
	s := screen.Parse([]byte("漢字😀é|  "), 80, 0)
	row := s.Row(0)
	if got, want := row.Text(), "漢字😀é|"; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if got, want := row.Width(), 8; got != want {
		t.Errorf("width %d, want %d", got, want)
	}
	if got, want := row.From(4), "😀é|"; got != want {
		t.Errorf("from column 4 %q, want %q", got, want)
	}
	at := strings.Index(row.Text(), "é")
	if got, want := screen.Text(row.Span(at, at+len("é"))), "é"; got != want {
		t.Errorf("span %q, want %q", got, want)
	}
	if got := row.From(99); got != "" {
		t.Errorf("from column 99 %q", got)
	}
}

func TestParse_Bounds(t *testing.T) {
	for _, tc := range []struct {
		name string
		text []byte
		rows int
		h    int
		cut  bool
	}{
		{"nothing", nil, 0, 0, false},
		{"nothing in a pane", nil, 1, 5, false},
		{"more lines than rows", []byte("a\nb\nc\n"), 2, 2, false},
		{"endless row", bytes.Repeat([]byte("x"), screen.MaxColumns+1), 1, 0, true},
		{"endless rows", bytes.Repeat([]byte("x\n"), screen.MaxRows+1), screen.MaxRows, 0, true},
		{"too much", bytes.Repeat([]byte("x"), screen.MaxBytes+1), 1, 0, true},
		{"endless cluster", append([]byte("e"), bytes.Repeat([]byte("\u0301"), 10000)...), 1, 0, false},
		{"endless parameters", append(append([]byte("\x1b["), bytes.Repeat([]byte("1;"), 100000)...), 'm', 'x'), 1, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := screen.Parse(tc.text, 80, tc.h)
			if len(s.Rows) != tc.rows || s.Cut != tc.cut {
				t.Errorf("%d rows, cut %v; want %d, %v", len(s.Rows), s.Cut, tc.rows, tc.cut)
			}
		})
	}
	if s := screen.Parse([]byte("a\nb\nc\n"), 80, 2); s.Lines != 3 {
		t.Errorf("lines %d, want 3", s.Lines)
	}
}

func TestRegion(t *testing.T) {
	for _, tc := range []struct {
		name  string
		a, b  string
		equal bool
	}{
		{"same drawing by another way", "\x1b[1m› \x1b[0mx", "\x1b[0;1m›\x1b[22m\x1b[1m \x1b[mx", true},
		{"style left over from above", "\x1b[2m\n\x1b[0mx", "\n\x1b[39mx", true},
		{"unseen blanks at the end", "x", "x\x1b[1m   ", true},
		{"seen blanks at the end", "x", "x\x1b[7m   ", false},
		{"other character", "x", "y", false},
		{"other colour", "\x1b[31mx", "\x1b[32mx", false},
		{"other column", "x", " x", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := screen.Parse([]byte("-\n"+tc.a), 80, 0), screen.Parse([]byte("-\n"+tc.b), 80, 0)
			ra, rb := a.Region(len(a.Rows)-1, len(a.Rows)-1), b.Region(len(b.Rows)-1, len(b.Rows)-1)
			if got := bytes.Equal(ra, rb); got != tc.equal {
				t.Errorf("equal %v, want %v\n%q\n%q", got, tc.equal, ra, rb)
			}
		})
	}
}

// A region is itself a capture: reading it gives the same drawing.
func TestRegion_RoundTrip(t *testing.T) {
	for _, path := range captures(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		s := screen.Parse(text, 120, 0)
		once := s.Region(0, len(s.Rows))
		twice := screen.Parse(once, 120, 0).Region(0, len(s.Rows))
		if !bytes.Equal(once, twice) {
			t.Errorf("%s: the region of a region differs", filepath.Base(path))
		}
	}
}

func TestColor(t *testing.T) {
	for _, s := range []string{"default", "0", "255", "#000000", "#f6e2b7"} {
		c, err := screen.ParseColor(s)
		if err != nil || c.String() != s {
			t.Errorf("%q gives %q, %v", s, c.String(), err)
		}
	}
	for _, s := range []string{"", "256", "-1", "#12", "#gggggg", "red"} {
		if c, err := screen.ParseColor(s); err == nil {
			t.Errorf("%q gives %q, want an error", s, c)
		}
	}
}

func captures(t testing.TB) []string {
	t.Helper()
	list, err := filepath.Glob("../testdata/codex/screens/*.ansi")
	if err != nil || len(list) == 0 {
		t.Fatalf("no captured screens: %v", err)
	}
	return list
}

func FuzzParse(f *testing.F) {
	for _, path := range captures(f)[:20] {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, 120, 40)
	}
	f.Add([]byte("\x1b[38;2;1;2"), 0, 0)
	f.Add([]byte("\x1b]8;;\n\x1bP\x1b_\x0e漢\u0301\xff"), -1, 2)
	f.Fuzz(func(t *testing.T, text []byte, w, h int) {
		s := screen.Parse(text, w, h)
		if len(s.Rows) > screen.MaxRows || s.Lines < len(s.Rows) {
			t.Fatalf("%d rows of %d lines", len(s.Rows), s.Lines)
		}
		for _, r := range s.Rows {
			if len(r.Cells) > screen.MaxColumns || strings.HasSuffix(r.Text(), " ") {
				t.Fatalf("row %q with %d cells", r.Text(), len(r.Cells))
			}
			if got := screen.Text(r.Span(0, len(r.Text()))); got != r.Text() {
				t.Fatalf("span %q of %q", got, r.Text())
			}
		}
		once := s.Region(0, len(s.Rows))
		if twice := screen.Parse(once, w, 0).Region(0, screen.MaxRows); !s.Cut && len(once) <= screen.MaxBytes && len(s.Rows) > 0 && !bytes.Equal(once, twice) {
			t.Fatalf("the region of a region differs:\n%q\n%q", once, twice)
		}
	})
}

package fault_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"drawbridge/shared/fault"
)

// Proves tools 11.4.
func TestCleanLine(t *testing.T) {
	long := strings.Repeat("é", 2000)
	for _, tc := range []struct{ name, in, want string }{
		{"plain", "claim delivery d1: lease held", "claim delivery d1: lease held"},
		{"colour and newline", "\x1b[31mbad\x1b[0m\n\tthing\r\n", "bad thing"},
		{"title sequence", "\x1b]0;secret title\x07after", "after"},
		{"c1 and del", "a\u0085b\x7fc", "a b c"},
		{"invalid utf-8", "a\xffb", "a\uFFFDb"},
		{"cut", long, strings.Repeat("é", 1021) + "..."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := fault.CleanLine(tc.in)
			if got != tc.want {
				t.Errorf("CleanLine(%.40q) = %.60q, want %.60q", tc.in, got, tc.want)
			}
			if n := utf8.RuneCountInString(got); n > fault.MaxLine {
				t.Errorf("length %d", n)
			}
		})
	}
}

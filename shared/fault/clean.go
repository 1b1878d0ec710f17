package fault

import (
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxLine bounds every text of an error that can reach a model (tools §1).
const MaxLine = 1024

// ansi matches CSI, OSC (ended by BEL or ST) and two-byte escape sequences.
var ansi = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|\\][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[@-Z\\\\-_])")

// CleanLine makes one harmless line of s: ANSI sequences removed, control
// characters (C0, DEL, C1) and runs of white space one space, trimmed, at most
// MaxLine characters; a cut text ends in "...".
func CleanLine(s string) string {
	s = ansi.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), "")
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || (r >= 0x7f && r <= 0x9f) {
			return ' '
		}
		return r
	}, s)
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) <= MaxLine {
		return s
	}
	return string([]rune(s)[:MaxLine-3]) + "..."
}

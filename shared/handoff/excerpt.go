package handoff

import (
	"strings"

	"drawbridge/shared/agent/screen"
	"drawbridge/shared/terminal"
)

// excerpt gives the plain text of a screen, bounded, blank rows at its end cut.
func excerpt(s terminal.Screen) string {
	height := s.Pane.Height
	text := screen.Parse(s.Text, s.Pane.Width, height).Text(max(0, height-excerptLines), height)
	text = strings.TrimRight(text, "\n ")
	if len(text) > excerptBytes {
		text = strings.ToValidUTF8(text[len(text)-excerptBytes:], "")
	}
	return text
}

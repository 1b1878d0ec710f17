package rule_test

import (
	"slices"
	"testing"

	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// No bytes, on a pane of any size, lead to a reading that contradicts itself.
func FuzzRead(f *testing.F) {
	files := load(f).Files()
	for _, s := range shots(f) {
		k := slices.IndexFunc(files, func(rf *rule.File) bool { return rf.Name() == s.file.Name() })
		f.Add(s.screen.Text, s.screen.Pane.Width, s.screen.Pane.Height, uint8(k))
	}
	f.Fuzz(func(t *testing.T, text []byte, w, h int, k uint8) {
		rf := files[int(k)%len(files)]
		sound(t, "fuzzed", rf.Read(terminal.Screen{Text: text, Pane: terminal.Pane{Width: w, Height: h}}))
	})
}

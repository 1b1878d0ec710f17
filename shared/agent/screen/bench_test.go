package screen_test

import (
	"os"
	"testing"

	"drawbridge/shared/agent/screen"
)

func BenchmarkParse(b *testing.B) {
	text, err := os.ReadFile("../testdata/codex/screens/idle-empty.0.171.0.ansi")
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		screen.Parse(text, 120, 40)
	}
}

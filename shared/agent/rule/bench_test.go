package rule_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/agent/rule"
)

func BenchmarkRead(b *testing.B) {
	set := load(b)
	f := file(b, set, "x.0.171.0")
	s := capture(b, screens, "approval-longcmd.0.171.0")
	b.SetBytes(int64(len(s.Text)))
	b.ReportAllocs()
	for b.Loop() {
		f.Read(s)
	}
}

// BenchmarkRead_Framed reads screens of an agent with a framed composer: one with
// a dialog, and one without, on which every rule for one fails.
func BenchmarkRead_Framed(b *testing.B) {
	set := load(b)
	for _, name := range []string{"permission-bash-gutter.2.1.332", "idle-after-turn.2.1.332"} {
		f, s := file(b, set, name), capture(b, framed, name)
		b.Run(name[:4], func(b *testing.B) {
			b.SetBytes(int64(len(s.Text)))
			b.ReportAllocs()
			for b.Loop() {
				f.Read(s)
			}
		})
	}
}

// BenchmarkRecord reads lines that mean nothing, most of a transcript, and lines
// of the captured transcripts, which are trimmed and so nearly all meaning.
func BenchmarkRecord(b *testing.B) {
	f := file(b, load(b), "x.0.171.0")
	var other, all [][]byte
	paths, err := filepath.Glob("../testdata/codex/rollouts/0.171.0-*.jsonl")
	if err != nil || len(paths) == 0 {
		b.Fatal("no transcripts", err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(p)
		if err != nil {
			b.Fatal(err)
		}
		for _, line := range bytes.SplitAfter(text, []byte("\n")) {
			if len(line) == 0 {
				continue
			}
			all = append(all, line)
			if r, err := f.Record(line); err == nil && r.Kind == rule.Other {
				other = append(other, line)
			}
		}
	}
	output := `{"timestamp":"2026-11-30T12:57:42.171Z","ordinal":22,"type":"response_item","payload":{"type":"message","role":"assistant","content":[{"type":"output_text","text":"` +
		strings.Repeat(`some text with \"quotes\", a \n and more, `, 5000) + `"}]}}` + "\n"
	for _, c := range []struct {
		name  string
		lines [][]byte
	}{{"other", other}, {"long", [][]byte{[]byte(output)}}, {"all", all}} {
		b.Run(c.name, func(b *testing.B) {
			n := 0
			for _, l := range c.lines {
				n += len(l)
			}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				for _, l := range c.lines {
					if _, err := f.Record(l); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

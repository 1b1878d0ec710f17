package claude_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"drawbridge/shared/agent/claude"
)

func FuzzParseRecord(f *testing.F) {
	files, err := filepath.Glob("../testdata/claude/transcripts/*.jsonl")
	if err != nil || len(files) == 0 {
		f.Fatal("no transcripts", err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for i, line := range bytes.Split(data, []byte("\n")) {
			if i < 3 && len(line) < 4096 {
				f.Add(line)
			}
		}
	}
	f.Add([]byte(`{"type":"user","message":{"role":"user","content":[null,1,"x",{"type":7}]}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		if err := claude.ParseRecord(line); err == nil && (len(bytes.TrimSpace(line)) == 0 || bytes.TrimSpace(line)[0] != '{') {
			t.Errorf("%q is a record", line)
		}
	})
}

package rule_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent/rule"
)

// What every line of Claude Code's captured transcripts means, compared with a
// table that a person checked: which records are requests, calls, answers and
// ends, and that no other one is.
func TestRecord_Claude(t *testing.T) {
	text, err := os.ReadFile("testdata/claude-records.txt")
	if err != nil {
		t.Fatal(err)
	}
	list, err := filepath.Glob("../testdata/claude/transcripts/*.jsonl")
	if err != nil || len(list) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	var got strings.Builder
	got.WriteString(regexp.MustCompile(`(?s)\A#.*?\n\n`).FindString(string(text)))
	set := load(t)
	for _, p := range list {
		name := strings.TrimSuffix(filepath.Base(p), ".jsonl")
		f, _ := set.For("claude", name[:strings.Index(name, "-")])
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString(name + "\n")
		for i, line := range bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n")) {
			r, err := f.Record(line)
			if err != nil {
				t.Fatalf("%s line %d: %v", name, i+1, err)
			}
			if r.Kind != rule.Other {
				fmt.Fprintf(&got, "  %d %s\n", i+1, means(r))
			}
		}
	}
	if diff := cmp.Diff(string(text), got.String()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// means is one line of the table.
func means(r rule.Record) string {
	out := string(r.Kind) + " " + r.Rule
	if c := r.Call; c != nil {
		out += " " + c.ID
		if c.Kind != "" {
			out += fmt.Sprintf(" %s %.60q", c.Kind, c.Command)
		}
	}
	switch {
	case r.Kind == rule.Queued:
		out += " " + r.Reason
	case r.Reason != "":
		out += fmt.Sprintf(" %q", r.Reason)
	}
	if r.Code != "" {
		out += " " + r.Code
	}
	if r.Text != "" {
		out += fmt.Sprintf(" %.60q", r.Text)
	}
	return out
}

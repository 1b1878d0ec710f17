package rule_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// pageFixtures are the captures of questionnaires, by agent.
func pageFixtures(t testing.TB) map[string]terminal.Screen {
	t.Helper()
	out := map[string]terminal.Screen{}
	for agentName, globs := range map[string][]string{
		"codex":  {"testdata/page/*.ansi", "../testdata/codex/screens/questionnaire*.ansi"},
		"claude": {"../testdata/claude/screens/ask-*.ansi"},
	} {
		for _, g := range globs {
			files, err := filepath.Glob(g)
			if err != nil || len(files) == 0 {
				t.Fatalf("no captures for %s: %v", g, err)
			}
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				name := agentName + " " + strings.TrimSuffix(filepath.Base(f), ".ansi")
				out[name] = terminal.Screen{Text: text, Pane: terminal.Pane{Width: 120, Height: 40}}
			}
		}
	}
	return out
}

func readPage(t testing.TB, set *rule.Set, name string, s terminal.Screen) agent.Reading {
	t.Helper()
	agentName, rest, _ := strings.Cut(name, " ")
	var a, b, c int
	for i := range rest { // the version stands behind the first dot that a digit follows
		if n, _ := fmt.Sscanf(rest[i:], ".%d.%d.%d", &a, &b, &c); n == 3 {
			break
		}
	}
	f, class := set.For(agentName, fmt.Sprintf("%d.%d.%d", a, b, c))
	if class != agent.Tested {
		t.Fatalf("%s is %s", name, class)
	}
	return f.Read(s)
}

// Every capture of a questionnaire, page by page.
func TestPage_Fixtures(t *testing.T) {
	set := load(t)
	got := map[string]any{}
	for name, s := range pageFixtures(t) {
		r := readPage(t, set, name, s)
		if r.State != agent.Question {
			got[name] = string(r.State)
			continue
		}
		got[name] = r.Prompt.Page
	}
	b, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "pages.json", append(b, '\n'))
}

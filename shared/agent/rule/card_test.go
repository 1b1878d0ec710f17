package rule_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/terminal"
)

// cards are the captures that show complete status cards: the threads that they
// name, and whether the last one is the last thing on the screen.
var cards = map[string]struct {
	threads []string
	last    bool
}{
	"approval-patch.0.148.0":          {[]string{"01a22c8a-689d-7a22-af31-0ddc127ddfaf"}, false},
	"approval-patch.0.171.0":          {[]string{"01a22c8a-6834-7cc3-b6bd-0b0ec9247bc8"}, false},
	"compacted.0.148.0":               {[]string{"01a22c87-20ee-7e51-8f21-a5cea1281943"}, false},
	"compacted.0.171.0":               {[]string{"01a22c87-235b-7c12-b45d-5b387f73b984"}, false},
	"fake-approval-in-answer.0.171.0": {[]string{"01a22c87-5f09-7a51-aebc-d0f7c3d8c2d6"}, false},
	"model-picker.0.148.0":            {[]string{"01a22c87-20ee-7e51-8f21-a5cea1281943"}, false},
	"model-picker.0.171.0":            {[]string{"01a22c87-235b-7c12-b45d-5b387f73b984"}, false},
	"permissions-picker.0.148.0":      {[]string{"01a22c87-20ee-7e51-8f21-a5cea1281943"}, false},
	"permissions-picker.0.171.0":      {[]string{"01a22c87-235b-7c12-b45d-5b387f73b984"}, false},
	"resume-bad.0.148.0":              {[]string{"01a22c87-20ee-7e51-8f21-a5cea1281943"}, false},
	"resume-bad.0.171.0":              {[]string{"01a22c87-235b-7c12-b45d-5b387f73b984"}, false},
	"resume-inline.0.148.0":           {[]string{"01a22c91-c376-7782-a2ec-fb4ddf24a813"}, false},
	"slash-menu.0.148.0":              {[]string{"01a22c87-20ee-7e51-8f21-a5cea1281943"}, true},
	"slash-multiline.0.148.0":         {[]string{"01a22c8a-689d-7a22-af31-0ddc127ddfaf"}, true},
	"slash-multiline.0.171.0":         {[]string{"01a22c8a-6834-7cc3-b6bd-0b0ec9247bc8"}, true},
	"status-card.0.171.0-daemon":      {[]string{"01a22c87-5f09-7a51-aebc-d0f7c3d8c2d6"}, true},
	"status-card.0.171.0":             {[]string{"01a22c8a-6834-7cc3-b6bd-0b0ec9247bc8"}, true},
	"status-while-working.0.171.0":    {[]string{"01a22c87-235b-7c12-b45d-5b387f73b984"}, false},
}

func cardsOf(t testing.TB, set *rule.Set, name string, s terminal.Screen) []agent.Card {
	t.Helper()
	f := file(t, set, name)
	return f.Cards(f.Tested()[0], s)
}

func TestCards_Corpus(t *testing.T) {
	set := load(t)
	seen := 0
	for _, name := range names(t, screens) {
		got := cardsOf(t, set, name, capture(t, screens, name))
		want := cards[name]
		var threads []string
		for _, c := range got {
			threads = append(threads, c.ThreadID)
		}
		if diff := cmp.Diff(want.threads, threads); diff != "" {
			t.Errorf("%s: %s", name, diff)
			continue
		}
		if len(got) > 0 {
			seen++
			if last := got[len(got)-1]; last.Last != want.last {
				t.Errorf("%s: last is %v, want %v", name, last.Last, want.last)
			}
		}
	}
	if seen != len(cards) {
		t.Errorf("%d captures with cards, want %d", seen, len(cards))
	}
	for _, name := range names(t, sizes) {
		if got := cardsOf(t, set, name, capture(t, sizes, name)); len(got) > 0 {
			t.Errorf("%s shows a card: %v", name, got)
		}
	}
}

func TestCards_Fields(t *testing.T) {
	set := load(t)
	got := cardsOf(t, set, "status-card.0.171.0-daemon", capture(t, screens, "status-card.0.171.0-daemon"))[0]
	want := []agent.Field{
		{Label: "Server", Value: "Local background server"},
		{Label: "Model", Value: "gpt-5-codex (reasoning none)"},
		{Label: "Model provider", Value: "fake"},
		{Label: "Directory", Value: "~/rig/ws"},
		{Label: "Permissions", Value: "Workspace (Ask for approval)"},
		{Label: "Agents.md", Value: "<none>"},
		{Label: "Thread name", Value: "hello one SCN=SLOW:4"},
		{Label: "Collaboration mode", Value: "Default"},
		{Label: "Session", Value: "01a22c87-5f09-7a51-aebc-d0f7c3d8c2d6"},
		{Label: "Token usage", Value: "5.24K total  (4.99K input + 250 output)"},
		{Label: "Context window", Value: "100% left (1.05K used / 258K)"},
		{Label: "Limits", Value: "data not available yet"},
	}
	if diff := cmp.Diff(want, got.Fields); diff != "" {
		t.Error(diff)
	}
	if got.Version != "0.171.0" || !strings.HasPrefix(got.Excerpt, "  >_ OpenAI Codex (v0.171.0)\n") || !strings.HasSuffix(got.Excerpt, "data not available yet") {
		t.Errorf("version %q, excerpt\n%s", got.Version, got.Excerpt)
	}
}

// What is changed, cut or only looks alike is no card.
func TestCards_Strict(t *testing.T) {
	set := load(t)
	const thread = "01a22c8a-6834-7cc3-b6bd-0b0ec9247bc8"
	replace := func(old, new string) func([]byte) []byte {
		return func(b []byte) []byte {
			if !bytes.Contains(b, []byte(old)) {
				t.Fatalf("the capture has no %q", old)
			}
			return bytes.Replace(b, []byte(old), []byte(new), 1)
		}
	}
	for name, bend := range map[string]func([]byte) []byte{
		"another version":         replace("(v0.171.0)", "(v0.171.1)"),
		"header not bold":         replace("\x1b[1m\x1b[39mOpenAI Codex", "\x1b[39mOpenAI Codex"),
		"label not dim":           replace("\x1b[2m  Session:", "\x1b[0m  Session:"),
		"no thread":               replace("Session: ", "Sessions:"),
		"thread cut":              replace(thread, thread[:30]),
		"two threads":             replace("  Agents.md:           ", "  Session:             "),
		"no last row":             replace("Limits:", "Limbs: "),
		"a printed row between":   replace("\x1b[2m  Directory:", "• an answer \x1b[2m  Directory:"),
		"indented":                replace("\x1b[2m  Model:  ", "\x1b[2m   Model: "),
		"header at another place": replace("  \x1b[38;5;75m>_", "   \x1b[38;5;75m>_"),
	} {
		s := capture(t, screens, "status-card.0.171.0")
		s.Text = bend(s.Text)
		if got := cardsOf(t, set, "status-card.0.171.0", s); len(got) > 0 {
			t.Errorf("%s: read as a card: %+v", name, got)
		}
	}
	for name, bend := range map[string]func([]byte) []byte{
		"top gone":        replace("╭──", "   "),
		"bottom gone":     replace("╰──", "   "),
		"right edge gone": replace("reasoning none, summaries auto) │", "reasoning none, summaries auto)  "),
		"another version": replace("(v0.148.0)", "(v0.149.0)"),
	} {
		s := capture(t, screens, "resume-inline.0.148.0")
		s.Text = bend(s.Text)
		if got := cardsOf(t, set, "resume-inline.0.148.0", s); len(got) > 0 {
			t.Errorf("%s: read as a card: %+v", name, got)
		}
	}
}

// Every way to cut rows off the top or bottom of a card leaves none.
func TestCards_CutAnywhere(t *testing.T) {
	set := load(t)
	for name, last := range map[string]string{"status-card.0.171.0": "Limits:", "resume-inline.0.148.0": "╰──"} {
		whole := capture(t, screens, name)
		rows := strings.Split(strings.TrimSuffix(string(whole.Text), "\n"), "\n")
		first, end := -1, -1
		for i, r := range rows {
			if first < 0 && strings.Contains(r, ">_") && strings.Contains(r, "OpenAI Codex") {
				first = i
			}
			if end < 0 && first >= 0 && strings.Contains(r, last) {
				end = i
			}
		}
		if first < 0 || end < 0 {
			t.Fatalf("%s: rows %d to %d", name, first, end)
		}
		for cut := first; cut <= end; cut++ {
			s := whole
			s.Text = []byte(strings.Join(append(append([]string{}, rows[:cut]...), make([]string, len(rows)-cut)...), "\n") + "\n")
			if got := cardsOf(t, set, name, s); len(got) > 0 {
				t.Errorf("%s cut below row %d: read as a card", name, cut)
			}
			if cut == first {
				continue
			}
			s.Text = []byte(strings.Join(append(make([]string, cut), rows[cut:]...), "\n") + "\n")
			for _, c := range cardsOf(t, set, name, s) {
				if strings.Contains(c.Excerpt, rows[first]) {
					t.Errorf("%s cut above row %d: read as a card", name, cut)
				}
			}
		}
	}
}

func TestCommand(t *testing.T) {
	set := load(t)
	for _, version := range []string{"0.148.0", "0.171.0"} {
		f, _ := set.For("codex", version)
		const thread = "01a22c8a-6834-7cc3-b6bd-0b0ec9247bc8"
		for op, want := range map[agent.Op]string{agent.OpStatus: "/status", agent.OpNew: "/clear", agent.OpResume: "/resume " + thread} {
			got, err := f.Command(op, thread)
			if err != nil || got.Text != want {
				t.Errorf("%s %s: %q, %v; want %q", version, op, got.Text, err, want)
			}
		}
		for _, bad := range []string{"", "x", strings.ToUpper(thread), thread + " ", thread + "\n/quit"} {
			if c, err := f.Command(agent.OpResume, bad); !fault.Is(err, fault.InvalidArguments) {
				t.Errorf("%s: thread %q gives %q, %v", version, bad, c.Text, err)
			}
		}
		if _, err := f.Command("model", thread); !fault.Is(err, fault.VersionUnsupported) {
			t.Errorf("%s: an unknown operation gives %v", version, err)
		}
		if f.Profile() == "" {
			t.Errorf("%s names no profile", version)
		}
	}
}

// Only the command's own text, with the popup's highlight on its name or without
// a popup, may be entered.
func TestCommand_Standing(t *testing.T) {
	set := load(t)
	for name, want := range map[string]bool{
		"slash-pasted.0.148.0": true, "slash-pasted.0.171.0": true,
		"slash-popup.0.148.0": false, "slash-popup.0.171.0": false, // the draft is /sta
		"slash-menu.0.148.0": false, "slash-menu.0.171.0": false, "slash-unknown.0.148.0": false, "slash-unknown.0.171.0": false,
		"idle-empty.0.148.0": false, "idle-empty.0.171.0": false, "status-card.0.171.0": false,
	} {
		f := file(t, set, name)
		c, err := f.Command(agent.OpStatus, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Standing(capture(t, screens, name)); got != want {
			t.Errorf("%s: standing %v, want %v", name, got, want)
		}
		other, err := f.Command(agent.OpNew, "")
		if err != nil {
			t.Fatal(err)
		}
		if other.Standing(capture(t, screens, name)) {
			t.Errorf("%s: %s stands", name, other.Text)
		}
	}
	for name, from := range map[string]string{"slash-pasted.0.171.0": "\x1b[1;7m› /status   ", "slash-pasted.0.148.0": "/status      show"} {
		s := capture(t, screens, name)
		if !bytes.Contains(s.Text, []byte(from)) {
			t.Fatalf("%s has no %q", name, from)
		}
		s.Text = bytes.Replace(s.Text, []byte(from), []byte(strings.Replace(from, "/status", "/stats ", 1)), 1)
		c, _ := file(t, set, name).Command(agent.OpStatus, "")
		if c.Standing(s) {
			t.Errorf("%s with another row highlighted stands", name)
		}
	}
}

const claudeScreens = "../testdata/claude/screens"

// The panel of Claude Code, and what stands in its composer.
func TestCards_Claude(t *testing.T) {
	set := load(t)
	for version, thread := range map[string]string{
		"2.1.332": "7677dd46-2da1-48c7-9806-316ea0e1a4b6", "2.1.263": "7689d179-4a1c-466a-b914-127bb2d19463",
	} {
		f, class := set.For("claude", version)
		if class != agent.Tested {
			t.Fatalf("%s is %s", version, class)
		}
		for _, name := range names(t, claudeScreens) {
			if !strings.HasSuffix(name, version) {
				continue
			}
			s := capture(t, claudeScreens, name)
			got := f.Cards(version, s)
			if want := name == "status-panel."+version; want != (len(got) == 1) || len(got) > 1 {
				t.Errorf("%s %s: %d cards", version, name, len(got))
				continue
			}
			if len(got) == 1 && (got[0].ThreadID != thread || got[0].Version != version || got[0].Last) {
				t.Errorf("%s %s: %+v", version, name, got[0])
			}
		}
	}
	for name, want := range map[string]bool{
		"slash-menu-status.2.1.332": true, "draft-slash-unknown.2.1.332": false, "draft-single-line.2.1.332": false, "status-panel.2.1.332": false,
		"slash-menu-status.2.1.263": true, "slash-popup.2.1.263": false, "slash-popup-second.2.1.263": false, "status-panel.2.1.263": false,
	} {
		s := capture(t, claudeScreens, name)
		c, err := file(t, set, name).Command(agent.OpStatus, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Standing(s); got != want {
			t.Errorf("%s: standing %v, want %v", name, got, want)
		}
		// The highlight on another row of the menu: Enter would run that one.
		s.Text = bytes.Replace(s.Text, []byte("/\x1b[1mstatus\x1b[0m"), []byte("/\x1b[1mstates\x1b[0m"), 1)
		if want && c.Standing(s) {
			t.Errorf("%s with another row highlighted stands", name)
		}
	}
}

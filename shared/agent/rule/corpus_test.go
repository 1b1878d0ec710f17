package rule_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

const (
	screens = "../testdata/codex/screens"
	sizes   = "../testdata/codex/sizes"
)

// corpus is the captured screens of one agent.
type corpus struct {
	agent    string
	screens  string   // directory; a name ends in the version
	table    string   // what a person read off them
	versions []string // oldest first
}

var corpora = []corpus{
	{"codex", screens, "testdata/codex.txt", []string{"0.148.0", "0.171.0"}},
	{"claude", "../testdata/claude/screens", "testdata/claude.txt", []string{"2.1.263", "2.1.332"}},
}

// shot is one captured screen.
type shot struct {
	name   string
	agent  string
	want   verdict
	file   *rule.File
	screen terminal.Screen
}

// shots gives all captured screens of all agents.
func shots(t testing.TB) []shot {
	t.Helper()
	set := load(t)
	var out []shot
	for _, c := range corpora {
		want := table(t, c.table)
		have := names(t, c.screens)
		if len(have) != len(want) {
			t.Errorf("%s: %d captures, %d in the table", c.agent, len(have), len(want))
		}
		for _, name := range have {
			v, ok := want[name]
			if !ok {
				t.Errorf("%s: %s is not in the table", c.agent, name)
			}
			out = append(out, shot{name, c.agent, v, file(t, set, name), capture(t, c.screens, name)})
		}
	}
	return out
}

func load(t testing.TB) *rule.Set {
	t.Helper()
	set, err := loaded()
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// loaded is the embedded rules: a Set does not change, so that one serves all tests.
var loaded = sync.OnceValues(func() (*rule.Set, error) { return rule.Load("") })

// file gives the rule file of the version that a capture's name ends in.
func file(t testing.TB, set *rule.Set, name string) *rule.File {
	t.Helper()
	m := regexp.MustCompile(`\.(\d+\.\d+\.\d+)(-daemon)?$`).FindStringSubmatch(name)
	if m == nil {
		t.Fatalf("no version in %s", name)
	}
	k := slices.IndexFunc(corpora, func(c corpus) bool { return slices.Contains(c.versions, m[1]) })
	if k < 0 {
		t.Fatalf("no agent has version %s", m[1])
	}
	f, class := set.For(corpora[k].agent, m[1])
	if class != agent.Tested {
		t.Fatalf("%s is %s", m[1], class)
	}
	return f
}

// capture reads one captured screen; those in sizes have their size in the name.
func capture(t testing.TB, dir, name string) terminal.Screen {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name+".ansi"))
	if err != nil {
		t.Fatal(err)
	}
	s := terminal.Screen{Text: text, Pane: terminal.Pane{Width: 120, Height: 40}}
	if m := regexp.MustCompile(`\.(\d+)x(\d+)\.`).FindStringSubmatch(name); m != nil {
		fmt.Sscan(m[1], &s.Pane.Width)
		fmt.Sscan(m[2], &s.Pane.Height)
	}
	return s
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*.ansi"))
	if err != nil || len(list) == 0 {
		t.Fatalf("no captures in %s: %v", dir, err)
	}
	for i := range list {
		list[i] = strings.TrimSuffix(filepath.Base(list[i]), ".ansi")
	}
	return list
}

// verdict is what the hand-checked table says of one capture.
type verdict struct {
	State agent.State
	Name  string
}

func table(t testing.TB, path string) map[string]verdict {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]verdict{}
	var v verdict
	for _, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, " "):
			for _, name := range strings.Fields(line) {
				out[name] = v
			}
		default:
			state, rule, _ := strings.Cut(line, " ")
			v = verdict{agent.State(state), rule}
		}
	}
	return out
}

// Every captured screen of every agent and version has the state that a person
// read off it: no approval and no idle pane is seen where there is none.
func TestRead_Corpus(t *testing.T) {
	for _, s := range shots(t) {
		r := s.file.Read(s.screen)
		if got := (verdict{r.State, r.Name}); got != s.want {
			t.Errorf("%s: %v, want %v\n%+v", s.name, got, s.want, r.Evidence)
		}
		sound(t, s.name, r)
	}
}

// sound checks what must hold of every reading, whatever the screen.
func sound(t testing.TB, name string, r agent.Reading) {
	t.Helper()
	if r.State == "" || r.Name == "" || len(r.Evidence) == 0 {
		t.Errorf("%s: a verdict without state, name or evidence: %+v", name, r)
	}
	for _, e := range r.Evidence {
		if e.Rule == "" || e.Detail == "" {
			t.Errorf("%s: empty evidence %+v", name, e)
		}
	}
	if (r.Prompt != nil) != (r.State == agent.Approval || r.State == agent.Question) {
		t.Errorf("%s: state %s, prompt %v", name, r.State, r.Prompt)
	}
	if p := r.Prompt; p != nil {
		sum := sha256.Sum256(p.Region)
		if p.Digest != hex.EncodeToString(sum[:]) || p.Kind == "" || (p.Title == "") != (p.Cut && p.Kind == "tool") || len(p.Stable) != 64 {
			t.Errorf("%s: prompt %+v", name, p)
		}
		once(t, name, p)
		if r.State == agent.Question && (p.Approve != nil || p.Reject != nil) {
			t.Errorf("%s: a question with keys", name)
		}
		if p.Cut && p.Approve != nil {
			t.Errorf("%s: approvable though cut", name)
		}
	}
	c := r.Composer
	if c.Empty && (c.Draft != "" || c.Held != "" || !c.Seen) {
		t.Errorf("%s: composer %+v", name, c)
	}
	switch r.State {
	case agent.Idle:
		if !c.Seen || c.Held != "" || c.Empty != (r.Name == rule.NameIdle) {
			t.Errorf("%s: idle with composer %+v", name, c)
		}
	case agent.Approval, agent.Question, agent.Exited:
		if c.Seen {
			t.Errorf("%s: %s with a composer", name, r.State)
		}
	case agent.Unknown, agent.NotReady:
		if c.Empty {
			t.Errorf("%s: %s with an empty composer", name, r.State)
		}
	}
}

func TestRead_Composer(t *testing.T) {
	set := load(t)
	for _, tc := range []struct {
		name string
		want agent.Composer
	}{
		{"idle-empty.0.171.0", agent.Composer{Seen: true, Empty: true}},
		{"idle-empty.0.148.0", agent.Composer{Seen: true, Empty: true}},
		{"working.0.171.0", agent.Composer{Seen: true, Empty: true}},
		{"draft.0.171.0", agent.Composer{Seen: true, Draft: "hello one SCN=SLOW:4"}},
		{"draft-multiline.0.171.0", agent.Composer{Seen: true, Draft: "first line\nsecond line with tab\n\nfourth 漢字 😀 é"}},
		{"draft-multiline.0.148.0", agent.Composer{Seen: true, Draft: "first line\nsecond line with tab\n\nfourth 漢字 😀 é"}},
		{"draft-paste-large.0.171.0", agent.Composer{Seen: true, Draft: "[Pasted Content 10012 chars]", Pasted: 10012, Placeholder: "[Pasted Content 10012 chars]"}},
		{"draft-paste-large.0.148.0", agent.Composer{Seen: true, Draft: "[Pasted Content 10012 chars]", Pasted: 10012, Placeholder: "[Pasted Content 10012 chars]"}},
		{"at-entered.0.171.0", agent.Composer{Seen: true, Draft: "look at .git/logs/refs/heads"}},
		{"slash-popup.0.171.0", agent.Composer{Seen: true, Draft: "/sta", Held: "popup"}},
		{"slash-popup.0.148.0", agent.Composer{Seen: true, Held: "popup"}},
		{"dollar-draft.0.171.0", agent.Composer{Seen: true, Draft: "$foo", Held: "popup"}},
		{"bang-draft.0.171.0", agent.Composer{Seen: true, Draft: "ls -la", Held: "shell_mode"}},
		{"bang-draft.0.148.0", agent.Composer{Seen: true, Draft: "ls -la", Held: "shell_mode"}},
		{"esc1-idle.0.171.0", agent.Composer{Seen: true, Held: "history"}},
		{"startup-not-ready.0.171.0", agent.Composer{Seen: true}},
		{"approval-exec.0.171.0", agent.Composer{}},
		{"idle-empty-manual.2.1.332", agent.Composer{Seen: true, Empty: true}},
		{"idle-after-turn.2.1.263", agent.Composer{Seen: true, Empty: true}},
		{"api-error-placeholder-resend.2.1.332", agent.Composer{Seen: true, Empty: true}},
		{"working-with-queued-prompt.2.1.332", agent.Composer{Seen: true, Empty: true}},
		{"draft-multiline-paste-2.2.1.332", agent.Composer{Seen: true, Draft: "line one\nline two"}},
		{"enter-became-newline.2.1.332", agent.Composer{Seen: true, Draft: "digits DO[bash:touch /srv/demo/beta/au1.txt]ODDO[say:after]OD\n1"}},
		{"draft-multiline-paste-4.2.1.332", agent.Composer{Seen: true, Draft: "[Pasted text #2 +3 lines]", Placeholder: "[Pasted text #2 +3 lines]"}},
		{"draft-pasted-placeholder.2.1.263", agent.Composer{Seen: true, Draft: "[Pasted text #1 +4 lines]", Placeholder: "[Pasted text #1 +4 lines]"}},
		{"draft-805-chars.2.1.332", agent.Composer{Seen: true, Draft: "[Pasted text #4]", Placeholder: "[Pasted text #4]"}},
		{"draft-unicode.2.1.332", agent.Composer{Seen: true, Draft: "日本語 のプロンプト 🎉👩\u200d👩\u200d👧 é é ü    tab"}},
		{"draft-bang-bash-mode.2.1.332", agent.Composer{Seen: true, Draft: "echo hi-from-bang", Held: "shell_mode"}},
		{"slash-menu-status.2.1.332", agent.Composer{Seen: true, Draft: "/status", Held: "popup"}},
		{"shortcuts-help.2.1.332", agent.Composer{Seen: true, Held: "popup"}},
		{"ctrl-c-once-exit-hint.2.1.332", agent.Composer{Seen: true, Held: "exit"}},
		{"idle-draft-tall.60x20.2.1.332", agent.Composer{Seen: true, Scrolled: true, Draft: "word65 word66 word67 word68 word69 word70 word71 word72\n" +
			"word73 word74 word75 word76 word77 word78 word79 word80\nword81 word82 word83 word84 word85 word86 word87 word88\n" +
			"word89 word90 word91 word92 word93 word94 word95 word96\nword97 word98 word99"}},
		{"permission-bash.2.1.332", agent.Composer{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := file(t, set, tc.name)
			dir := screens
			if f.Agent() == "claude" {
				dir = corpora[1].screens
			}
			got := f.Read(capture(t, dir, tc.name)).Composer
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestRead_Prompt(t *testing.T) {
	const (
		yes = "Yes, proceed (y)"
		no  = "No, and tell Codex what to do differently (esc)"
	)
	y, enter, esc := []terminal.Key{terminal.Yes}, []terminal.Key{terminal.Enter}, []terminal.Key{terminal.Escape}
	touch := func(f string) []string {
		return []string{yes, "Yes, and don't ask again for commands that start with `touch " + f + "` (p)", no}
	}
	files := []string{yes, "Yes, and don't ask again for these files (a)", no}
	mcp := []string{"Allow", "Allow for this session", "Always allow", "Cancel"}
	colours := []string{"Red (Recommended)", "Blue", "None of the above"}
	run, edit := "Would you like to run the following command?", "Would you like to make the following edits?"
	set := load(t)
	for _, tc := range []struct {
		name string
		want agent.Prompt
	}{
		{"approval-exec.0.171.0", agent.Prompt{Kind: "run_command", Title: run, Command: "touch /h/rg/rig/approved-a-n171.txt", Reason: "Need to touch a file outside", Options: touch("/h/rg/rig/approved-a-n171.txt"), Approve: y, Reject: esc}},
		{"approval-exec.0.148.0", agent.Prompt{Kind: "run_command", Title: run, Command: "touch /h/rg/rig/approved-a-n148.txt", Reason: "Need to touch a file outside", Options: touch("/h/rg/rig/approved-a-n148.txt"), Approve: y, Reject: esc}},
		{"approval-second.0.171.0-daemon", agent.Prompt{Kind: "run_command", Title: run, Command: "touch /h/rg/rig/two-1.txt", Reason: "step 1", Options: touch("/h/rg/rig/two-1.txt"), Approve: y, Reject: esc}},
		{"approval-patch.0.171.0", agent.Prompt{Kind: "edit_files", Title: edit, Command: "/h/rg/rig/outside.txt", Reason: "Apply proposed file edits", Options: files, Approve: y, Reject: esc}},
		{"approval-patch.0.148.0", agent.Prompt{Kind: "edit_files", Title: edit, Options: files, Approve: y, Reject: esc}},
		{"approval-mcp.0.171.0", agent.Prompt{Kind: "mcp_tool", Title: "Field 1/1", Command: "probe.mutate", Options: mcp, Approve: enter, Reject: esc}},
		{"mcp-elicitation-form.0.171.0", agent.Prompt{Kind: "elicitation", Title: "Field 1/2 (1 required unanswered)", Command: "Confirm deploy?", Selected: -1}},
		{"questionnaire-moved.0.171.0", agent.Prompt{Kind: "questionnaire", Title: "Question 1/2 (2 unanswered)", Command: "Which colour should the door be?", Options: colours, Selected: 1}},
		{"questionnaire.0.148.0", agent.Prompt{Kind: "questionnaire", Title: "Question 1/2 (2 unanswered)", Command: "Which colour should the door be?", Options: colours}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := file(t, set, tc.name).Read(capture(t, screens, tc.name)).Prompt
			if got == nil {
				t.Fatal("no prompt")
			}
			tc.want.Region, tc.want.Digest, tc.want.Stable, tc.want.Page = got.Region, got.Digest, got.Stable, got.Page
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	t.Run("long command", func(t *testing.T) {
		for _, v := range []string{"0.148.0", "0.171.0"} {
			got := file(t, set, "x."+v).Read(capture(t, screens, "approval-longcmd."+v)).Prompt
			want := strings.Repeat("abcdefghij", 60)
			command := strings.ReplaceAll(strings.ReplaceAll(got.Command, "\n", ""), " ", "")
			if !strings.HasPrefix(command, "echo"+want) || !strings.HasSuffix(got.Command, "&& cat\n<<'X'\nline1\nline2\nX") || len(got.Options) != 2 || got.Approve == nil {
				t.Errorf("%s: %+v", v, got)
			}
		}
	})
}

// The same moments on panes of other sizes, captured from the real program.
func TestRead_Sizes(t *testing.T) {
	want := map[string]agent.State{
		"idle-empty": agent.Idle, "idle-draft": agent.Idle, "idle-draft-tall": agent.Idle, "idle-plan": agent.Idle, "streaming": agent.Idle,
		"working": agent.Working, "working-draft": agent.Working, "working-draft-tall": agent.Working, "steered": agent.Working, "queued-tab": agent.Working,
		"approval-exec": agent.Approval, "approval-longcmd": agent.Approval, "approval-patch": agent.Approval, "question": agent.Question,
		"shortcuts-help": agent.Blocked, "transcript-view": agent.Blocked, "command-center": agent.Blocked,
	}
	// What a pane is too small for is not proven; it is never taken for something else.
	const tooSmall = agent.State("blocked or unknown")
	small := map[string]agent.State{
		"approval-exec.40x16": tooSmall, "approval-longcmd.40x16": tooSmall, "approval-patch.40x16": tooSmall,
		"approval-exec.45x20": tooSmall, "approval-longcmd.45x20": tooSmall, "approval-patch.45x20": tooSmall,
		"approval-exec.80x10.0.148.0": tooSmall, "approval-exec.80x8.0.148.0": tooSmall, "approval-longcmd.80x8.0.148.0": tooSmall,
		"approval-patch.80x8.0.148.0":      tooSmall,
		"idle-draft-tall.80x10.0.171.0":    agent.Unknown, // the busy row would be out of sight
		"idle-draft-tall.80x8.0.171.0":     agent.Unknown,
		"working-draft-tall.80x8.0.171.0":  agent.Unknown,
		"working-draft-tall.80x10.0.171.0": agent.Working,
	}
	set := load(t)
	for _, name := range names(t, sizes) {
		r := file(t, set, name).Read(capture(t, sizes, name))
		sound(t, name, r)
		what, rest, _ := strings.Cut(name, ".")
		size, _, _ := strings.Cut(rest, ".")
		state, ok := small[name]
		if !ok {
			state, ok = small[what+"."+size]
		}
		if !ok {
			state, ok = want[what]
		}
		if !ok {
			t.Errorf("%s: not in the table", name)
			continue
		}
		fits := r.State == state || state == tooSmall && (r.State == agent.Blocked || r.State == agent.Unknown)
		if !fits {
			t.Errorf("%s: %s (%s), want %s\n%+v", name, r.State, r.Name, state, r.Evidence)
		}
	}
}

// A draft that is taller than its box begins in the middle, and says so.
func TestRead_Scrolled(t *testing.T) {
	set := load(t)
	for _, tc := range []struct {
		name     string
		first    string
		scrolled bool
	}{
		{"idle-draft-tall.80x24.0.171.0", "line 17 of the draft", true},
		{"idle-draft-tall.80x24.0.148.0", "line 11 of the draft", true},
		{"working-draft-tall.80x24.0.148.0", "line 11 of the draft", true},
		{"idle-draft-tall.200x60.0.171.0", "line 1 of the draft", false},
		{"idle-draft-tall.200x60.0.148.0", "line 1 of the draft", false},
		{"idle-draft.80x24.0.171.0", "line 1 of the draft", false},
		{"idle-draft.80x24.0.148.0", "line 1 of the draft", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := file(t, set, tc.name).Read(capture(t, sizes, tc.name)).Composer
			rows := strings.Split(c.Draft, "\n")
			if c.Scrolled != tc.scrolled || rows[0] != tc.first || !strings.HasPrefix(rows[len(rows)-1], "line ") {
				t.Errorf("scrolled %v, draft %q", c.Scrolled, c.Draft)
			}
		})
	}
}

// A dialog that the pane has no room for can be seen, never approved.
func TestRead_Cut(t *testing.T) {
	set := load(t)
	for _, name := range names(t, sizes) {
		r := file(t, set, name).Read(capture(t, sizes, name))
		if r.State != agent.Approval {
			continue
		}
		s := capture(t, sizes, name)
		if hidden := strings.Contains(string(s.Text), " lines]") || strings.Contains(string(s.Text), "↓"); hidden != r.Prompt.Cut {
			t.Errorf("%s: cut %v, want %v", name, r.Prompt.Cut, hidden)
		}
		if (r.Prompt.Approve == nil) != r.Prompt.Cut {
			t.Errorf("%s: cut %v, keys %v", name, r.Prompt.Cut, r.Prompt.Approve)
		}
	}
}

// An untested version is read by the nearest older file, with the same proofs.
func TestRead_Untested(t *testing.T) {
	set := load(t)
	newer := map[string][]string{"codex": {"0.172.0-alpha.1", "0.175.3", "1.0.0"}, "claude": {"2.1.333", "2.2.0-beta.1", "3.0.0"}}
	for _, c := range corpora {
		newest := c.versions[len(c.versions)-1]
		for _, v := range newer[c.agent] {
			f, class := set.For(c.agent, v)
			if class != agent.Untested || !slices.Contains(f.Tested(), newest) {
				t.Fatalf("%s %s is %s, read by %s", c.agent, v, class, f.Name())
			}
		}
	}
	// Screens of one version read by the other's rules: idle and approval only
	// where that is what they show.
	for _, s := range shots(t) {
		c := corpora[slices.IndexFunc(corpora, func(c corpus) bool { return c.agent == s.agent })]
		for _, v := range c.versions {
			other, _ := set.For(c.agent, v)
			got := other.Read(s.screen)
			sound(t, s.name, got)
			if got.State == agent.Idle && s.want.State != agent.Idle || got.State == agent.Approval && s.want.State != agent.Approval {
				t.Errorf("%s by the rules of %s: %s, it shows %s", s.name, v, got.State, s.want.State)
			}
		}
	}
	// Nor does one agent's screen mean anything to the other's rules.
	for _, s := range shots(t) {
		for _, f := range set.Files() {
			if f.Agent() == s.agent {
				continue
			}
			if got := f.Read(s.screen); got.State == agent.Idle || got.State == agent.Approval || got.State == agent.Question || got.State == agent.Working {
				t.Errorf("%s by %s: %s (%s)", s.name, f.Name(), got.State, got.Name)
			}
		}
	}
}

func TestRead_Pane(t *testing.T) {
	set := load(t)
	f := file(t, set, "x.0.171.0")
	idle := capture(t, screens, "idle-empty.0.171.0")
	for _, tc := range []struct {
		name   string
		change func(*terminal.Screen)
		want   agent.State
	}{
		{"as captured", func(*terminal.Screen) {}, agent.Idle},
		{"size not known", func(s *terminal.Screen) { s.Pane.Width, s.Pane.Height = 0, 0 }, agent.Idle},
		{"dead pane", func(s *terminal.Screen) { s.Pane.Dead = true }, agent.Exited},
		{"more rows than the pane", func(s *terminal.Screen) { s.Pane.Height = 39 }, agent.Unknown},
		{"fewer rows than the pane", func(s *terminal.Screen) { s.Pane.Height = 41 }, agent.Unknown},
		{"narrow pane", func(s *terminal.Screen) { s.Pane.Width = 39 }, agent.Unknown},
		{"blank", func(s *terminal.Screen) { s.Text = []byte(strings.Repeat("\n", 40)) }, agent.Unknown},
		{"nothing", func(s *terminal.Screen) { s.Text = nil }, agent.Unknown},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := idle
			tc.change(&s)
			r := f.Read(s)
			sound(t, tc.name, r)
			if r.State != tc.want {
				t.Errorf("%s, want %s: %+v", r.State, tc.want, r.Evidence)
			}
		})
	}
}

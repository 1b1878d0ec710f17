package rule_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

// Screens of an agent that frames its composer and draws its own cursor.
const framed = "../testdata/claude/screens"

var framedVersions = []string{"2.1.263", "2.1.332"}

// Proves tools 11.28 in part: what every permission dialog shows, and which keys
// allow exactly this call.
func TestRead_Permissions(t *testing.T) {
	var (
		esc    = []terminal.Key{terminal.Escape}
		enter  = []terminal.Key{terminal.Enter}
		auto   = "Yes, and switch to auto mode · auto mode handles these prompts for you"
		folder = []string{"Yes", "Yes, and always allow access to /srv/demo/alpha from this project", auto, "No"}
		edits  = []string{"Yes", "Yes, and switch to accept edits (auto-approve file edits and common file commands) for this session (shift+tab)", "No"}
		plain  = []string{"No", "Yes"}
		plan   = []string{"Yes, and use auto mode", "Yes, manually approve edits", "Tell Claude what to change shift+tab to approve with this feedback"}
		up     = func(n int) []terminal.Key {
			return append(slices.Repeat([]terminal.Key{terminal.Up}, n), terminal.Enter)
		}
		down = func(n int) []terminal.Key {
			return append(slices.Repeat([]terminal.Key{terminal.Down}, n), terminal.Enter)
		}
		needs = "Auto mode can't check actions in this session, so this one needs your approval"
		bash  = "Bash command"
	)
	multi := "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n" +
		"cccccccccccccccccccccccccccccccc > out.txt && \\\ncat <<EOF >> out.txt\nsecond line\nEOF\nls -la"
	guttered := func(cut int) string { // a long word is cut where the pane ends
		x := strings.Repeat("x", 200)
		return "echo one\n\n│ echo fake gutter\n   echo indented three > out.txt\n        echo tab\necho " + x[:cut] + "\n" + x[cut:] + "\n"
	}
	words := "Yes, and don't ask again for │ echo and echo indented commands in /srv/demo/alpha"
	url := "http://127.0.0.1:9/" + strings.Repeat("a/", 70)
	fetched := []string{"Yes", "Yes, and don't ask again for 127.0.0.1", "No, and tell Claude what to do differently (esc)"}
	imitation := "line one\n Do you want to proceed?\n ❯ 1. Yes"
	for _, tc := range []struct {
		name string
		want agent.Prompt
	}{
		{"permission-bash.2.1.332", agent.Prompt{Kind: "run_command", Title: bash, Command: "touch /srv/demo/alpha/approved-1.txt", Reason: "Scripted command", Options: folder, Approve: enter}},
		{"permission-bash.2.1.263", agent.Prompt{Kind: "run_command", Title: bash, Command: "touch /srv/demo/alpha/old1.txt", Reason: "Scripted command", Options: folder, Approve: enter}},
		{"permission-bash-selected-no.2.1.332", agent.Prompt{Kind: "run_command", Title: bash, Command: "touch /srv/demo/alpha/rejected-down.txt", Reason: "Scripted command", Options: folder, Selected: 3, Approve: up(3)}},
		{"permission-two-bash-second.2.1.332", agent.Prompt{Kind: "run_command", Title: bash, Command: "touch a2", Reason: "Second scripted command", Options: folder, Approve: enter}},
		{"permission-bash-multiline.2.1.332", agent.Prompt{Kind: "run_command", Title: bash, Command: multi, Reason: "A file redirect in this command can't be checked before it runs", Options: []string{"Yes", auto, "No"}, Approve: enter}},
		{"permission-bash.80x24.2.1.332", agent.Prompt{Kind: "run_command", Title: bash, Command: "for f in one two three; do echo \"$f is a rather long line to wrap at the\npane width\" >> /srv/demo/alpha/wrapped-output.txt; done",
			Reason: "A variable in this command can't be checked before it runs", Options: []string{"Yes", auto, "No"}, Approve: enter}},
		{"permission-bash-gutter.2.1.332", agent.Prompt{Kind: "run_command", Title: bash, Command: guttered(111), Reason: "This command requires approval", Options: []string{"Yes", words, auto, "No"}, Approve: enter}},
		{"permission-bash-gutter.2.1.263", agent.Prompt{Kind: "run_command", Title: bash, Command: guttered(107), Reason: "This command requires approval", Options: []string{"Yes", words, auto, "No"}, Approve: enter}},
		{"permission-bash-unnumbered.2.1.332", agent.Prompt{Kind: "run_command", Title: bash, Command: "curl -s http://127.0.0.1:9/ > /srv/demo/beta/au2.txt", Reason: needs, Options: plain, Approve: down(1)}},
		{"permission-bash-taller-than-pane.100x30.2.1.332", agent.Prompt{Kind: "tool", Cut: true, Options: []string{"Yes",
			"Yes, and don't ask again for touch /srv/demo/alpha/f1, touch /srv/demo/alpha/f2, touch /srv/demo/alpha/f3, touch /srv/demo/alpha/f4, and touch /srv/demo/alpha/f5 commands in /srv/demo/alpha", auto, "No"}}},
		{"permission-bash-cut.40x12.2.1.332", agent.Prompt{Kind: "tool", Cut: true, Options: folder}},
		{"permission-write.2.1.332", agent.Prompt{Kind: "edit_files", Title: "Create file", Command: "new.txt", Options: edits, Approve: enter}},
		{"permission-write.2.1.263", agent.Prompt{Kind: "edit_files", Title: "Create file", Command: "oldw.txt", Options: edits, Approve: enter}},
		{"permission-overwrite.2.1.263", agent.Prompt{Kind: "edit_files", Title: "Overwrite file", Command: "old.txt", Options: edits, Approve: enter}},
		{"permission-edit.2.1.332", agent.Prompt{Kind: "edit_files", Title: "Edit file", Command: "new.txt", Options: edits, Approve: enter}},
		{"permission-write-long-path.2.1.332", agent.Prompt{Kind: "edit_files", Title: "Create file", Options: edits, Approve: enter,
			Command: "…ry-name-2/directory-name-3/directory-name-4/directory-name-5/directory-name-6/directory-name-7/directory-name-8/f.txt"}},
		{"plan-mode-write-permission.2.1.332", agent.Prompt{Kind: "edit_files", Title: "Create file", Command: "../home/.claude/plans/x.md", Reason: needs, Options: plain, Approve: down(1)}},
		{"permission-webfetch.2.1.332", agent.Prompt{Kind: "fetch", Title: "Fetch", Command: "http://127.0.0.1:9/x", Reason: "x", Options: fetched, Approve: enter}},
		{"permission-fetch-multiline.2.1.332", agent.Prompt{Kind: "fetch", Title: "Fetch", Command: url, Reason: imitation, Options: fetched, Approve: enter}},
		{"permission-fetch-multiline.2.1.263", agent.Prompt{Kind: "fetch", Title: "Fetch", Command: url, Reason: imitation, Options: fetched, Approve: enter}},
		{"permission-mcp.2.1.332", agent.Prompt{Kind: "mcp_tool", Title: "Tool use", Command: "drawbridge.akk_echo",
			Options: []string{"Yes", "Yes, and don't ask again for drawbridge — Akk Echo commands in /srv/demo/beta", "No"}, Approve: enter}},
		{"permission-mcp-multiline.2.1.332", agent.Prompt{Kind: "mcp_tool", Title: "Tool use", Command: "probe.do_thing",
			Options: []string{"Yes", "Yes, and don't ask again for probe — Do Thing commands in /srv/demo/alpha", "No"}, Approve: enter}},
		{"permission-read.2.1.332", agent.Prompt{Kind: "tool", Title: "Read file", Options: []string{"Yes", "Yes, allow reading from /etc during this session", "No"}}},
		{"plan-approval.2.1.332", agent.Prompt{Kind: "plan", Title: "Ready to code?", Command: `Plan\n\n1. Do A\n2. Do B\n`, Options: plan, Approve: down(1)}},
		{"plan-approval-moved.2.1.263", agent.Prompt{Kind: "plan", Title: "Ready to code?", Command: "Plan\n\n1. Do A\n2. Do B\n\nYes, manually approve edits\n\n- x", Options: plan, Selected: 1, Approve: enter}},
		{"plan-approval-feedback.2.1.263", agent.Prompt{Kind: "plan", Title: "Ready to code?", Command: "Plan\n\n1. Do A\n2. Do B\n\nYes, manually approve edits\n\n- x", Options: plan, Selected: 2, Approve: up(1)}},
		{"plan-cut.2.1.263", agent.Prompt{Kind: "plan", Title: "Ready to code?", Cut: true, Options: plan}},
		{"plan-empty.2.1.263", agent.Prompt{Kind: "plan", Title: "Exit plan mode?", Options: []string{"Yes, and switch to default (ask each time) for this session", "No"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := file(t, load(t), tc.name).Read(capture(t, framed, tc.name)).Prompt
			if got == nil {
				t.Fatal("no prompt")
			}
			tc.want.Reject = esc
			tc.want.Region, tc.want.Digest, tc.want.Stable = got.Region, got.Digest, got.Stable
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// once checks that the keys of an approval lead to an option that allows this one
// call and nothing more.
func once(t testing.TB, name string, p *agent.Prompt) {
	t.Helper()
	if len(p.Approve) == 0 || len(p.Approve) == 1 && p.Approve[0] == terminal.Yes {
		return // a key that the dialog's own label names
	}
	at := p.Selected
	for _, k := range p.Approve[:len(p.Approve)-1] {
		switch k {
		case terminal.Up:
			at--
		case terminal.Down:
			at++
		default:
			t.Errorf("%s: key %s on the way to an option", name, k)
		}
	}
	if p.Approve[len(p.Approve)-1] != terminal.Enter || at < 0 || at >= len(p.Options) {
		t.Errorf("%s: keys %v from option %d of %d", name, p.Approve, p.Selected, len(p.Options))
		return
	}
	if label := p.Options[at]; label != "Yes" && label != "Allow" && label != "Yes, manually approve edits" {
		t.Errorf("%s: keys %v lead to %q", name, p.Approve, label)
	}
}

// The text of a dialog is the same whichever option is highlighted, and another
// one for another dialog.
func TestRead_Stable(t *testing.T) {
	stable, digest := map[string]string{}, map[string]string{}
	for _, s := range shots(t) {
		if p := s.file.Read(s.screen).Prompt; p != nil {
			stable[s.name], digest[s.name] = p.Stable, p.Digest
		}
	}
	for _, same := range [][]string{
		{"plan-approval.2.1.263", "plan-approval-moved.2.1.263", "plan-approval-feedback.2.1.263"},
		{"permission-write-first.2.1.332", "permission-write-second.2.1.332", "permission-write-third.2.1.332"},
		{"questionnaire.0.171.0", "questionnaire-moved.0.171.0"},
		{"ask-single-other-focused.2.1.332", "ask-single-other-focused.2.1.332"},
	} {
		for _, name := range same {
			if stable[name] == "" || stable[name] != stable[same[0]] {
				t.Errorf("%s and %s differ by more than the highlight", same[0], name)
			}
			if name != same[0] && digest[name] == digest[same[0]] {
				t.Errorf("%s and %s have one digest", same[0], name)
			}
		}
	}
	for _, other := range [][2]string{
		{"permission-two-bash-first.2.1.332", "permission-two-bash-second.2.1.332"}, {"permission-bash.2.1.332", "permission-bash-selected-no.2.1.332"},
		{"approval-exec.0.171.0", "approval-second.0.171.0-daemon"},
	} {
		if stable[other[0]] == stable[other[1]] {
			t.Errorf("%s and %s are one dialog", other[0], other[1])
		}
	}
}

// Proves tools 11.28 in part: whatever a rule file says, no key is given for an option that allows more than
// this one call: here it names, one after the other, every option of every dialog.
func TestRead_NothingLasting(t *testing.T) {
	words := []string{"always", "again", "switch to", "auto mode", "accept edits", "session"}
	for _, s := range shots(t) {
		whole := s.file.Read(s.screen)
		if whole.State != agent.Approval {
			continue
		}
		for i, label := range whole.Prompt.Options {
			tree := source(t, s.file.Name())
			for _, d := range tree["dialogs"].([]any) {
				if d := d.(map[string]any); d["name"] == whole.Name {
					d["approve"] = map[string]any{"option": quoted(label), "move": true, "keys": []any{"Enter"}}
				}
			}
			f, err := rule.Compile("mine.json", encode(t, tree))
			if err != nil {
				if whole.Name == "permission-cut" {
					break // without a title a file cannot even name an option
				}
				t.Fatal(err)
			}
			got := f.Read(s.screen).Prompt
			lasting := slices.ContainsFunc(words, func(w string) bool { return strings.Contains(strings.ToLower(label), w) })
			if (lasting || got.Cut) && got.Approve != nil {
				t.Errorf("%s: keys %v for %q", s.name, got.Approve, label)
			}
			if !lasting && !got.Cut {
				at := got.Selected + len(got.Approve) - 1
				if len(got.Approve) > 1 && got.Approve[0] == terminal.Up {
					at = got.Selected - len(got.Approve) + 1
				}
				if at != i {
					t.Errorf("%s: keys %v from %d for option %d", s.name, got.Approve, got.Selected, i)
				}
			}
		}
	}
}

// quoted makes an expression that matches one label.
func quoted(label string) string {
	var b strings.Builder
	for _, r := range label {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

// composerRow replaces the composer row of an idle screen and the rows around it.
func composerRow(t *testing.T, v string, rows ...string) terminal.Screen {
	t.Helper()
	page := unfold(capture(t, framed, "idle-after-turn."+v))
	at := page.find("❯\u00a0")
	head, foot := slices.Clone(page.rows[:at-1]), page.rows[at+2:]
	for _, r := range rows {
		head = append(head, []byte(r))
	}
	page.rows = append(head, foot...)
	return page.fold()
}

// Only a whole frame with the agent's own marker is a composer, and only the
// cursor's style tells a placeholder from a draft.
func TestRead_FramedComposer(t *testing.T) {
	rule := "\x1b[38;5;244m" + strings.Repeat("─", 120)
	short := "\x1b[38;5;244m" + strings.Repeat("─", 119)
	for _, tc := range []struct {
		name  string
		rows  []string
		state agent.State
		want  agent.Composer
	}{
		{"empty", []string{rule, "❯\u00a0\x1b[7m ", rule}, agent.Idle, agent.Composer{Seen: true, Empty: true}},
		{"empty, cursor not drawn", []string{rule, "❯\u00a0", rule}, agent.Idle, agent.Composer{Seen: true, Empty: true}},
		{"placeholder", []string{rule, "❯\u00a0\x1b[7mT\x1b[0;2mry \"fix it\"", rule}, agent.Idle, agent.Composer{Seen: true, Empty: true}},
		{"placeholder's text as a draft", []string{rule, "❯\u00a0Try \"fix it\"\x1b[7m ", rule}, agent.Idle, agent.Composer{Seen: true, Draft: "Try \"fix it\""}},
		{"cursor on the first character of a draft", []string{rule, "❯\u00a0\x1b[7mT\x1b[0mry \"fix it\"", rule}, agent.Idle, agent.Composer{Seen: true, Draft: "Try \"fix it\""}},
		{"one character under the cursor", []string{rule, "❯\u00a0\x1b[7mT", rule}, agent.Idle, agent.Composer{Seen: true, Draft: "T"}},
		{"placeholder partly painted", []string{rule, "❯\u00a0\x1b[7mT\x1b[0;2mry\x1b[0m fix it", rule}, agent.Unknown, agent.Composer{Seen: true}},
		{"faint without a cursor", []string{rule, "❯\u00a0\x1b[2mTry \"fix it\"", rule}, agent.Unknown, agent.Composer{Seen: true}},
		{"faint under the cursor, too", []string{rule, "❯\u00a0\x1b[2;7mT\x1b[0;2mry", rule}, agent.Unknown, agent.Composer{Seen: true}},
		{"two cursors", []string{rule, "❯\u00a0\x1b[7mT\x1b[0;2mr\x1b[0;7my", rule}, agent.Unknown, agent.Composer{Seen: true}},
		{"blanks typed", []string{rule, "❯\u00a0   \x1b[7m ", rule}, agent.Unknown, agent.Composer{Seen: true}},
		{"empty line below", []string{rule, "❯\u00a0x", "  \x1b[7m ", rule}, agent.Idle, agent.Composer{Seen: true, Draft: "x\n"}},
		{"wide characters", []string{rule, "❯\u00a0漢字 😀 é", "  👨‍👩‍👧 ok", rule}, agent.Idle, agent.Composer{Seen: true, Draft: "漢字 😀 é\n👨‍👩‍👧 ok"}},
		{"busy marker", []string{rule, "\x1b[38;5;246m❯\u00a0\x1b[7m ", rule}, agent.Working, agent.Composer{Seen: true, Empty: true}},
		{"marker on a background", []string{rule, "\x1b[48;5;237m❯\u00a0\x1b[0m", rule}, agent.Unknown, agent.Composer{}},
		{"blank behind the marker", []string{rule, "❯ \x1b[7m ", rule}, agent.Unknown, agent.Composer{}},
		{"marker indented", []string{rule, " ❯\u00a0\x1b[7m ", rule}, agent.Unknown, agent.Composer{}},
		{"no upper row", []string{"", "❯\u00a0\x1b[7m ", rule}, agent.Unknown, agent.Composer{}},
		{"upper row not above", []string{rule, "", "❯\u00a0\x1b[7m ", rule}, agent.Unknown, agent.Composer{}},
		{"no lower row", []string{rule, "❯\u00a0\x1b[7m ", ""}, agent.Unknown, agent.Composer{Seen: true}},
		{"upper row too short", []string{short, "❯\u00a0\x1b[7m ", rule}, agent.Unknown, agent.Composer{}},
		{"lower row too short", []string{rule, "❯\u00a0\x1b[7m ", short}, agent.Unknown, agent.Composer{Seen: true}},
		{"lower row a draft's", []string{rule, "❯\u00a0x", "  " + strings.Repeat("─", 118), rule}, agent.Idle, agent.Composer{Seen: true, Draft: "x\n" + strings.Repeat("─", 118)}},
		{"a row that is no draft's", []string{rule, "❯\u00a0x", "y", rule}, agent.Unknown, agent.Composer{Seen: true}},
		{"scrolled", []string{"\x1b[38;5;244m─── \x1b[2m↑ 4 more\x1b[0;38;5;244m " + strings.Repeat("─", 107), "  end of it\x1b[7m ", rule}, agent.Idle, agent.Composer{Seen: true, Scrolled: true, Draft: "end of it"}},
		{"scrolled, not drawn so", []string{"─── ↑ 4 more " + strings.Repeat("─", 107), "  end of it\x1b[7m ", rule}, agent.Unknown, agent.Composer{}},
		{"paste mark and more", []string{rule, "❯\u00a0[Pasted text #1 +4 lines] x", rule}, agent.Idle, agent.Composer{Seen: true, Draft: "[Pasted text #1 +4 lines] x"}},
	} {
		for _, v := range framedVersions {
			t.Run(tc.name+" "+v, func(t *testing.T) {
				r := file(t, load(t), "x."+v).Read(composerRow(t, v, tc.rows...))
				sound(t, tc.name, r)
				got := r.Composer
				if r.State == agent.Unknown {
					got.Draft, got.Placeholder = "", ""
				}
				if r.State != tc.state || got != tc.want {
					t.Errorf("%s (%s) %+v, want %s %+v\n%+v", r.State, r.Name, got, tc.state, tc.want, r.Evidence)
				}
			})
		}
	}
}

// A draft may read like anything; it stays a draft.
func TestRead_FramedDraftImitates(t *testing.T) {
	rule := "\x1b[38;5;244m" + strings.Repeat("─", 120)
	for name, more := range map[string][]string{
		"dialog": {"", " Bash command", " ╌╌╌╌", " rm -rf /", " ╌╌╌╌", " Do you want to proceed?", " ❯ 1. Yes", "   2. No", "", " Esc to cancel · Tab to amend"},
		"footer": {"⏸ manual mode on · esc to interrupt"}, "armed": {"Press Ctrl-C again to exit"}, "spinner": {"✻ Forging… (2s · ↓ 10 tokens)"},
		"panel": {strings.Repeat("▔", 118)}, "questionnaire": {"☐ Database", "", "❯ 1. SQLite", "  2. Postgres", "", "Enter to select · Esc to cancel"},
		"composer": {strings.Repeat("─", 118), "❯\u00a0x", strings.Repeat("─", 118)}, "exit": {"Resume this session with:", "claude --resume x"},
		"cut": {"↑ 45 more lines", "Esc to cancel · Tab to amend"}, "transcript": {"Showing detailed transcript · ctrl+o to toggle"},
	} {
		for _, v := range framedVersions {
			rows, want := []string{rule, "❯\u00a0x"}, "x"
			for _, m := range more {
				rows, want = append(rows, "  "+m), want+"\n"+m
			}
			r := file(t, load(t), "x."+v).Read(composerRow(t, v, append(rows, rule)...))
			sound(t, name, r)
			if r.State != agent.Idle || r.Composer.Draft != want {
				t.Errorf("%s %s: %s (%s), draft %q\n%+v", v, name, r.State, r.Name, r.Composer.Draft, r.Evidence)
			}
		}
	}
}

// What an answer, a tool or a request brings on screen, in a dialog's own style
// and place but indented as everything there is, or above a composer, is none.
func TestRead_FramedDialogInAnswer(t *testing.T) {
	for _, s := range shots(t) {
		whole := s.file.Read(s.screen)
		if s.agent != "claude" || s.screen.Pane.Width != 120 || whole.State != agent.Approval && whole.State != agent.Question && whole.State != agent.Blocked {
			continue
		}
		dialog := unfold(s.screen)
		v := s.file.Tested()[0]
		idle := unfold(capture(t, framed, "idle-after-turn."+v))
		at := idle.find("❯\u00a0") - 1
		above := idle
		above.rows = append(append(slices.Clone(dialog.rows), nil), idle.rows[at:]...)
		r := s.file.Read(above.fold())
		sound(t, s.name, r)
		if r.State == agent.Approval || r.State == agent.Question {
			t.Errorf("%s above a composer: %s (%s)", s.name, r.State, r.Name)
		}
		for _, indent := range []string{" ", "  ", "     "} {
			for _, last := range []bool{true, false} { // the answer is all that is in sight, or a frame is half painted
				page := idle
				page.rows = nil
				for i := range dialog.rows {
					page.rows = append(page.rows, append([]byte(indent), dialog.rows[i]...))
				}
				if !last {
					page.rows = append(page.rows, nil, idle.rows[at])
				}
				r := s.file.Read(page.fold())
				if r.State == agent.Idle || r.State == agent.Approval && r.Prompt.Approve != nil || r.State == agent.Question && r.Name != "questionnaire" {
					t.Errorf("%s indented by %d: %s (%s)", s.name, len(indent), r.State, r.Name)
				}
			}
		}
	}
}

// half is a screen of which some rows are seen.
type half struct {
	shot
	page     sheet
	ready    bool // an empty composer of an idle pane
	composer int  // its row, 40 without one
	first    int  // first row of the dialog, -1 without one
	last     int  // last row with ink
}

// top is the row from which on the screen means something.
func (h half) top() int {
	if h.first >= 0 {
		return h.first
	}
	return min(h.composer-1, 24)
}

// Any number of rows of one screen above the rest of another: an approval that
// could be given, and a pane that takes a request, are seen only where all of
// theirs is there. What no single capture can tell is left out: a footer whose
// last row alone says that the pane is armed to exit, and, where a running turn is
// told by a row above the composer only, a composer from below that row.
func TestRead_Mixed(t *testing.T) {
	pick := map[string][]string{
		"0.171.0": {"idle-empty", "draft", "working", "approval-exec", "approval-patch", "approval-mcp", "questionnaire", "model-picker", "bang-draft", "slash-popup", "completed"},
		"0.148.0": {"idle-empty", "draft", "working", "approval-exec", "approval-patch", "questionnaire", "model-picker", "completed"},
		"2.1.332": {"idle-after-turn", "draft-multiline-paste-2", "working", "working-with-queued-prompt", "permission-bash", "permission-bash-unnumbered", "permission-bash-gutter", "permission-write",
			"permission-webfetch", "permission-mcp", "plan-approval", "ask-single", "ask-multi-review", "model-picker", "status-panel", "trust-dialog", "draft-bang-bash-mode", "slash-menu-status", "shortcuts-help"},
		"2.1.263": {"idle-after-turn", "working-streaming", "permission-bash", "permission-bash-gutter", "permission-write", "plan-empty", "ask-single", "status-panel"},
	}
	all := shots(t)
	for v, list := range pick {
		var halves []half
		for _, s := range all {
			if base, ok := strings.CutSuffix(s.name, "."+v); !ok || !slices.Contains(list, base) {
				continue
			}
			h := half{shot: s, page: unfold(s.screen), composer: 40, first: -1}
			r := s.file.Read(s.screen)
			h.ready = r.State == agent.Idle && r.Composer.Empty
			for h.last = len(h.page.rows) - 1; h.page.text(h.last) == ""; h.last-- {
			}
			if r.Composer.Seen {
				h.composer = max(h.page.find("❯\u00a0"), h.page.find("›"))
			}
			for _, e := range r.Evidence {
				var from, to int
				if n, _ := fmt.Sscanf(e.Region, "rows %d-%d", &from, &to); n == 2 && r.Prompt != nil && h.first < 0 {
					h.first = from - 1
				}
			}
			halves = append(halves, h)
		}
		if len(halves) != len(list) {
			t.Fatalf("%s: %d of %d screens", v, len(halves), len(list))
		}
		for _, old := range halves {
			for _, fresh := range halves {
				if old.name == fresh.name {
					continue
				}
				for k := max(1, min(old.top(), fresh.top())-3); k < 40; k++ {
					page := sheet{width: 120, height: 40, rows: append(slices.Clone(fresh.page.rows[:k]), old.page.rows[k:]...)}
					r := fresh.file.Read(page.fold())
					approval, other := fresh.want.State == agent.Approval, old.want.State == agent.Approval
					whole := approval && other || other && k <= old.first || approval && k > fresh.last
					if r.State == agent.Approval && r.Prompt.Approve != nil && !whole {
						t.Errorf("%d rows of %s above %s: approval (%s)", k, fresh.name, old.name, r.Name)
					}
					whole = old.ready && k <= old.composer || fresh.ready && k > fresh.composer || old.want.State == agent.Working && old.agent == "codex"
					if r.State == agent.Idle && r.Composer.Empty && !whole {
						t.Errorf("%d rows of %s above %s: idle", k, fresh.name, old.name)
					}
				}
			}
		}
	}
}

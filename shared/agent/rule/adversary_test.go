package rule_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/screen"
	"drawbridge/shared/terminal"
)

// sheet is a screen cut into rows of styled bytes, each complete in itself, so
// that rows can be moved, mixed and made.
type sheet struct {
	rows   [][]byte
	width  int
	height int
}

func unfold(s terminal.Screen) sheet {
	p := screen.Parse(s.Text, s.Pane.Width, s.Pane.Height)
	out := sheet{width: s.Pane.Width, height: s.Pane.Height}
	for i := range p.Rows {
		out.rows = append(out.rows, bytes.TrimSuffix(p.Region(i, i), []byte("\n")))
	}
	return out
}

// fold makes a screen of the last height rows, filled up with blank ones.
func (s sheet) fold() terminal.Screen {
	rows := s.rows
	if len(rows) > s.height {
		rows = rows[len(rows)-s.height:]
	}
	var b bytes.Buffer
	for _, r := range rows {
		b.WriteString("\x1b[0m")
		b.Write(r)
		b.WriteByte('\n')
	}
	for i := len(rows); i < s.height; i++ {
		b.WriteByte('\n')
	}
	return terminal.Screen{Text: b.Bytes(), Pane: terminal.Pane{Width: s.width, Height: s.height}}
}

func (s sheet) with(at int, rows ...string) sheet {
	out := s
	out.rows = slices.Clone(s.rows[:at])
	for _, r := range rows {
		out.rows = append(out.rows, []byte(r))
	}
	out.rows = append(out.rows, s.rows[at:]...)
	return out
}

// text of the rows, for looking things up.
func (s sheet) text(i int) string { return screen.Parse(s.rows[i], s.width, 0).Row(0).Text() }

// find gives the last row with the text, -1 without one.
func (s sheet) find(sub string) int {
	for i := len(s.rows) - 1; i >= 0; i-- {
		if strings.Contains(s.text(i), sub) {
			return i
		}
	}
	return -1
}

// The helper changes nothing by itself.
func TestSheet(t *testing.T) {
	for _, s := range shots(t) {
		name := s.name
		a, b := s.file.Read(s.screen), s.file.Read(unfold(s.screen).fold())
		if a.State != b.State || a.Name != b.Name || a.Composer != b.Composer {
			t.Errorf("%s: %s %s, unfolded and folded %s %s", name, a.State, a.Name, b.State, b.Name)
		}
		if a.Prompt != nil && b.Prompt != nil && a.Prompt.Digest != b.Prompt.Digest {
			t.Errorf("%s: the digest depends on how the screen was written", name)
		}
	}
}

var versions = []string{"0.148.0", "0.171.0"}

// A dialog that an answer prints, however exact, is no approval while a composer
// stands below it: here every row is a real dialog's, styles included.
func TestRead_DialogInAnswer(t *testing.T) {
	set := load(t)
	for _, v := range versions {
		for _, dialog := range []string{"approval-exec", "approval-patch", "approval-longcmd", "questionnaire", "model-picker"} {
			real := unfold(capture(t, screens, dialog+"."+v))
			idle := unfold(capture(t, screens, "idle-empty."+v))
			at := idle.find("›")
			page := idle
			page.rows = append(append(slices.Clone(real.rows[10:]), nil, nil), idle.rows[at:]...)
			r := file(t, set, "x."+v).Read(page.fold())
			if r.State != agent.Idle && r.State != agent.Blocked {
				t.Errorf("%s %s above a composer: %s (%s)", dialog, v, r.State, r.Name)
			}
		}
	}
}

// A person may type anything: no draft is a placeholder, a dialog or a footer.
func TestRead_DraftImitates(t *testing.T) {
	dialog := []string{
		"  Would you like to run the following command?", "", "  $ rm -rf /", "",
		"  › 1. Yes, proceed (y)", "    2. No, and tell Codex what to do differently (esc)", "", "  Press enter to confirm or esc to cancel",
	}
	for _, tc := range []struct {
		name  string
		first string
		more  []string
	}{
		{"placeholder", "Ask Codex to do anything", nil},
		{"dialog", "x", dialog},
		{"footer", "x", []string{"", "  gpt-5-codex default · ~/rig/ws"}},
		{"starting footer", "x", []string{"", "  ? for shortcuts"}},
		{"busy", "x", []string{"  • Working (3s • esc to interrupt)"}},
		{"blocked footer", "x", []string{"", "  esc again to edit previous message", "  Browsing transcript · x"}},
		{"popup hint", "x", []string{"  /status      show current session configuration"}},
		{"paste placeholder", "[Pasted Content 10012 chars]", nil},
		{"exit", "x", []string{"  Token usage: total=1", "  To continue this session, run codex resume"}},
		{"wide", "漢字 😀 é", []string{"  漢字漢字", "", "  👨‍👩‍👧 ok"}},
	} {
		for _, v := range versions {
			t.Run(tc.name+" "+v, func(t *testing.T) {
				page := unfold(capture(t, screens, "draft."+v))
				at := page.find("› hello one")
				page.rows[at] = []byte("\x1b[1m›\x1b[0m " + tc.first)
				page = page.with(at+1, tc.more...)
				if v == "0.148.0" { // drawn inline: the screen grows down
					page.rows = page.rows[:40]
				}
				r := file(t, load(t), "x."+v).Read(page.fold())
				sound(t, tc.name, r)
				want := tc.first
				for _, m := range tc.more {
					want += "\n" + strings.TrimPrefix(m, "  ")
				}
				if r.State != agent.Idle || r.Composer.Draft != want || r.Composer.Pasted != 0 {
					t.Errorf("%s (%s), draft %q, pasted %d\n%+v", r.State, r.Name, r.Composer.Draft, r.Composer.Pasted, r.Evidence)
				}
			})
		}
	}
}

// A frame that is only partly painted proves nothing: of an approval every row
// that is missing at the end or replaced at the top takes the approval away, and
// of an idle pane the composer and the footer row that names the model.
func TestRead_HalfPainted(t *testing.T) {
	set := load(t)
	for _, s := range shots(t) {
		name, want, f := s.name, s.want, s.file
		full := unfold(s.screen)
		whole := f.Read(full.fold())
		last := len(full.rows) - 1
		for last >= 0 && full.text(last) == "" {
			last--
		}
		for k := last; k > 0 && k > last-25; k-- {
			page := full
			page.rows = slices.Clone(full.rows)
			for i := k; i < len(page.rows); i++ {
				page.rows[i] = nil
			}
			r := f.Read(page.fold())
			if full.text(k) == "" {
				continue // the row above was the last one already
			}
			if r.State == agent.Approval || r.State == agent.Question {
				t.Errorf("%s without its rows from %d: %s", name, k+1, r.State)
			}
			if r.State == agent.Idle && want.State != agent.Idle {
				t.Errorf("%s without its rows from %d: idle", name, k+1)
			}
		}
		if whole.State == agent.Idle && s.agent == "codex" {
			for _, gone := range []string{"›", "·"} {
				at := full.find(gone)
				if gone == "·" {
					for at >= 0 && !strings.Contains(full.text(at), "gpt-5-codex") {
						at--
					}
				}
				page := full
				page.rows = slices.Clone(full.rows)
				page.rows[at] = nil
				if r := f.Read(page.fold()); r.State == agent.Idle {
					t.Errorf("%s without row %d: idle", name, at+1)
				}
			}
		}
	}
	// Rows of one frame above rows of another.
	for _, v := range versions {
		top, bottom := unfold(capture(t, screens, "working."+v)), unfold(capture(t, screens, "approval-exec."+v))
		title := bottom.find("Would you like")
		f := file(t, set, "x."+v)
		for k := 1; k < 40; k++ {
			page := sheet{width: 120, height: 40, rows: append(slices.Clone(top.rows[:k]), bottom.rows[k:]...)}
			r := f.Read(page.fold())
			if r.State == agent.Idle || r.State == agent.Approval && k > title {
				t.Errorf("%s: %d rows of working above rows of an approval: %s", v, k, r.State)
			}
			page.rows = append(slices.Clone(bottom.rows[:k]), top.rows[k:]...)
			if r := f.Read(page.fold()); r.State == agent.Approval {
				t.Errorf("%s: %d rows of an approval above rows of working: approval", v, k)
			}
		}
	}
}

// A composer row in which old and new text are mixed is neither empty nor a
// draft.
func TestRead_TornComposer(t *testing.T) {
	set := load(t)
	for _, v := range versions {
		for _, torn := range []string{
			"\x1b[1m›\x1b[0m \x1b[2mAsk\x1b[0ms\x1b[2mCmdex to do anything",
			"\x1b[1m›\x1b[0m hello \x1b[2mto do anything",
			"\x1b[1m›\x1b[0m",
			"\x1b[2m›\x1b[0m \x1b[2mAsk Codex to do anything",
			"\x1b[1m›\x1b[0mx\x1b[2mAsk Codex to do anything",
			" \x1b[1m›\x1b[0m \x1b[2mAsk Codex to do anything",
			"\x1b[1;38;5;2m›\x1b[0m \x1b[2mAsk Codex to do anything",
			"\x1b[1;48;5;238m›\x1b[0m \x1b[2mAsk Codex to do anything",
		} {
			page := unfold(capture(t, screens, "idle-empty."+v))
			page.rows[page.find("›")] = []byte(torn)
			r := file(t, set, "x."+v).Read(page.fold())
			sound(t, torn, r)
			if r.State != agent.Unknown || r.Composer.Empty {
				t.Errorf("%s %q: %s %+v", v, torn, r.State, r.Composer)
			}
		}
	}
}

// Text in the footer that no rule knows keeps a pane from being idle; so does a
// row between composer and footer that is not a draft's.
func TestRead_ForeignRows(t *testing.T) {
	set := load(t)
	for _, v := range versions {
		for _, foreign := range []string{"  press x to continue", "  \x1b[38;5;75mpress x\x1b[0m to continue", "something", "› 1. choose", "• Working"} {
			page := unfold(capture(t, screens, "idle-empty."+v))
			at := page.find("›")
			foot := page.find("gpt-5-codex default ·")
			below, between := page.with(foot+1, foreign), page
			between.rows = slices.Clone(page.rows)
			between.rows[at+1] = []byte(foreign)
			for where, p := range map[string]sheet{"below the footer": below, "above the footer": between} {
				if v == "0.148.0" || where == "below the footer" {
					p.rows = p.rows[max(0, len(p.rows)-40):]
				}
				r := file(t, set, "x."+v).Read(p.fold())
				sound(t, foreign, r)
				if r.State == agent.Idle && r.Composer.Empty || r.State == agent.Approval {
					t.Errorf("%s, %q %s: %s", v, foreign, where, r.State)
				}
			}
		}
	}
}

// What reads like a busy row but is not drawn like one does not make a pane busy,
// yet keeps it from being idle.
func TestRead_BusyLookalike(t *testing.T) {
	set := load(t)
	for _, v := range versions {
		f := file(t, set, "x."+v)
		for row, want := range map[string]agent.State{
			"\x1b[2m•\x1b[0m Working (3s • esc to interrupt)":                agent.Unknown, // an answer
			"• \x1b[2mWorking\x1b[0m \x1b[2m(3s • esc to interrupt)":         agent.Working,
			"\x1b[2m◦\x1b[0m \x1b[2mThinking hard\x1b[0m (1m 05s • esc to i": agent.Unknown,
			"• \x1b[1mRunning\x1b[0m sleep 100":                              agent.Unknown,
			"\x1b[2m•\x1b[0m Running the tests now":                          agent.Idle, // an answer
			"\x1b[2m•\x1b[0m Press esc to interrupt":                         agent.Idle,
			"  • Working (3s • esc to interrupt)":                            agent.Idle, // indented: a list in an answer
		} {
			page := unfold(capture(t, screens, "completed."+v))
			at := page.find("Ask Codex")
			page.rows = slices.Clone(page.rows)
			page.rows[at-3], page.rows[at-2], page.rows[at-1] = []byte(row), nil, nil
			if r := f.Read(page.fold()); r.State != want {
				t.Errorf("%s %q: %s, want %s\n%+v", v, row, r.State, want, r.Evidence)
			}
		}
	}
}

// rewrap draws a screen on a pane of another size the way a terminal would:
// rows that are too long go on in the next one, the end stays in sight.
func rewrap(s sheet, width, height int) sheet {
	out := sheet{width: width, height: height}
	last := len(s.rows) - 1
	for last > 0 && s.text(last) == "" {
		last--
	}
	for i := 0; i <= last; i++ {
		row := screen.Parse(s.rows[i], s.width, 0).Row(0)
		cells := row.Cells[:min(row.Width(), len(row.Cells))]
		for first := true; first || len(cells) > 0; first = false {
			n := min(width, len(cells))
			var b []byte
			for _, c := range cells[:n] {
				b = fmt.Appendf(b, "%s%s", sgr(c.Style), c.Text)
			}
			out.rows = append(out.rows, b)
			cells = cells[n:]
		}
	}
	return out
}

// sgr writes a style by way of the package's own form.
func sgr(st screen.Style) []byte {
	s := screen.Screen{Rows: []screen.Row{{Cells: []screen.Cell{{Text: " ", Width: 1, Style: screen.Style{Attr: st.Attr | screen.Reverse, FG: st.FG, BG: st.BG}}}}}}
	b := s.Region(0, 0)
	b = b[:bytes.IndexByte(b, 'm')+1]
	if !st.Has(screen.Reverse) {
		b = append(b, "\x1b[27m"...)
	}
	return b
}

// On panes of any size nothing that is not idle becomes idle, and nothing that
// is not an approval becomes one.
func TestRead_Rewrapped(t *testing.T) {
	for _, s := range shots(t) {
		name, v, f := s.name, s.want, s.file
		full := unfold(s.screen)
		for _, size := range [][2]int{{20, 5}, {40, 10}, {60, 12}, {60, 24}, {80, 8}, {80, 24}, {119, 39}, {121, 41}, {300, 100}} {
			r := f.Read(rewrap(full, size[0], size[1]).fold())
			sound(t, name, r)
			if r.State == agent.Idle && v.State != agent.Idle || r.State == agent.Approval && v.State != agent.Approval {
				t.Errorf("%s at %v: %s (%s), it shows %s", name, size, r.State, r.Name, v.State)
			}
			if wide := size[0] >= 120 && size[1] >= 40 && s.agent == "codex"; wide && r.State != v.State && !strings.HasPrefix(name, "resume-picker") {
				t.Errorf("%s at %v: %s (%s), it shows %s\n%+v", name, size, r.State, r.Name, v.State, r.Evidence)
			}
		}
	}
}

// noise draws one row that an agent, a tool or a person could bring on screen,
// with any style. A composer's own style at column 0 is the agent's alone.
func noise(t *rapid.T) string {
	text := rapid.OneOf(
		rapid.SampledFrom([]string{
			"", "", "  Would you like to run the following command?", "  $ rm -rf /", "› 1. Yes, proceed (y)", "  2. No, and tell Codex what to do differently (esc)",
			"  Press enter to confirm or esc to cancel", "  gpt-5-codex default · ~/rig/ws", "› Ask Codex to do anything", "• Working (3s • esc to interrupt)",
			"  Question 1/2 (2 unanswered)", "Token usage: total=1", "To continue this session, run codex resume", "  esc again to edit previous message",
			" Bash command", "   Ready to code?", " Do you want to proceed?", " ❯ 1. Yes", "   2. No", " Esc to cancel · Tab to amend", " " + strings.Repeat("─", 119),
			"  " + strings.Repeat("╌", 116), "❯ 1. Yes", "❯ please", "  ⏸ manual mode on · ? for shortcuts", "  ⏸ manual mode on · esc to interrupt", "✻ Brewed for 4s · done 12:57 PM",
			"● Do you want to proceed?", "Enter to select · ↑/↓ to navigate · Esc to cancel", " ☐ Database", " ↑ 45 more lines",
			"  Field 1/1", "  Allow the probe MCP server to run tool \"x\"?", "  ? for shortcuts", "漢字 😀", "■ Conversation interrupted", "  1 background terminal running · /ps to view · /stop to close",
		}),
		rapid.StringMatching(`[ -~]{0,100}`),
	).Draw(t, "text")
	styled := rapid.SampledFrom([]string{"", "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[1;7m", "\x1b[38;5;6m", "\x1b[1;38;5;6m", "\x1b[1;2m", "\x1b[48;5;238m", "\x1b[3m"}).Draw(t, "style")
	if styled == "\x1b[1m" && (strings.HasPrefix(text, "›") || strings.HasPrefix(text, "!")) {
		text = " " + text
	}
	return styled + text
}

// Whatever rows stand above them, a running turn and an open approval stay what
// they are, and a pane at rest never becomes an approval. Proves core 19.54 in
// part: scrolling outside the region does not change the digest.
func TestRead_RowsAbove(t *testing.T) {
	set := load(t)
	type base struct {
		name string
		at   int // rows are put in above this one
		file interface {
			Read(terminal.Screen) agent.Reading
		}
		page  sheet
		whole agent.Reading
	}
	var bases []base
	for _, n := range []struct{ name, at string }{
		{"working.0.148.0", "esc to interrupt"}, {"working.0.171.0", "esc to interrupt"}, {"retrying.0.171.0", "esc to interrupt"},
		{"approval-exec.0.148.0", "Would you like"}, {"approval-exec.0.171.0", "Would you like"}, {"approval-patch.0.171.0", "Would you like"},
		{"approval-mcp.0.171.0", "Field 1/1"}, {"questionnaire.0.171.0", "Question 1/2"}, {"idle-empty.0.148.0", "Ask Codex"}, {"completed.0.171.0", "Ask Codex"},
		{"draft.0.171.0", "› hello one"}, {"startup-not-ready.0.171.0", "Ask Codex"}, {"model-picker.0.171.0", "Select Model"},
	} {
		f := file(t, set, n.name)
		page := unfold(capture(t, screens, n.name))
		bases = append(bases, base{n.name, page.find(n.at), f, page, f.Read(page.fold())})
	}
	for _, n := range []struct {
		name, at string
		up       int // rows from the first row of the region down to that text
	}{
		{"working.2.1.332", "❯\u00a0", 1}, {"working-streaming.2.1.263", "❯\u00a0", 1}, {"working-draft-tall.40x16.2.1.332", "Un", 0},
		{"permission-bash.2.1.332", "Bash command", 1}, {"permission-bash.2.1.263", "Bash command", 1}, {"permission-bash-unnumbered.2.1.332", "Bash command", 1},
		{"permission-bash-gutter.2.1.263", "Bash command", 1}, {"permission-fetch-multiline.2.1.332", " Fetch", 1}, {"permission-mcp.2.1.332", "Tool use", 1},
		{"permission-write.2.1.332", "Create file", 1}, {"plan-approval.2.1.332", "Ready to code?", 1}, {"plan-empty.2.1.263", "Exit plan mode?", 1},
		{"ask-multi-q1.2.1.332", "☐ Checks", 1}, {"ask-multi-review.2.1.332", "✔ Submit", 1},
		{"idle-after-turn.2.1.263", "❯\u00a0", 1}, {"idle-empty-manual.2.1.332", "❯\u00a0", 1}, {"draft-multiline-paste-2.2.1.332", "❯\u00a0", 1},
		{"idle-draft-tall.80x24.2.1.332", "↑ 4 more", 0}, {"model-picker.2.1.332", "Select model", 1}, {"trust-dialog.2.1.332", "Accessing workspace", 1},
		{"transcript-view-idle.100x30.2.1.332", "Showing detailed transcript", 1}, {"ctrl-c-once-exit-hint.2.1.332", "❯\u00a0", 1},
	} {
		f := file(t, set, n.name)
		page := unfold(capture(t, corpora[1].screens, n.name))
		bases = append(bases, base{n.name, page.find(n.at) - n.up, f, page, f.Read(page.fold())})
	}
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(rapid.Custom(noise), 0, 20).Draw(t, "rows")
		for _, b := range bases {
			page := b.page
			page.rows = nil
			for _, r := range rows {
				page.rows = append(page.rows, []byte(r))
			}
			if b.whole.State != agent.Working {
				page.rows = append(page.rows, nil)
			}
			page.rows = append(page.rows, b.page.rows[b.at:]...)
			got := b.file.Read(page.fold())
			switch b.whole.State {
			case agent.Working:
				if got.State == agent.Idle || got.State == agent.Approval {
					t.Fatalf("%s below %q: %s (%s)", b.name, rows, got.State, got.Name)
				}
			case agent.Approval, agent.Question:
				if got.State != b.whole.State || got.Prompt.Digest != b.whole.Prompt.Digest {
					t.Fatalf("%s below %q: %s (%s) %+v", b.name, rows, got.State, got.Name, got.Evidence)
				}
			default:
				if got.State == agent.Approval || got.State == agent.Question || got.State == agent.Idle && b.whole.State != agent.Idle {
					t.Fatalf("%s below %q: %s (%s)", b.name, rows, got.State, got.Name)
				}
			}
		}
	})
}

// Proves core 19.54 (the screen's side): every inked cell of a dialog, by its
// character and by its style, is in the digest; no row outside is.
func TestRead_DigestIsTheRegion(t *testing.T) {
	set := load(t)
	for _, name := range []string{"approval-exec.0.148.0", "approval-exec.0.171.0", "approval-patch.0.171.0", "approval-mcp.0.171.0", "questionnaire.0.148.0",
		"permission-bash.80x24.2.1.332", "permission-bash.2.1.263", "permission-webfetch.2.1.332", "plan-approval.2.1.332", "ask-single.2.1.332"} {
		f := file(t, set, name)
		dir, above := screens, 0
		if f.Agent() == "claude" { // its dialogs have a row above the title
			dir, above = corpora[1].screens, 1
		}
		page := unfold(capture(t, dir, name))
		whole := f.Read(page.fold())
		title := page.find(whole.Prompt.Title) - above
		changed, same := 0, 0
		for i := range page.rows {
			row := screen.Parse(page.rows[i], page.width, 0).Row(0)
			for n, c := range row.Cells {
				if c.Width == 0 || c.Blank() || i < title && n%7 != 0 {
					continue
				}
				for _, other := range []string{string(sgr(c.Style)) + "#", string(sgr(screen.Style{Attr: c.Style.Attr ^ screen.Underline, FG: c.Style.FG, BG: c.Style.BG})) + c.Text} {
					var b []byte
					for k, d := range row.Cells {
						if k == n {
							b = append(b, other...)
							continue
						}
						b = append(append(b, sgr(d.Style)...), d.Text...)
					}
					mod := page
					mod.rows = slices.Clone(page.rows)
					mod.rows[i] = b
					got := f.Read(mod.fold())
					equal := got.Prompt != nil && got.Prompt.Digest == whole.Prompt.Digest
					if inside := i >= title; inside == equal {
						t.Fatalf("%s: row %d column %d changed, digest equal %v", name, i+1, n, equal)
					}
					if equal {
						same++
					} else {
						changed++
					}
				}
			}
		}
		if changed < 100 || same == 0 {
			t.Errorf("%s: only %d changes inside, %d outside", name, changed, same)
		}
	}
}

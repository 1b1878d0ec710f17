package rig

import (
	"bytes"
	"encoding/json"
	"strings"
)

// recordClaude is the script for Claude Code. Its names are those that the
// recordings of all versions share.
func (r *Rig) recordClaude(rec *Recording) {
	r.tb.Helper()
	rec.p = r.Claude(rec.Version, ClaudeOptions{})
	p := rec.p
	rec.screen("idle-empty-manual")
	rec.claudeDrafts()
	rec.claudeTurns()
	rec.claudePermissions()
	rec.claudeFailures()
	rec.claudeQuestions()
	rec.claudePlan()
	rec.claudePanels()
	p.Submit("/exit")
	p.AwaitText("EXITED rc=0")
	rec.screen("exited")
}

func (rec *Recording) claudeDrafts() {
	p := rec.p
	draft := func(text, seen, name string) {
		p.Paste(text)
		p.AwaitText(seen)
		rec.screen(name)
		p.clear()
	}
	draft("a draft that nobody has sent", "nobody has sent", "draft-single-line")
	draft("first row of a draft\nsecond row", "second row", "draft-multiline-paste-2")
	draft("one\ntwo\nthree\nfour\nfive", "[Pasted text", "draft-multiline-paste-4")
	draft(strings.Repeat("0123456789", 81), "[Pasted text", "draft-805-chars")
	p.Type("/status")
	p.AwaitText("/statusline")
	rec.screen("slash-menu-status")
	p.clear()
	p.Type("!")
	p.AwaitText("shell mode")
	rec.screen("draft-bang-bash-mode")
	p.Key("BSpace")
	p.AwaitIdle()
}

func (rec *Recording) claudeTurns() {
	p := rec.p
	p.Run("SCN=ECHO the first turn")
	rec.screen("idle-after-turn")
	rec.rollout("first-turn")

	p.Run("SCN=ECHO one\ntwo\nthree\nfour\nfive")
	rec.rollout("prompt-pasted")

	p.Submit("SCN=GATE:working")
	p.Await("the busy footer", Screen.Busy)
	rec.screen("working")
	// Before any output the prompt comes back and nothing is recorded.
	p.Key("Escape")
	p.AwaitStatus("idle")
	p.Await("the prompt in the composer", func(s Screen) bool { return s.Composer.Seen && !s.Composer.Empty && !s.Busy() })
	rec.screen("interrupted-before-output")
	p.clear()

	p.Submit("SCN=STREAM:40")
	p.AwaitText("line 5 of")
	rec.screen("working-streaming")
	rec.interrupt()
	rec.screen("interrupted-streaming")
	rec.rollout("interrupted-streaming")
}

func (rec *Recording) claudePermissions() {
	p := rec.p
	// The dialog comes some moments after what it is about.
	asked := func(question, name string, about ...string) {
		p.Await("the dialog", func(s Screen) bool {
			for _, text := range about {
				if !strings.Contains(s.Text, text) {
					return false
				}
			}
			return strings.Contains(s.Text, question) && !s.Composer.Seen
		})
		p.AwaitStatus("waiting")
		rec.screen(name)
	}
	p.Submit("SCN=EXEC:x")
	asked("Do you want to proceed?", "permission-bash")
	rec.finish("Enter")
	rec.screen("after-approve-bash")
	rec.rollout("approved-bash")

	p.Submit("SCN=LONGCMD")
	asked("Do you want to proceed?", "permission-bash-multiline")
	rec.finish("Escape")
	rec.screen("after-reject-esc")
	rec.rollout("rejected-bash-esc")

	p.Submit("SCN=EDIT:x")
	asked("Do you want to create", "permission-write")
	p.Key("Enter")
	asked("Do you want to make this edit", "permission-edit")
	rec.finish("Enter")
	rec.rollout("approved-edit")

	p.Submit("SCN=FETCH")
	asked("Do you want to allow Claude to fetch this content?", "permission-webfetch")
	rec.finish("Escape")
	rec.rollout("rejected-webfetch")

	p.Submit("SCN=BOTH")
	asked("Do you want to proceed?", "permission-two-bash-first", "The first of two")
	p.Key("Enter")
	asked("Do you want to proceed?", "permission-two-bash-second", "The second of two")
	rec.finish("Escape")
	rec.rollout("two-bash-first-approved-second-rejected")
}

func (rec *Recording) claudeFailures() {
	p := rec.p
	p.Run("SCN=E400")
	rec.screen("api-error-400")
	rec.rollout("api-error-400")
	before := p.ended()
	p.Submit("SCN=E529")
	if s, ok := rec.glimpse(func(s Screen) bool { return strings.Contains(s.Text, "retrying in") }); ok {
		rec.write("api-retry-529", s)
	}
	p.r.Eventually(screenWait, "the end of the failing turn", func() bool { return p.ended() > before })
	p.AwaitIdle()
	rec.rollout("api-error-529-gave-up")
}

func (rec *Recording) claudeQuestions() {
	p := rec.p
	ask := func(scenario, seen, name string) {
		p.Submit("SCN=" + scenario)
		p.Await(seen, func(s Screen) bool { return strings.Contains(s.Text, seen) && !s.Composer.Seen })
		p.AwaitStatus("waiting")
		rec.screen(name)
	}
	ask("ASKONE", "Which size?", "ask-single")
	rec.finish("1")
	rec.screen("ask-single-answered")
	rec.rollout("ask-single")

	p.Submit("SCN=ASKONE")
	p.AwaitText("Chat about this")
	for _, at := range []string{"❯ 2. ", "❯ 3. "} {
		p.Key("Down")
		p.AwaitText(at)
	}
	rec.screen("ask-single-other-focused")
	p.Type("neither of them")
	p.AwaitText("neither of them")
	rec.screen("ask-single-other-typed")
	rec.finish("Enter")
	rec.rollout("ask-single-other")

	ask("ASKMANY", "Which checks should run?", "ask-multi-q1")
	p.Key("1")
	p.Key("3")
	rec.screen("ask-multi-q1-toggled")
	p.Key("Tab")
	p.AwaitText("Which branch?")
	rec.screen("ask-multi-q2")
	p.Key("1")
	p.AwaitText("Review your answers")
	rec.screen("ask-multi-review")
	rec.finish("Enter")
	rec.rollout("ask-multi-answered")

	p.Submit("SCN=ASKONE")
	p.AwaitText("Chat about this")
	rec.finish("Escape")
	rec.screen("ask-cancelled")
	rec.rollout("ask-cancelled")
}

func (rec *Recording) claudePlan() {
	p := rec.p
	p.cycle("plan mode on")
	rec.screen("idle-plan-mode")
	p.Submit("SCN=PLAN")
	p.AwaitText("Would you like to proceed?")
	p.AwaitStatus("waiting")
	rec.screen("plan-approval")
	rec.finish("Escape")
	rec.screen("plan-rejected")
	rec.rollout("plan-rejected")
	p.cycle("manual mode on")
}

// cycle presses shift+tab until the footer names the mode.
func (p *Pane) cycle(mode string) {
	p.r.tb.Helper()
	for range 8 {
		if strings.Contains(p.Screen().Text, mode) {
			return
		}
		before := p.Screen().Text
		p.Key("BTab")
		p.Await("another mode", func(s Screen) bool { return s.Text != before })
		p.AwaitIdle()
	}
	p.r.tb.Fatalf("rig: pane %s does not reach %q by shift+tab; it shows:\n%s", p.ID, mode, p.Screen().Text)
}

func (rec *Recording) claudePanels() {
	p := rec.p
	rec.command(rec.Commands.Status, "command-status")
	p.AwaitStatus("waiting")
	rec.screen("status-panel")
	p.Key("Escape")
	p.AwaitIdle()
	for _, panel := range []struct{ command, name string }{{"/model", "model-picker"}, {"/resume", "resume-picker"}} {
		p.Submit(panel.command)
		p.AwaitStatus("waiting")
		rec.screen(panel.name)
		p.Key("Escape")
		p.AwaitIdle()
	}
	p.Key("C-o")
	p.AwaitText("Showing detailed transcript")
	rec.screen("transcript-view-idle")
	p.Key("C-o")
	p.AwaitIdle()

	before, _ := p.Registered()
	session := func(what string, ok func(id string) bool) {
		p.r.Eventually(screenWait, what, func() bool {
			now, there := p.Registered()
			return there && ok(now.SessionID) && now.Status == "idle"
		})
		p.AwaitIdle()
	}
	rec.command(rec.Commands.New, "command-new")
	session("a new session", func(id string) bool { return id != before.SessionID })
	rec.screen("after-clear")
	rec.rollout("after-clear")
	rec.command(strings.Replace(rec.Commands.Resume, NoThread, before.SessionID, 1), "command-resume")
	session("the first session", func(id string) bool { return id == before.SessionID })
	rec.screen("after-resume")
}

// envelopes cuts the bulky records that say nothing of a turn (attachments, and
// what was sent to the provider) down to their plain members.
func envelopes(lines []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(lines) {
		var record map[string]any
		if json.Unmarshal(line, &record) != nil {
			out.Write(line)
			continue
		}
		kind, _ := record["type"].(string)
		if kind != "attachment" && !strings.HasPrefix(kind, "api-request") && !strings.HasPrefix(kind, "file-history") {
			out.Write(line)
			continue
		}
		if a, ok := record["attachment"].(map[string]any); ok && a["type"] == "queued_command" {
			out.Write(line) // a prompt of a person
			continue
		}
		for name, v := range record {
			switch v.(type) {
			case map[string]any, []any:
				delete(record, name)
			}
		}
		raw, err := json.Marshal(record)
		if err != nil {
			continue // it was JSON
		}
		out.Write(append(raw, '\n'))
	}
	return out.Bytes()
}

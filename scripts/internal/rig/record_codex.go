package rig

import (
	"path/filepath"
	"strings"
)

// recordCodex is the script for Codex.
func (r *Rig) recordCodex(rec *Recording) {
	r.tb.Helper()
	p := r.StartCodex(rec.Version, CodexOptions{Daemon: rec.Daemon})
	rec.p = p
	if s, ok := rec.glimpse(func(s Screen) bool { return s.Composer.Seen && !s.Composer.Ready }); ok {
		rec.write("startup-not-ready", s)
	}
	p.AwaitReady()
	rec.screen("idle-empty")
	rec.drafts()
	rec.turns()
	rec.approvals()
	rec.failures()
	rec.questions()
	rec.command(rec.Commands.Status, "command-status")
	p.AwaitText("Session:")
	p.AwaitIdle()
	rec.screen("status-card")
	thread := threadOf(p.Rollouts()[0])
	rec.command(rec.Commands.New, "command-new")
	p.Await("an empty conversation", func(s Screen) bool { return !strings.Contains(s.Text, "Session:") && s.Idle() })
	rec.screen("after-new")
	rec.command(strings.Replace(rec.Commands.Resume, NoThread, thread, 1), "command-resume")
	p.Await("the first conversation", func(s Screen) bool { return strings.Contains(s.Text, "ASK finished") && s.Idle() })
	p.AwaitIdle()
	rec.screen("after-resume")
	p.Submit("/quit")
	p.AwaitText("EXITED rc=0")
	rec.screen("exited")
}

// threadOf gives the thread of a rollout, which ends its name.
func threadOf(rollout string) string {
	name := strings.TrimSuffix(filepath.Base(rollout), ".jsonl")
	return name[max(0, len(name)-len(NoThread)):]
}

func (rec *Recording) drafts() {
	p := rec.p
	p.Paste("a draft that nobody has sent")
	p.AwaitText("nobody has sent")
	rec.screen("draft")
	p.clear()
	p.Paste("first row of a draft\nsecond row\nthird row")
	p.AwaitText("third row")
	rec.screen("draft-multiline")
	p.clear()
	p.Paste(strings.Repeat("0123456789", 150))
	p.AwaitText("[Pasted Content 1500 chars]")
	rec.screen("draft-paste-large")
	p.clear()
}

func (rec *Recording) turns() {
	p := rec.p
	p.Run("SCN=ECHO the first turn")
	rec.screen("completed")
	rec.rollout("first-turn")

	p.Submit("SCN=GATE:working")
	p.Await("the busy row", Screen.Busy)
	rec.screen("working")
	rec.interrupt()
	rec.screen("interrupted")
	rec.rollout("interrupted")

	p.Submit("SCN=STREAM:40")
	p.AwaitText("line 5 of")
	rec.screen("streaming")
	rec.interrupt()
	rec.screen("interrupted-streaming")
	rec.rollout("interrupted-streaming")
}

func (rec *Recording) approvals() {
	p := rec.p
	open := func(prompt, title, name string) {
		p.Submit(prompt)
		p.AwaitText(title)
		rec.screen(name)
	}
	const exec, edit = "Would you like to run the following command?", "Would you like to make the following edits?"
	open("SCN=EXEC:x", exec, "approval-exec")
	rec.finish("y")
	rec.screen("approval-after")
	rec.rollout("approval-approved")

	open("SCN=LONGCMD", exec, "approval-longcmd")
	rec.finish("Escape")
	rec.screen("approval-rejected")
	rec.rollout("approval-rejected")

	open("SCN=PATCH:x", edit, "approval-patch")
	rec.finish("y")
	rec.rollout("patch-approved")
}

func (rec *Recording) failures() {
	p := rec.p
	for _, f := range []struct{ scenario, name string }{{"E500", "error500"}, {"E401", "error401"}} {
		before := p.ended()
		p.Submit("SCN=" + f.scenario)
		if s, ok := rec.glimpse(func(s Screen) bool { return strings.Contains(s.Text, "Reconnecting") }); ok && f.name == "error500" {
			rec.write("retrying", s)
		}
		p.r.Eventually(screenWait, "the end of the failing turn", func() bool { return p.ended() > before })
		p.AwaitIdle()
		rec.screen(f.name)
		rec.rollout(f.name[:5] + "-" + f.name[5:])
	}
}

// questions needs plan mode, which stays on until the end.
func (rec *Recording) questions() {
	p := rec.p
	p.Submit("/plan")
	p.AwaitText("Plan mode")
	p.AwaitIdle()
	rec.screen("plan-mode-idle")
	p.Submit("SCN=ASK")
	p.AwaitText("Question 1/2")
	rec.screen("questionnaire")
	p.Key("Down")
	rec.screen("questionnaire-moved")
	p.Key("Enter")
	p.AwaitText("Question 2/2")
	rec.screen("questionnaire-q2")
	rec.finish("Enter")
	rec.screen("questionnaire-after")
	rec.rollout("questionnaire")
}

package rig

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Where recordings point instead of the rig's own directory.
const recordedDir = "/h/rg/rig"

// maxRecorded bounds one JSON string of a recorded transcript.
const maxRecorded = 1200

// A Recording is what one run of the scenarios leaves in testdata:
// screens/NAME.VERSION.txt and .ansi, rollouts/VERSION-NAME.jsonl.
type Recording struct {
	Version   string
	Daemon    bool
	Out       string // directory of one agent, for example shared/agent/testdata/codex
	Overwrite bool

	p        *Pane
	suffix   string
	offset   int64 // end of the rollout before the present scenario
	Recorded []string
}

// Record drives one Codex through every scenario and writes what it shows.
// Paths of the rig become /h/rg/rig; ids and times are real, and may be compared
// within one recording only.
func (r *Rig) Record(rec *Recording) {
	r.tb.Helper()
	rec.suffix = rec.Version
	if rec.Daemon {
		rec.suffix += "-daemon"
	}
	for _, sub := range []string{"screens", "rollouts"} {
		if err := os.MkdirAll(filepath.Join(rec.Out, sub), 0o755); err != nil {
			r.tb.Fatalf("record: %v", err)
		}
	}
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
	p.Submit("/status")
	p.AwaitText("Session:")
	p.AwaitIdle()
	rec.screen("status-card")
	p.Submit("/quit")
	p.AwaitText("EXITED rc=0")
	rec.screen("exited")
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

// interrupt presses Escape once and waits for the end of the turn.
func (rec *Recording) interrupt() { rec.finish("Escape") }

// finish presses a key and waits until the turn that it decides has ended.
func (rec *Recording) finish(key string) {
	p := rec.p
	before := p.ended()
	p.Key(key)
	p.r.Eventually(screenWait, "the end of the turn after "+key, func() bool { return p.ended() > before })
	p.AwaitIdle()
}

// clear empties the composer the way a person does.
func (p *Pane) clear() {
	p.r.tb.Helper()
	for range 12 {
		if p.Screen().Idle() {
			return
		}
		p.Key("C-e")
		p.Key("C-u")
		time.Sleep(2 * pollEvery)
	}
	p.AwaitIdle()
}

// glimpse waits a little for a screen that passes by.
func (rec *Recording) glimpse(ok func(Screen) bool) (Screen, bool) {
	var s Screen
	seen := rec.p.r.poll(10*time.Second, func() bool { s = rec.p.Screen(); return ok(s) })
	return s, seen
}

// screen records the screen once two captures are equal.
func (rec *Recording) screen(name string) {
	p := rec.p
	last := p.Styled()
	p.r.poll(2*time.Second, func() bool {
		time.Sleep(120 * time.Millisecond)
		now := p.Styled()
		same := now == last
		last = now
		return same
	})
	rec.write(name, Look(last))
}

func (rec *Recording) write(name string, s Screen) {
	at := filepath.Join(rec.Out, "screens", name+"."+rec.suffix)
	rec.save(at+".ansi", []byte(s.Styled))
	rec.save(at+".txt", []byte(s.Text+"\n"))
}

// rollout records what the transcript gained since the last call.
func (rec *Recording) rollout(name string) {
	p := rec.p
	files := p.Rollouts()
	if len(files) == 0 {
		p.r.tb.Fatalf("record %s: no rollout", name)
	}
	raw, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		p.r.tb.Fatalf("record %s: %v", name, err)
	}
	end := bytes.LastIndexByte(raw, '\n') + 1
	gained := raw[rec.offset:end]
	rec.offset = int64(end)
	rec.save(filepath.Join(rec.Out, "rollouts", rec.suffix+"-"+name+".jsonl"), shorten(gained, maxRecorded))
}

func (rec *Recording) save(path string, data []byte) {
	tb := rec.p.r.tb
	if !rec.Overwrite {
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			tb.Fatalf("record: %s exists; give -overwrite to replace it", path)
		}
	}
	data = bytes.ReplaceAll(data, []byte(rec.p.r.Dir), []byte(recordedDir))
	if err := os.WriteFile(path, data, 0o644); err != nil {
		tb.Fatalf("record: %v", err)
	}
	rec.Recorded = append(rec.Recorded, path)
}

// shorten cuts every JSON string of more than most bytes, and says so in it. The
// documents keep their order and spacing.
func shorten(lines []byte, most int) []byte {
	var out bytes.Buffer
	for i := 0; i < len(lines); {
		if lines[i] != '"' {
			out.WriteByte(lines[i])
			i++
			continue
		}
		end := i + 1
		for end < len(lines) && lines[end] != '"' {
			if lines[end] == '\\' {
				end++
			}
			end++
		}
		body := lines[i+1 : min(end, len(lines))]
		if len(body) > most {
			keep := most
			// Never inside an escape or a character.
			for keep > 0 && (body[keep]&0xC0 == 0x80 || bytes.IndexByte(body[max(0, keep-12):keep], '\\') >= 0) {
				keep--
			}
			out.WriteByte('"')
			out.Write(body[:keep])
			fmt.Fprintf(&out, `…<trimmed %d bytes>"`, len(body)-keep)
		} else {
			out.WriteByte('"')
			out.Write(body)
			out.WriteByte('"')
		}
		i = end + 1
	}
	return out.Bytes()
}

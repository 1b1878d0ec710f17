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
// screens/NAME.VERSION.txt and .ansi, and the records of one turn in
// rollouts/VERSION-NAME.jsonl (Codex) or transcripts/VERSION-NAME.jsonl (Claude Code).
type Recording struct {
	Agent     string // Codex or Claude
	Version   string
	Daemon    bool
	Out       string // directory of one agent, for example shared/agent/testdata/codex
	Overwrite bool
	// Commands are the closed commands to record; empty ones have the usual text.
	Commands Commands

	p        *Pane
	suffix   string
	offsets  map[string]int64 // ends of the transcripts before the present scenario
	Recorded []string
}

// Commands are texts of slash commands. Resume holds NoThread, or anything else of
// its shape, where the thread belongs.
type Commands struct{ Status, New, Resume string }

// NoThread stands for a thread in a command.
const NoThread = "00000000-0000-4000-8000-000000000000"

// Record drives one agent through every scenario and writes what it shows.
// Paths of the rig become /h/rg/rig; ids and times are real, and may be compared
// within one recording only.
func (r *Rig) Record(rec *Recording) {
	r.tb.Helper()
	rec.suffix = rec.Version
	if rec.Daemon {
		rec.suffix += "-daemon"
	}
	rec.offsets = map[string]int64{}
	for at, usual := range map[*string]string{&rec.Commands.Status: "/status", &rec.Commands.New: "/clear", &rec.Commands.Resume: "/resume " + NoThread} {
		if *at == "" {
			*at = usual
		}
	}
	for _, sub := range []string{"screens", TranscriptDir(rec.Agent)} {
		if err := os.MkdirAll(filepath.Join(rec.Out, sub), 0o755); err != nil {
			r.tb.Fatalf("record: %v", err)
		}
	}
	if rec.Agent == Claude {
		r.recordClaude(rec)
		return
	}
	r.recordCodex(rec)
}

// TranscriptDir is the directory of a recording for the agent's own records.
func TranscriptDir(agent string) string {
	if agent == Claude {
		return "transcripts"
	}
	return "rollouts"
}

// command pastes a slash command, records it as it stands, and runs it.
func (rec *Recording) command(text, name string) {
	p := rec.p
	p.Paste(text)
	p.Await("the command "+text, func(s Screen) bool { return s.Composer.Seen && strings.Contains(s.Text, text) })
	rec.screen(name)
	p.Key("Enter")
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
	rec.write(name, p.look(last))
}

func (rec *Recording) write(name string, s Screen) {
	at := filepath.Join(rec.Out, "screens", name+"."+rec.suffix)
	rec.save(at+".ansi", []byte(s.Styled))
	rec.save(at+".txt", []byte(s.Text+"\n"))
}

// rollout records what the newest transcript gained since the last call.
func (rec *Recording) rollout(name string) {
	p := rec.p
	files := p.Rollouts()
	if len(files) == 0 {
		p.r.tb.Fatalf("record %s: no transcript", name)
	}
	file := files[len(files)-1]
	raw, err := os.ReadFile(file)
	if err != nil {
		p.r.tb.Fatalf("record %s: %v", name, err)
	}
	end := bytes.LastIndexByte(raw, '\n') + 1
	gained := raw[rec.offsets[file]:end]
	rec.offsets[file] = int64(end)
	if rec.Agent == Claude {
		gained = envelopes(gained)
	}
	rec.save(filepath.Join(rec.Out, TranscriptDir(rec.Agent), rec.suffix+"-"+name+".jsonl"), shorten(gained, maxRecorded))
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

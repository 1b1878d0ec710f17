package scripted

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// MuteVariable names a file with words; a closed command whose word is in it
// (status, clear, resume) is taken and does nothing, as long as the file has it.
const MuteVariable = "SCRIPTED_MUTE"

// command runs a closed command of the agent: /status prints a card, /clear goes on
// in a new thread and keeps the old one's lock, /resume ID goes on in an earlier
// one. Any other one is not known, and its draft stays.
func (a *agent) command(text string) {
	name, arg, _ := strings.Cut(strings.TrimPrefix(text, "/"), " ")
	if mute, err := os.ReadFile(os.Getenv(MuteVariable)); err == nil && has(string(mute), name) {
		a.draft = ""
		return
	}
	switch name {
	case "status":
		a.draft = ""
		a.printed = append(a.printed, a.card()...)
	case "clear":
		a.draft = ""
		a.begin(uuid.Must(uuid.NewV7()).String(), nil)
	case "resume":
		a.draft = ""
		path, ok := a.saved(arg)
		if !ok {
			a.answer = fmt.Sprintf("■ No saved chat found matching '%s'.", arg)
			return
		}
		a.begin(arg, &path)
	default:
		a.answer = "Unrecognized command '/" + name + "'"
	}
}

// begin goes on in a thread; path is its transcript where it has one.
func (a *agent) begin(thread string, path *string) {
	f, err := os.OpenFile(filepath.Join(a.home, "thread-writer-locks", thread+".lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // as Codex holds it
	a.thread, a.locks, a.answer, a.printed = thread, append(a.locks, f), "", nil
	a.rec = &recorder{home: a.home, thread: thread, cwd: a.cwd}
	if path == nil {
		return
	}
	data, err := os.ReadFile(*path)
	if err != nil {
		panic(err)
	}
	a.rec.ordinal = bytes.Count(data, []byte("\n"))
	if a.rec.file, err = os.OpenFile(*path, os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		panic(err)
	}
}

// saved finds the transcript of a thread.
func (a *agent) saved(thread string) (string, bool) {
	all, err := filepath.Glob(filepath.Join(a.home, "sessions", "*", "*", "*", "rollout-*-"+thread+".jsonl"))
	return strings.Join(all, ""), err == nil && len(all) == 1 && thread != ""
}

// card is the status card as 0.171.0 draws it.
func (a *agent) card() []string {
	rows := []string{
		"\x1b[38;5;5m/status\x1b[39m", "",
		"  \x1b[38;5;75m>_ \x1b[39m" + bold + "OpenAI Codex" + plain + dim + " (v" + Version + ")" + plain, "",
	}
	field := func(label, value string) {
		rows = append(rows, dim+fmt.Sprintf("  %-21s", label+":")+plain+value)
	}
	field("Model", "gpt-5-codex"+dim+" (reasoning none)"+plain)
	field("Directory", "~/"+filepath.Base(a.cwd))
	field("Agents.md", "<none>")
	field("Session", a.thread)
	rows = append(rows, "")
	field("Token usage", "0 total")
	field("Limits", dim+"data not available yet"+plain)
	return append(rows, "")
}

package rig

import (
	"fmt"
	"strings"

	"drawbridge/shared/process"
)

// start runs argv in a new tmux session with further variables and waits until
// the agent's process lives.
func (p *Pane) start(exe string, argv, env []string, width, height int) {
	r := p.r
	r.tb.Helper()
	if width == 0 {
		width = Width
	}
	if height == 0 {
		height = Height
	}
	r.panes++
	args := []string{"new-session", "-d", "-P", "-F", "#{pane_id} #{session_name}:#{window_index}.#{pane_index}",
		"-s", fmt.Sprintf("%s%d", p.Agent, r.panes), "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), "-c", p.Dir}
	for _, kv := range env {
		args = append(args, "-e", kv)
	}
	// A person starts the agent from a shell and is back in it afterwards.
	quoted := make([]string, len(argv))
	for i, a := range argv {
		quoted[i] = shellQuote(a)
	}
	args = append(args, strings.Join(quoted, " ")+"; echo EXITED rc=$?; exec bash --noprofile --norc -i")
	id, target, ok := strings.Cut(strings.TrimSpace(r.Tmux(args...)), " ")
	if !ok {
		r.tb.Fatalf("rig: start %s: tmux did not name the pane", p.Agent)
	}
	p.ID, p.Target = id, target
	r.Eventually(readyWait, p.Agent+" "+p.Version+" is started", func() bool { return p.findAgent(exe) })
}

// AwaitReady waits until a started agent shows that it can take a message.
func (p *Pane) AwaitReady() {
	p.r.tb.Helper()
	var last Screen
	if !p.r.poll(readyWait, func() bool { last = p.Screen(); return p.settled(last) }) {
		p.r.tb.Fatalf("rig: %s %s is not ready after %s; its screen:\n%s", p.Agent, p.Version, readyWait, last.Text)
	}
	p.AwaitIdle()
}

// Shell starts a plain shell in a new pane.
func (r *Rig) Shell() *Pane {
	r.tb.Helper()
	r.panes++
	out := r.Tmux("new-session", "-d", "-P", "-F", "#{pane_id} #{session_name}:#{window_index}.#{pane_index}",
		"-s", fmt.Sprintf("shell%d", r.panes), "-x", fmt.Sprint(Width), "-y", fmt.Sprint(Height), "-c", r.Dir,
		"exec bash --noprofile --norc -i")
	id, target, _ := strings.Cut(strings.TrimSpace(out), " ")
	return &Pane{ID: id, Target: target, Dir: r.Dir, r: r}
}

// findAgent looks for the agent among the descendants of the pane's process.
func (p *Pane) findAgent(exe string) bool {
	p.r.tb.Helper()
	var panePID int
	out := p.r.Tmux("display-message", "-p", "-t", p.ID, "#{pane_pid}")
	if _, err := fmt.Sscan(out, &panePID); err != nil {
		p.r.tb.Fatalf("rig: pane %s has gone", p.ID)
	}
	infos, err := process.Descendants(panePID)
	if err != nil {
		return false // the shell has just been started
	}
	for _, info := range infos {
		e, err := process.Exe(info.PID)
		if err != nil || e.Path != exe {
			continue
		}
		inc, err := process.Of(info.PID)
		if err != nil {
			continue
		}
		p.PID, p.Process = info.PID, inc
		return true
	}
	return false
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

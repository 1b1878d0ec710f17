package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"drawbridge/shared/process"
)

// fakeKey is what Codex sends to the model server, which ignores it.
const fakeKey = "rig-key-of-no-value"

// CodexOptions say how a Codex pane is started; the zero value is an in-process
// Codex with a home and a work tree of its own.
type CodexOptions struct {
	// Daemon hands the conversation to Codex's background server, its default.
	// All such panes of a rig share one home: a daemon costs 300 MB and seconds.
	Daemon bool
	Home   string   // an existing home of this rig, to share it
	Dir    string   // work tree; a fresh one when empty
	Config string   // added to config.toml of a new home
	Args   []string // further arguments of the program
	Env    []string // further variables, "NAME=value"
}

// Codex starts a Codex of the version in a new pane and waits until it can take
// a message.
func (r *Rig) Codex(version string, opts CodexOptions) *Pane {
	r.tb.Helper()
	p := r.StartCodex(version, opts)
	p.AwaitReady()
	return p
}

// StartCodex starts a Codex and returns when its process lives; the screen may
// not be ready yet.
func (r *Rig) StartCodex(version string, opts CodexOptions) *Pane {
	r.tb.Helper()
	exe, err := CodexPath(version)
	if err != nil {
		r.tb.Fatalf("rig: %v", err)
	}
	dir := opts.Dir
	if dir == "" {
		dir = r.Tree()
	}
	home := r.home(version, dir, opts)
	argv := []string{exe}
	if !opts.Daemon && version != "0.148.0" {
		argv = append(argv, "--no-daemon")
	}
	argv = append(argv, opts.Args...)

	r.panes++
	name := fmt.Sprintf("codex%d", r.panes)
	args := []string{"new-session", "-d", "-P", "-F", "#{pane_id} #{session_name}:#{window_index}.#{pane_index}",
		"-s", name, "-x", fmt.Sprint(Width), "-y", fmt.Sprint(Height), "-c", dir,
		"-e", "CODEX_HOME=" + home, "-e", "RIG_KEY=" + fakeKey}
	for _, kv := range opts.Env {
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
		r.tb.Fatalf("rig: start codex: tmux did not name the pane")
	}
	p := &Pane{ID: id, Target: target, Dir: dir, Home: home, Version: version, r: r}
	r.Eventually(readyWait, "codex "+version+" is started", func() bool { return p.findAgent(exe) })
	return p
}

// AwaitReady waits until a started Codex shows an empty composer and its model.
func (p *Pane) AwaitReady() {
	p.r.tb.Helper()
	var last Screen
	if !p.r.poll(readyWait, func() bool { last = p.Screen(); return last.Idle() }) {
		p.r.tb.Fatalf("rig: codex %s is not ready after %s; its screen:\n%s", p.Version, readyWait, last.Text)
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

// home gives the agent home of a new pane.
func (r *Rig) home(version, dir string, opts CodexOptions) string {
	r.tb.Helper()
	home := opts.Home
	switch {
	case home != "":
	case opts.Daemon && r.daemonHome != "":
		home = r.daemonHome
	default:
		r.panes++
		home = filepath.Join(r.Dir, "homes", fmt.Sprintf("home%d", r.panes))
		if err := os.MkdirAll(home, 0o700); err != nil {
			r.tb.Fatalf("rig: make a home: %v", err)
		}
		if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(r.config(version, opts)), 0o600); err != nil {
			r.tb.Fatalf("rig: make a home: %v", err)
		}
		if opts.Daemon {
			r.daemonHome = home
		}
	}
	r.trust(home, dir)
	return home
}

// config is config.toml of a new home, without the trusted directories.
func (r *Rig) config(version string, opts CodexOptions) string {
	var b strings.Builder
	fmt.Fprintf(&b, "model = %q\nmodel_provider = \"rig\"\n", Model)
	b.WriteString("check_for_update_on_startup = false\napproval_policy = \"on-request\"\nsandbox_mode = \"workspace-write\"\n\n")
	if version != "0.148.0" && !opts.Daemon {
		b.WriteString("[features]\ndaemon_auto_start = false\n\n")
	}
	b.WriteString("[analytics]\nenabled = false\n\n")
	fmt.Fprintf(&b, "[model_providers.rig]\nname = \"rig\"\nbase_url = %q\nenv_key = \"RIG_KEY\"\nwire_api = \"responses\"\n", r.URL)
	b.WriteString("requires_openai_auth = false\nsupports_websockets = false\nrequest_max_retries = 1\nstream_max_retries = 1\n")
	if opts.Config != "" {
		b.WriteString("\n" + opts.Config + "\n")
	}
	return b.String()
}

// trust lets the agent work in dir without a question.
func (r *Rig) trust(home, dir string) {
	r.tb.Helper()
	file := filepath.Join(home, "config.toml")
	raw, err := os.ReadFile(file)
	if err != nil {
		r.tb.Fatalf("rig: trust %s: %v", dir, err)
	}
	section := fmt.Sprintf("[projects.%q]", dir)
	if strings.Contains(string(raw), section) {
		return
	}
	raw = append(raw, "\n"+section+"\ntrust_level = \"trusted\"\n"...)
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		r.tb.Fatalf("rig: trust %s: %v", dir, err)
	}
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

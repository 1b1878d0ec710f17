package rig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

	p := &Pane{Agent: Codex, Dir: dir, Home: home, Version: version, r: r}
	p.start(exe, argv, append([]string{"CODEX_HOME=" + home, "RIG_KEY=" + fakeKey}, opts.Env...), 0, 0)
	return p
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

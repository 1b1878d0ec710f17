package rig

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// claudeKey is what Claude Code sends to the model server, which ignores it. Its
// last 20 characters are approved in the agent's configuration, as after the
// question whether to use a key from the environment.
const claudeKey = "rig-claude-key-of-no-value-0000"

// ClaudeOptions say how a Claude Code pane is started; the zero value is one in
// manual mode with a home, a work tree and a session of its own.
type ClaudeOptions struct {
	Mode     string         // permission mode; "manual" when empty
	Session  string         // id of the new session; the agent chooses one when empty
	Home     string         // an existing home of this rig, to share it
	Dir      string         // work tree; a fresh one when empty
	Settings map[string]any // settings.json of a new home
	Args     []string       // further arguments of the program
	Env      []string       // further variables, "NAME=value"
	Width    int            // of the pane; Width and Height when zero
	Height   int
}

// Claude starts a Claude Code of the version in a new pane and waits until it can
// take a message. Panes that share a directory or a home are started one after
// the other, as a person does.
func (r *Rig) Claude(version string, opts ClaudeOptions) *Pane {
	r.tb.Helper()
	p := r.StartClaude(version, opts)
	p.AwaitReady()
	return p
}

// StartClaude starts a Claude Code and returns when its process lives; the screen
// may not be ready yet.
func (r *Rig) StartClaude(version string, opts ClaudeOptions) *Pane {
	r.tb.Helper()
	exe, err := ClaudePath(version)
	if err != nil {
		r.tb.Fatalf("rig: %v", err)
	}
	dir := opts.Dir
	if dir == "" {
		dir = r.Tree()
	}
	mode := opts.Mode
	if mode == "" {
		mode = "manual"
	}
	argv := []string{exe, "--permission-mode", mode}
	if opts.Session != "" {
		argv = append(argv, "--session-id", opts.Session)
	}
	argv = append(argv, opts.Args...)
	home := r.claudeHome(dir, opts)
	env := append(append([]string{"HOME=" + home}, r.claudeProvider()...), opts.Env...)
	p := &Pane{Agent: Claude, Dir: dir, Home: home, Version: version, r: r}
	p.start(exe, argv, env, opts.Width, opts.Height)
	return p
}

// claudeHome gives the HOME of a new pane. A shared one is told to trust dir.
func (r *Rig) claudeHome(dir string, opts ClaudeOptions) string {
	r.tb.Helper()
	home := opts.Home
	if home == "" {
		r.panes++
		home = filepath.Join(r.Dir, "homes", fmt.Sprintf("home%d", r.panes))
		if err := os.MkdirAll(filepath.Join(home, ".claude"), 0o700); err != nil {
			r.tb.Fatalf("rig: make a home: %v", err)
		}
		settings := map[string]any{
			// The scenarios RUN and BG ask nothing, as on Codex.
			"permissions": map[string]any{"allow": []string{"Bash(echo begin:*)", "Bash(sleep:*)", "Bash(echo end:*)"}},
		}
		maps.Copy(settings, opts.Settings)
		r.writeJSON(filepath.Join(home, ".claude", "settings.json"), settings)
		r.writeJSON(filepath.Join(home, ".claude.json"), map[string]any{
			"hasCompletedOnboarding": true, "theme": "dark", "projects": map[string]any{},
			"customApiKeyResponses": map[string]any{"approved": []string{claudeKey[len(claudeKey)-20:]}, "rejected": []string{}},
		})
	}
	file := filepath.Join(home, ".claude.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		r.tb.Fatalf("rig: trust %s: %v", dir, err)
	}
	var config map[string]any
	if err := json.Unmarshal(raw, &config); err != nil {
		r.tb.Fatalf("rig: trust %s: %s: %v", dir, file, err)
	}
	projects, ok := config["projects"].(map[string]any)
	if !ok {
		projects = map[string]any{}
		config["projects"] = projects
	}
	if projects[dir] == nil {
		projects[dir] = map[string]any{"hasTrustDialogAccepted": true, "hasCompletedProjectOnboarding": true}
		r.writeJSON(file, config)
	}
	return home
}

func (r *Rig) writeJSON(path string, v any) {
	r.tb.Helper()
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		r.tb.Fatalf("rig: write %s: %v", path, err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		r.tb.Fatalf("rig: write %s: %v", path, err)
	}
}

// Registered is what a running Claude Code says about itself in its registry.
type Registered struct {
	PID        int    `json:"pid"`
	SessionID  string `json:"sessionId"`
	CWD        string `json:"cwd"`
	Version    string `json:"version"`
	Status     string `json:"status"`     // "", idle, busy, waiting
	WaitingFor string `json:"waitingFor"` // with waiting
}

// Registered reads the pane's entry; false when there is none, or a half-written
// one at this moment.
func (p *Pane) Registered() (Registered, bool) {
	raw, err := os.ReadFile(filepath.Join(p.Home, ".claude", "sessions", fmt.Sprint(p.PID)+".json"))
	if err != nil {
		return Registered{}, false
	}
	var out Registered
	if json.Unmarshal(raw, &out) != nil {
		return Registered{}, false
	}
	return out, true
}

// AwaitStatus waits until the registry shows the status.
func (p *Pane) AwaitStatus(status string) Registered {
	p.r.tb.Helper()
	var last Registered
	p.r.Eventually(screenWait, "the agent of pane "+p.ID+" is "+status, func() bool {
		now, ok := p.Registered()
		last = now
		return ok && now.Status == status
	})
	return last
}

// claudeTranscripts lists the transcripts of the pane's home, oldest first.
func (p *Pane) claudeTranscripts() []string {
	files, err := filepath.Glob(filepath.Join(p.Home, ".claude", "projects", "*", "*.jsonl"))
	if err != nil {
		return nil // the pattern is right; there is no other error
	}
	changed := func(path string) time.Time {
		info, err := os.Stat(path)
		if err != nil {
			return time.Time{}
		}
		return info.ModTime()
	}
	sort.Slice(files, func(i, j int) bool { return changed(files[i]).Before(changed(files[j])) })
	return files
}

// claudeEnded counts the records of a transcript that end a turn. An interrupted
// turn may have two of them, depending on the version.
func claudeEnded(transcript string) int {
	n := 0
	for _, mark := range []string{`"subtype":"turn_duration"`, `"isApiErrorMessage":true`, `"text":"[Request interrupted by user`} {
		n += strings.Count(transcript, mark)
	}
	return n
}

// LookClaude reads a styled capture of Claude Code as Look does one of Codex: the
// composer stands between two rules, and begins with a mark and a no-break space.
func LookClaude(styled string) Screen {
	s, rows, plain := bare(styled)
	for i := len(plain) - 1; i > 0; i-- {
		if !strings.HasPrefix(plain[i], "❯\u00a0") && plain[i] != "❯" || !strings.HasPrefix(plain[i-1], "────") {
			continue
		}
		s.Composer.Seen = true
		_, after, _ := strings.Cut(rows[i], "❯")
		after = strings.TrimSpace(strings.Trim(after, "\u00a0"))
		// Nothing but the reverse cell of the cursor, or a faint placeholder behind it.
		s.Composer.Empty = strings.TrimSpace(strings.Trim(escapes.ReplaceAllString(after, ""), "\u00a0 ")) == "" || dim.MatchString(after)
		s.Composer.Ready = i+2 < len(plain) && strings.HasPrefix(plain[i+1], "────")
		break
	}
	return s
}

// settled reports whether a screen of now is that of an agent that takes a
// message, by its registry where it has one.
func (p *Pane) settled(s Screen) bool {
	if !s.Idle() {
		return false
	}
	if p.Agent != Claude {
		return true
	}
	now, ok := p.Registered()
	return ok && now.Status == "idle"
}

// claudeSocket is where a Claude Code listens for its like; a killed one leaves it.
func claudeSocket(pid int) string { return fmt.Sprintf("/tmp/cc-socks/%d.sock", pid) }

// idleFor is how long an idle composer must stand.
const idleFor = 150 * time.Millisecond

package rig

import (
	"os"
	"strings"
)

// ClaudeEnv is the environment of a Claude Code outside any pane that works in
// dir, with a home of its own: for a test in which it is the Host.
func (r *Rig) ClaudeEnv(dir string) []string {
	r.tb.Helper()
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "SHELL=/bin/bash", "LANG=C.UTF-8", "TERM=xterm-256color",
		"HOME=" + r.claudeHome(dir, ClaudeOptions{}),
	}, r.claudeProvider()...)
}

// claudeProvider points a Claude Code at the model server, and at nothing else.
func (r *Rig) claudeProvider() []string {
	return []string{
		"ANTHROPIC_BASE_URL=" + strings.TrimSuffix(r.URL, "/v1"),
		"ANTHROPIC_API_KEY=" + claudeKey,
		"DISABLE_AUTOUPDATER=1", "DISABLE_TELEMETRY=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		// Two attempts as with Codex: without it a failing provider costs minutes.
		"CLAUDE_CODE_MAX_RETRIES=1",
	}
}

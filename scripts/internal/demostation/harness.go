package demostation

import (
	"encoding/json"
	"fmt"
	"strings"

	"drawbridge/scripts/internal/rig"
	"drawbridge/scripts/internal/stationrig"
)

// harness is what the story has to know of one public harness. stationd knows
// nothing of it: to stationd it is a file with a digest, and a port.
type harness struct {
	argv      []string
	health    string
	prefix    string // of the ticket
	outside   string // a path that it is not for
	files     map[string]string
	artifacts []string
	more      map[string]any // further parts of the spec

	talk   func(*story) *stationrig.Stream // a conversation; leaves a stream open
	escape func(*story)                    // tries to get out
}

// What lies outside, and is asked for from inside. None of it is reached or even
// looked up: the first has no route, and the way out knows one other name.
const (
	metadata = "http://169.254.169.254/latest/meta-data/"
	public   = "https://example.com/"
	model    = "https://api.openai.com/v1/models"
)

var harnesses = map[string]harness{
	rig.SandboxAgent: {
		argv:   []string{"sandbox-agent", "server", "--host", "127.0.0.1", "--port", "{port}", "--no-token", "--no-telemetry"},
		health: "/v1/health", prefix: "/v1", outside: "/ui/",
		talk: sandboxTalk, escape: sandboxEscape,
	},
	rig.OpenCode: {
		argv:   []string{"opencode", "serve", "--hostname", "127.0.0.1", "--port", "{port}", "--print-logs"},
		health: "/global/health", prefix: "/", outside: "",
		files:     map[string]string{"opencode.json": helperConfig, "helper.sh": helperScript},
		artifacts: []string{helperNotes},
		more: map[string]any{
			"daemonAuth": map[string]any{"mode": "env:OPENCODE_SERVER_PASSWORD", "inject": "basic:opencode"},
			"env":        map[string]any{"set": map[string]any{"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}},
		},
		talk: opencodeTalk, escape: opencodeEscape,
	},
}

// conversation is the harness's own.
func (s *story) conversation() *stationrig.Stream { return s.harness.talk(s) }

// inside lets the harness try to get out.
func (s *story) inside() { s.harness.escape(s) }

// show prints one exchange.
func (s *story) show(what string, a stationrig.Answer) {
	s.say("  %-44s %d  %s", what, a.Status, a.Text(90))
}

// sandboxTalk speaks to sandbox-agent's built-in agent, which echoes: initialize, a
// session, a prompt; and follows the events, the second time from where the first
// one ended.
func sandboxTalk(s *story) *stationrig.Stream {
	const conversation = "/v1/acp/demo"
	post := func(what, target, body string) stationrig.Answer {
		a := s.ada.Must("POST", target, body)
		s.show(what, a)
		return a
	}
	call := func(id int, method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)
	}
	s.say("ada, by curl with the ticket:")
	post("POST /v1/agents/mock/install", "/v1/agents/mock/install", "{}")
	post("POST "+conversation+" initialize", conversation+"?agent=mock", call(1, "initialize", `{"protocolVersion":1,"clientCapabilities":{}}`))

	stream := s.ada.Stream(conversation)
	post("POST "+conversation+" session/new", conversation, call(2, "session/new", `{"cwd":"/","mcpServers":[]}`))
	post("POST "+conversation+" session/prompt", conversation,
		call(3, "session/prompt", `{"sessionId":"mock-1","prompt":[{"type":"text","text":"How many planks has the bridge?"}]}`))
	s.say("ada follows GET %s:", conversation)
	for seen := ""; !strings.Contains(seen, `"id":3,`); {
		event, ok := stream.Next()
		if !ok {
			s.Fatalf("the stream has ended")
		}
		s.event(event)
		seen = event
	}
	last := stationrig.ID(s.out.Events[len(s.out.Events)-1])
	stream.Close()

	const from = "2"
	again := s.ada.Stream(conversation, "Last-Event-ID: "+from)
	event, _ := again.Next()
	if got := stationrig.ID(event); got != "3" {
		s.Fatalf("after event %s comes %q, not 3", from, got)
	}
	s.say("  again with Last-Event-ID: %s, it goes on with event 3 of %s", from, last)
	return again
}

func (s *story) event(text string) {
	s.out.Events = append(s.out.Events, text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if len(line) > 100 {
			lines[i] = line[:100] + "…"
		}
	}
	s.say("  %s", strings.TrimSpace(strings.Join(lines, "  ")))
}

// sandboxEscape asks the harness, which can run commands, to run curl: with no way
// out but lo, and through the proxy, which knows what is allowed.
func sandboxEscape(s *story) {
	s.say("the harness itself, told to run curl, gets nowhere:")
	for _, try := range []struct {
		what, url string
		direct    bool
		want      string
	}{
		{"metadata, directly", metadata, true, "(7)"},
		{"metadata, through the proxy", metadata, false, "403"},
		{"a public name, directly", public, true, "(6)"},
		{"a public name, through the proxy", public, false, "403"},
		{"a model, through the proxy", model, false, "403"},
	} {
		args := []string{"--silent", "--show-error", "--max-time", "5", "--output", "/dev/null", "--write-out", "%{http_code} %{http_connect}", try.url}
		if try.direct {
			args = append([]string{"--noproxy", "*"}, args...)
		}
		request, err := json.Marshal(map[string]any{"command": "/usr/bin/curl", "args": args, "timeoutMs": 10_000})
		if err != nil {
			s.Fatalf("%v", err)
		}
		var got struct {
			ExitCode       int
			Stdout, Stderr string
		}
		a := s.ada.Must("POST", "/v1/processes/run", string(request))
		if err := json.Unmarshal(a.Body, &got); err != nil {
			s.Fatalf("%v: %s", err, a.Body)
		}
		said := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(got.Stderr), "curl: "))
		if said == "" {
			said = "the proxy answers " + strings.Fields(got.Stdout + " ?")[0]
		}
		if !strings.Contains(said+got.Stdout, try.want) {
			s.Fatalf("%s: %q %q, want %s", try.what, got.Stdout, got.Stderr, try.want)
		}
		s.refused(rig.SandboxAgent, try.what, said)
	}
}

// The helper of the opencode story: the workspace's own configuration makes opencode
// start it, as it starts any local server of tools. It leaves a process behind that is
// in a session of its own.
const (
	helperNotes  = "tried.txt"
	helperConfig = `{"mcp":{"helper":{"type":"local","command":["/bin/sh","helper.sh"],"enabled":true}}}` + "\n"
	helperScript = `#!/bin/sh
try() { printf '%s: ' "$1"; shift; curl -sS -m 5 -o /dev/null "$@" 2>&1; echo; }
{
	try 'metadata, directly' --noproxy '*' ` + metadata + `
	try 'a public name, directly' --noproxy '*' ` + public + `
	try 'a public name, through the proxy' ` + public + `
	try 'a model, through the proxy' ` + model + `
	echo end
} >` + helperNotes + `.new
mv ` + helperNotes + `.new ` + helperNotes + `
setsid sleep 3600 >/dev/null 2>&1 &
`
)

// opencodeTalk follows opencode's events and makes a session. No model is asked.
func opencodeTalk(s *story) *stationrig.Stream {
	s.say("ada, by curl with the ticket; the gate adds opencode's own password:")
	s.show("GET /global/health", s.ada.Must("GET", "/global/health", ""))
	stream := s.ada.Stream("/event")
	s.say("  GET /event:")
	s.event(stream.Until("server.connected"))
	a := s.ada.Must("POST", "/session", `{"title":"The bridge"}`)
	s.show("POST /session", a)
	s.event(stream.Until("session.created"))
	return stream
}

// opencodeEscape reads, through opencode, what the helper has noted.
func opencodeEscape(s *story) {
	s.say("a helper that the harness starts gets nowhere:")
	s.ada.Must("GET", "/mcp", "") // makes opencode start the helper
	var notes struct{ Content string }
	s.Until("the helper has tried everything", func() bool {
		a := s.ada.Do("GET", "/file/content?path="+helperNotes, "")
		return a.Status == 200 && json.Unmarshal(a.Body, &notes) == nil && strings.Contains(notes.Content, "\nend")
	})
	for line := range strings.SplitSeq(notes.Content, "\n") {
		what, said, ok := strings.Cut(line, ": ")
		if !ok {
			continue
		}
		said = strings.TrimPrefix(said, "curl: ")
		if !strings.HasPrefix(said, "(") {
			s.Fatalf("the helper reached something: %s", line)
		}
		s.refused("helper.sh", what, said)
	}
}

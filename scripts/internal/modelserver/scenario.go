package modelserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"
)

// A voice says on one provider's wire what a scenario wants. After a call that
// ends the answer (finish, fail, incomplete, hangUp, refuse) nothing more is
// said. hold and pass report whether the client is still there.
type voice interface {
	// refuse answers with an HTTP error instead of a stream.
	refuse(status int, kind, code, message string)
	// hold waits; pass waits at a gate.
	hold(d time.Duration) bool
	pass(gate string) bool

	think(summary string)
	say(text string)
	// stream says text piece by piece with a pause after each.
	stream(pieces []string, pause time.Duration) bool
	// command asks the agent to run a command.
	command(c command)
	// add asks the agent to add a file, change to replace a line in one that it
	// has added. A relative path is one in the work tree.
	add(path, content string)
	change(path, from, to string)
	// fetch asks the agent to read an address.
	fetch(address string)
	// ask asks the person at the terminal.
	ask(questions []question)
	// plan does the next step of showing a plan, and reports false when all are done.
	plan(step int) bool
	// tool calls a tool of an MCP server; server is the name that Codex gives it.
	tool(server, name string, args json.RawMessage)
	// dialog is the text of the agent's own question about rm -rf /.
	dialog() string

	finish(inputTokens, outputTokens int)
	fail(code, message string)
	incomplete(reason string)
	// hangUp says the beginning of an answer and ends the stream there.
	hangUp(beginning string)
}

// A command is a shell command that the model wants to run.
type command struct {
	line       string
	why        string   // shown to the person; makes Codex ask for escalation
	prefix     []string // a rule that the dialog of Codex offers
	background bool     // leave it running behind the turn
	dir        string   // named to Codex; "" leaves it out
}

// A question of a questionnaire. Codex has no questions with several answers, and
// shows them as ordinary ones.
type question struct {
	id, header, text string
	several          bool
	options          []choice
}

type choice struct{ label, description string }

// query is what a scenario is told.
type query struct {
	name string // the word after SCN=, "" without one
	arg  string // the part after the colon
	text string // newest user message
	step int    // tool outputs since then
	cwd  string // the agent's directory, "" when it did not say
	file string // file that the agent wants a plan to be written to, "" without one
}

// Ordinary usage of an answer, and one that makes agents compact their history.
const (
	usageIn, usageOut       = 1_000, 50
	hugeUsageIn, hugeUseOut = 260_000, 5_000
)

// statusOverloaded is the status of an overloaded provider; net/http has no name for it.
const statusOverloaded = 529

// Bounds of scenario arguments.
const (
	maxSeconds = 300
	maxPieces  = 200
	maxLines   = 2_000
)

var scenarioWord = regexp.MustCompile(`(?:^|\s)SCN=([A-Z][A-Z0-9]*)(?::(\S+))?`)

// parseScenario finds the scenario word of a message.
func parseScenario(text string) (name, arg string) {
	m := scenarioWord.FindStringSubmatch(text)
	if m == nil {
		return "", ""
	}
	return m[1], m[2]
}

// scenarios by name. An unknown name is echoed, so that a typing mistake in a
// test shows in the answer.
var scenarios = map[string]func(v voice, q query){
	"ECHO": echo,
	// SAY:the_words answers exactly "the words".
	"SAY": func(v voice, q query) { answer(v, strings.ReplaceAll(q.arg, "_", " ")) },
	// SLOW:n answers after n seconds, SLOW:n/the_words exactly "the words".
	"SLOW": func(v voice, q query) {
		seconds, words, _ := strings.Cut(q.arg, "/")
		n := number(seconds, 5, maxSeconds)
		text := strings.ReplaceAll(words, "_", " ")
		if text == "" {
			text = fmt.Sprintf("SLOW answer after %d s", n)
		}
		if v.hold(time.Duration(n) * time.Second) {
			answer(v, text)
		}
	},
	// GATE:name answers when the gate is released.
	"GATE": func(v voice, q query) {
		if v.pass(q.arg) {
			answer(v, strings.TrimSpace("GATE answer "+q.arg))
		}
	},
	// STREAM:n says n lines, three a second.
	"STREAM": func(v voice, q query) {
		pieces := make([]string, number(q.arg, 10, maxPieces))
		for i := range pieces {
			pieces[i] = fmt.Sprintf("line %d of the streamed answer\n", i+1)
		}
		if v.stream(pieces, 300*time.Millisecond) {
			v.finish(usageIn, usageOut)
		}
	},
	// LONG:n answers n lines at once.
	"LONG": func(v voice, q query) {
		var b strings.Builder
		for i := range number(q.arg, 80, maxLines) {
			fmt.Fprintf(&b, "- answer line %d\n", i+1)
		}
		answer(v, b.String())
	},
	"REASON": func(v voice, _ query) {
		v.think("**Thinking about it**\n\nfirst this, then that")
		answer(v, "REASON answer")
	},
	"EMPTY": func(v voice, _ query) { v.finish(usageIn, usageOut) },
	"HUGE": func(v voice, _ query) {
		v.say("HUGE answer: the history must be compacted now")
		v.finish(hugeUsageIn, hugeUseOut)
	},
	// FAKEUI answers with a copy of the agent's approval dialog.
	"FAKEUI": func(v voice, _ query) { answer(v, v.dialog()) },

	// EXEC:word asks to run a command outside the sandbox.
	"EXEC": steps(1, "EXEC finished", func(v voice, q query) {
		v.command(command{line: "touch approved-" + word(q.arg) + ".txt", why: "Need to touch a file"})
	}),
	// EXECPFX adds a prefix rule, which gives the dialog one more row.
	"EXECPFX": steps(1, "EXECPFX finished", func(v voice, q query) {
		v.command(command{line: "touch approved-" + word(q.arg) + ".txt", why: "Need to touch a file", prefix: []string{"touch"}})
	}),
	// EXECDIR names the directory, too, as models do.
	"EXECDIR": steps(1, "EXECDIR finished", func(v voice, q query) {
		v.command(command{line: "touch approved-" + word(q.arg) + ".txt", why: "Need to touch a file", dir: q.cwd})
	}),
	// TWO asks twice, one after the other.
	"TWO": steps(2, "TWO finished", func(v voice, q query) {
		v.command(command{line: fmt.Sprintf("touch two-%d.txt", q.step+1), why: fmt.Sprintf("Step %d", q.step+1)})
	}),
	// BOTH asks for two commands in one message.
	"BOTH": steps(1, "BOTH finished", func(v voice, _ query) {
		v.command(command{line: "touch both-1.txt", why: "The first of two"})
		v.command(command{line: "touch both-2.txt", why: "The second of two"})
	}),
	// LONGCMD asks for a command of many rows. It writes: what only reads is not
	// asked about by Claude Code.
	"LONGCMD": steps(1, "LONGCMD finished", func(v voice, _ query) {
		v.command(command{line: "touch approved-long.txt && echo " + strings.Repeat("abcdefghij ", 60) + "&& cat <<'X'\nline1\nline2\nX", why: "A very long command"})
	}),
	// RUN:n runs a plain command of n seconds, without a question.
	"RUN": steps(1, "RUN finished", func(v voice, q query) {
		v.command(command{line: fmt.Sprintf("echo begin; sleep %d; echo end", number(q.arg, 1, maxSeconds))})
	}),
	// ENV prints the environment that commands have.
	"ENV": steps(1, "ENV finished", func(v voice, q query) { v.command(command{line: "env"}) }),
	// BG:n leaves a command of n seconds running behind the turn.
	"BG": steps(1, "BG left a command running", func(v voice, q query) {
		v.command(command{line: fmt.Sprintf("sleep %d", number(q.arg, 60, maxSeconds)), background: true})
	}),
	// PATCH:word asks to add a file outside the work tree, PATCHIN inside it.
	"PATCH": steps(1, "PATCH finished", func(v voice, q query) {
		v.add(strings.TrimSuffix(q.cwd, "/")+"/../outside-"+word(q.arg)+".txt", "hello\nworld\n")
	}),
	"PATCHIN": steps(1, "PATCHIN finished", func(v voice, q query) {
		v.add("inside-"+word(q.arg)+".txt", "hello\nworld\n")
	}),
	// EDIT:word adds a file to the work tree and changes a line of it.
	"EDIT": steps(2, "EDIT finished", func(v voice, q query) {
		path := "edited-" + word(q.arg) + ".txt"
		if q.step == 0 {
			v.add(path, "hello\nworld\n")
		} else {
			v.change(path, "world", "moon")
		}
	}),
	// FETCH asks to read an address that nobody serves.
	"FETCH": steps(1, "FETCH finished", func(v voice, _ query) { v.fetch("https://docs.example/page") }),
	// ASK opens a questionnaire of two questions (Codex: in plan mode only), ASKONE
	// of one, ASKMANY of two of which the first takes several answers.
	"ASK":     steps(1, "ASK finished", func(v voice, _ query) { v.ask([]question{colour, size}) }),
	"ASKONE":  steps(1, "ASKONE finished", func(v voice, _ query) { v.ask([]question{size}) }),
	"ASKMANY": steps(1, "ASKMANY finished", func(v voice, _ query) { v.ask([]question{checks, branch}) }),
	// PLAN shows a plan (Claude Code: in plan mode, and asks for its approval).
	"PLAN": func(v voice, q query) {
		if !v.plan(q.step) {
			answer(v, "PLAN finished")
			return
		}
		v.finish(usageIn, usageOut)
	},
	// MCP:server/tool or MCP:server/tool/{"json":"without blanks"} calls a tool.
	"MCP": steps(1, "MCP finished", func(v voice, q query) {
		parts := strings.SplitN(q.arg, "/", 3)
		if len(parts) < 2 {
			v.say("MCP needs server/tool")
			return
		}
		args := json.RawMessage(`{}`)
		if len(parts) == 3 && json.Valid([]byte(parts[2])) {
			args = json.RawMessage(parts[2])
		}
		v.tool(parts[0], parts[1], args)
	}),

	"E400":  refusal(http.StatusBadRequest, "invalid_request_error", "bad_request", "scripted bad request"),
	"E401":  refusal(http.StatusUnauthorized, "invalid_request_error", "invalid_api_key", "scripted bad key"),
	"E403":  refusal(http.StatusForbidden, "invalid_request_error", "forbidden", "scripted forbidden"),
	"E429":  refusal(http.StatusTooManyRequests, "rate_limit_error", "rate_limit_exceeded", "scripted rate limit"),
	"E429Q": refusal(http.StatusTooManyRequests, "insufficient_quota", "insufficient_quota", "scripted quota exhausted"),
	"E500":  refusal(http.StatusInternalServerError, "server_error", "server_error", "scripted upstream failure"),
	"E529":  refusal(statusOverloaded, "overloaded_error", "overloaded", "scripted overload"),
	// FAILED:code ends the stream with a failure, INCOMPLETE in the middle of an
	// answer, CUT without an end.
	"FAILED": func(v voice, q query) {
		code := q.arg
		if code == "" {
			code = "server_error"
		}
		v.fail(code, "scripted failure in the stream")
	},
	"INCOMPLETE": func(v voice, _ query) {
		v.say("half of an answer")
		v.incomplete("max_output_tokens")
	},
	"CUT": func(v voice, _ query) { v.hangUp("the beginning of an answer that") },
	// HANG never says a word.
	"HANG": func(v voice, _ query) { v.hold(maxWait) },
}

// Questions of the questionnaires.
var (
	colour = question{id: "color", header: "Color", text: "Which colour should the door be?",
		options: []choice{{"Red (Recommended)", "A warm colour."}, {"Blue", "A cold colour."}}}
	size = question{id: "size", header: "Size", text: "Which size?",
		options: []choice{{"Small", "Little."}, {"Large", "Big."}}}
	checks = question{id: "checks", header: "Checks", text: "Which checks should run?", several: true,
		options: []choice{{"Unit", "Tests of the packages."}, {"Lint", "The linters."}, {"Race", "The race detector."}}}
	branch = question{id: "branch", header: "Branch", text: "Which branch?",
		options: []choice{{"main", "The trunk."}, {"next", "The next release."}}}
)

// Scenarios lists the names, sorted.
func Scenarios() []string {
	names := make([]string, 0, len(scenarios))
	for name := range scenarios {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// play runs the scenario of q.
func play(v voice, q query) {
	if run, ok := scenarios[q.name]; ok {
		run(v, q)
		return
	}
	echo(v, q)
}

// Echo is the answer of the ECHO scenario, and of a message without one.
func Echo(text string) string {
	return "ECHO " + cut(strings.Join(strings.Fields(text), " "), 200)
}

func echo(v voice, q query) { answer(v, Echo(q.text)) }

func answer(v voice, text string) {
	v.say(text)
	v.finish(usageIn, usageOut)
}

// steps runs do until n tool outputs have come back, then says last.
func steps(n int, last string, do func(v voice, q query)) func(voice, query) {
	return func(v voice, q query) {
		if q.step >= n {
			answer(v, last)
			return
		}
		do(v, q)
		v.finish(usageIn, usageOut)
	}
}

func refusal(status int, kind, code, message string) func(voice, query) {
	return func(v voice, _ query) { v.refuse(status, kind, code, message) }
}

// number reads a positive argument; anything else gives the default.
func number(arg string, def, most int) int {
	n, err := strconv.Atoi(arg)
	if err != nil || n <= 0 {
		return def
	}
	return min(n, most)
}

// word keeps what is harmless in a file name.
func word(arg string) string {
	keep := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return -1
	}, arg)
	if keep == "" {
		return "x"
	}
	return cut(keep, 40)
}

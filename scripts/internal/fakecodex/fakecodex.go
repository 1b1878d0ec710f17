// Package fakecodex is a program named codex for tests of the worker: it takes
// the arguments of `codex exec --json`, reads its prompt, and does what the
// prompt says. A line of the prompt that begins with "fake: " is a word with its
// arguments; all other lines are ignored. The words are carried out in order.
//
//	print TEXT            write TEXT as a line to stdout, whatever it is
//	stderr TEXT           write TEXT as a line to stderr
//	replay FILE           copy FILE to stdout; no events of its own from then on
//	silent                no events of its own from here on
//	final TEXT            the last message (default: the reports, as JSON)
//	usage IN OUT [CACHED] tokens of the turn (default 20 10 6)
//	usage none            a completed turn without usage
//	usage JSON            the usage member, verbatim
//	fail TEXT             end with turn.failed and status 1
//	exit STATUS           end at once
//	sleep DURATION        as of time.ParseDuration
//	hang                  sleep until killed
//	ignore                ignore SIGTERM, SIGINT, SIGHUP
//	flood stdout|stderr BYTES [LINE]   write BYTES in lines of LINE bytes (default 1000)
//	write FILE BYTES      create FILE with BYTES zero bytes
//	text FILE TEXT        create FILE with TEXT and a newline
//	append FILE TEXT      add TEXT and a newline
//	files DIR N BYTES     N files in DIR
//	grow FILE STEP PAUSE  add STEP bytes each PAUSE, until killed
//	mkdir DIR, symlink TARGET NAME, fifo NAME, socket NAME, remove NAME
//	fork N                start N children that sleep; reports how many started
//	memory BYTES          take and touch memory; reports when it has it
//	spin DURATION         burn CPU
//	connect ADDR [WAIT]   dial TCP: open, refused, timeout, unreachable, or the error
//	listen ADDR           accept TCP until the end; reports the address
//	udp ADDR TEXT         send one datagram; reports sent or the error
//	lookup NAME           reports the addresses, or "failed"
//	get URL [WAIT]        HTTP GET; reports status and body
//	respond TEXT          POST to the configured base URL /responses with the
//	                      capability, and report status and body
//	env NAME              reports "set VALUE" or "unset"; names alone: envs
//	args                  reports the arguments
//	config                reports $CODEX_HOME/config.toml
//	read FILE             reports the content
//	create FILE           tries to create or truncate FILE; reports "ok" or the error
//	stat NAME             reports type, mode, uid and gid
//	status                reports capabilities, NoNewPrivs, Seccomp, uid and gid
//	limits                reports /proc/self/limits
//	interfaces            reports the network interfaces and their addresses
//	mounts                reports /proc/self/mounts
//	run PROGRAM ARG...    runs it, reports its output and status
//	leak                  print the capability to stdout, to stderr and as final
//
// A report is an item.completed event of a command_execution: its command is the
// word with its arguments, its aggregated_output what was found.
//
// Words can also stand in the environment variable FAKE_CODEX, separated by
// semicolons; then stdin is not read, unless one of them is "stdin".
// `codex --version` prints a version, with a warning on stderr like the real one.
package fakecodex

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
)

// Version is what `codex --version` says.
const Version = "0.0.0-fake"

// Names of the environment, as the worker sets them.
const (
	Variable   = "FAKE_CODEX"
	capability = "KONTOUR_PROVIDER_CAPABILITY"
	home       = "CODEX_HOME"
)

// Prefix begins a line of the prompt that is a word.
const Prefix = "fake: "

// maxPrompt bounds what is read from stdin.
const maxPrompt = 64 << 20

// A Codex is one run of the program.
type Codex struct {
	Args   []string // without the program
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer

	out       *bufio.Writer
	silent    bool
	items     int
	reports   []report
	final     *string
	usage     string // JSON, "" for none
	failure   string
	listeners []net.Listener
}

// report is what a word found out.
type report struct {
	Word   string `json:"word"`
	Result string `json:"result"`
}

// ended is how a word ends the program at once.
type ended struct{ status int }

func (e ended) Error() string { return fmt.Sprintf("ended with status %d", e.status) }

// Run does what the prompt says and gives the status to exit with.
func (c *Codex) Run() (status int) {
	if len(c.Args) == 1 && c.Args[0] == "--version" {
		fmt.Fprintln(c.Stderr, "WARNING: this is not Codex but a program for tests")
		fmt.Fprintln(c.Stdout, "codex-cli "+Version)
		return 0
	}
	if len(c.Args) == 0 || c.Args[0] != "exec" {
		fmt.Fprintln(c.Stderr, "codex: want: exec …, or --version")
		return 2
	}
	c.out = bufio.NewWriter(c.Stdout)
	c.usage = usage(20, 10, 6)
	defer c.close(&status)

	words, err := c.words()
	if err != nil {
		fmt.Fprintln(c.Stderr, "codex: "+err.Error())
		return 2
	}
	// The first events wait for the first word: silent and replay want none.
	begun := false
	for _, line := range words {
		word, rest, _ := strings.Cut(line, " ")
		do, ok := verbs[word]
		if !ok {
			fmt.Fprintf(c.Stderr, "codex: unknown word %q\n", word)
			return 2
		}
		if !begun && word != "silent" && word != "replay" {
			c.begin()
		}
		begun = true
		result, err := do(c, strings.TrimSpace(rest))
		if end, ok := err.(ended); ok {
			return end.status
		}
		if err != nil {
			result = err.Error()
		}
		if result != "" {
			c.report(line, result)
		}
	}
	if !begun {
		c.begin()
	}
	return c.end()
}

// words are the words of the environment, or of stdin.
func (c *Codex) words() ([]string, error) {
	var words []string
	wanted := true
	if given := os.Getenv(Variable); given != "" {
		wanted = false
		for _, word := range strings.Split(given, ";") {
			switch word = strings.TrimSpace(word); word {
			case "":
			case "stdin":
				wanted = true
			default:
				words = append(words, word)
			}
		}
	}
	if !wanted {
		return words, nil
	}
	prompt, err := io.ReadAll(io.LimitReader(c.Stdin, maxPrompt))
	if err != nil {
		return nil, fmt.Errorf("read the prompt: %w", err)
	}
	for _, line := range strings.Split(string(prompt), "\n") {
		if word, ok := strings.CutPrefix(line, Prefix); ok {
			words = append(words, strings.TrimSpace(word))
		}
	}
	return words, nil
}

func (c *Codex) begin() {
	c.event(`{"type":"thread.started","thread_id":"01900000-0000-7000-8000-00000000fa4e"}`)
	c.event(`{"type":"turn.started"}`)
}

func (c *Codex) end() int {
	if c.failure != "" {
		c.event(`{"type":"turn.failed","error":{"message":` + quote(c.failure) + `}}`)
		return 1
	}
	text := "done"
	switch {
	case c.final != nil:
		text = *c.final
	case len(c.reports) > 0:
		data, err := json.Marshal(c.reports)
		if err != nil {
			panic(err) // two strings
		}
		text = string(data)
	}
	c.item("agent_message", `"text":`+quote(text))
	done := `{"type":"turn.completed"}`
	if c.usage != "" {
		done = `{"type":"turn.completed","usage":` + c.usage + `}`
	}
	c.event(done)
	return 0
}

func (c *Codex) close(status *int) {
	for _, l := range c.listeners {
		_ = l.Close()
	}
	if err := c.out.Flush(); err != nil && *status == 0 {
		*status = 1
	}
}

func (c *Codex) report(word, result string) {
	c.reports = append(c.reports, report{word, result})
	c.item("command_execution", `"command":`+quote(word)+`,"aggregated_output":`+quote(result)+`,"exit_code":0,"status":"completed"`)
}

func (c *Codex) item(kind, members string) {
	c.event(fmt.Sprintf(`{"type":"item.completed","item":{"id":"item_%d","type":%q,%s}}`, c.items, kind, members))
	c.items++
}

// event writes a line, at once: who watches the worker sees it happen.
func (c *Codex) event(line string) {
	if !c.silent {
		c.line(line)
	}
}

func (c *Codex) line(text string) {
	// A reader that is gone is noticed at the end.
	_, _ = c.out.WriteString(text + "\n")
	_ = c.out.Flush()
}

func usage(in, out, cached int64) string {
	return fmt.Sprintf(`{"input_tokens":%d,"cached_input_tokens":%d,"output_tokens":%d}`, in, cached, out)
}

func quote(text string) string {
	data, err := json.Marshal(text)
	if err != nil {
		panic(err) // a string
	}
	return string(data)
}

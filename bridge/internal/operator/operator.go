// Package operator is the tools at a shell: bridge call, one command for each
// tool (bridge list, bridge status, bridge send …), bridge explain and bridge skill.
//
// A call goes the way of an MCP call: package catalog checks the arguments
// against the published schema, runs the tool and scrubs what comes back. What
// differs is who asks. An operator is a controller session of its own
// (operator:<uid>, or --session) without a callback route: Turns are recorded and
// monitored, and nobody is called back, unless --profile names a Host's Profile.
// No sibling is started from here; a tool that needs one refuses, and the command
// that starts it is shown.
//
// Answers are for people by default and the tool's own JSON with -json. An answer
// that the tool marks as an error ends the command with the exit status of its
// code. Text of panes is shown without control characters.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/google/uuid"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/bridge/internal/hostbridge"
	"drawbridge/bridge/internal/mcpserver"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/service"
)

// maxStdin bounds what is read for an argument "-".
const maxStdin = 1 << 20

// streams are those of the process.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// Commands gives call, explain and a command for each tool.
func Commands(stdin io.Reader, stdout, stderr io.Writer) []*service.Command {
	s := streams{stdin, stdout, stderr}
	sketches, err := catalog.Sketches()
	if err != nil {
		panic("operator: a schema that was built in cannot be read: " + err.Error())
	}
	out := []*service.Command{callCommand(s), explainCommand(s), skillCommand(s)}
	for _, k := range sketches {
		out = append(out, toolCommand(s, k))
	}
	return out
}

// skillCommand is bridge skill: the page that teaches a model to use the tools.
func skillCommand(s streams) *service.Command {
	return &service.Command{
		Name: "skill", Short: "Print the skill that teaches a model to use the tools",
		Long: "skill prints the page that MCP clients get as the prompt \"drawbridge\", in the form of a\n" +
			"skill file.",
		Run: func(context.Context, []string) error {
			_, err := io.WriteString(s.out, catalog.Skill)
			return err
		},
	}
}

// common is what every command here knows.
type common struct {
	hostbridge.Settings
	json bool
}

func (c *common) register(fs *flag.FlagSet) {
	c.Register(fs)
	fs.BoolVar(&c.json, "json", false, "print the tool's own JSON")
}

func callCommand(s streams) *service.Command {
	var c common
	return &service.Command{
		Name: "call", Short: "Call a tool with JSON arguments", Args: "<tool> [<json>]", MinArgs: 1, MaxArgs: 2,
		Long: "call runs one of the nineteen tools with the arguments of the JSON object, checked by the\n" +
			"tool's schema. \"-\" reads the object from standard input; without one it is {}.",
		Flags: func(fs *flag.FlagSet) {
			c.register(fs)
			service.Argument(fs, &c.Session, "session", "controller `session` to act as (default operator:<uid>)")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, args []string) error {
			doc := "{}"
			if len(args) == 2 {
				var err error
				if doc, err = s.argument(args[1]); err != nil {
					return err
				}
			}
			name := strings.ReplaceAll(strings.TrimPrefix(args[0], catalog.Prefix), "-", "_")
			return s.run(ctx, &c, name, func(context.Context, *hostbridge.Bench) ([]byte, error) { return []byte(doc), nil })
		},
	}
}

func toolCommand(s streams, k catalog.Sketch) *service.Command {
	var c common
	shape := shapes[k.Name]
	given := map[string]*string{}
	yes := map[string]*bool{}
	return &service.Command{
		Name: dashed(k.Name), Short: k.Title, Args: shape.args, MinArgs: shape.least, MaxArgs: len(shape.takes),
		Long: shape.long,
		Flags: func(fs *flag.FlagSet) {
			c.register(fs)
			service.Argument(fs, &c.Session, "session", "controller `session` to act as (default operator:<uid>)")
			for _, p := range k.Properties {
				if p.Type == "boolean" {
					yes[p.Name] = fs.Bool(dashed(p.Name), false, about(p))
					continue
				}
				given[p.Name] = new(string)
				service.Argument(fs, given[p.Name], dashed(p.Name), about(p))
			}
		},
		OtherSettings: true,
		Run: func(ctx context.Context, args []string) error {
			doc := map[string]any{}
			for _, p := range k.Properties {
				if on := yes[p.Name]; on != nil && *on {
					doc[p.Name] = true
				}
				if text := given[p.Name]; text != nil && *text != "" {
					v, err := s.value(p, *text)
					if err != nil {
						return err
					}
					doc[p.Name] = v
				}
			}
			return s.run(ctx, &c, k.Name, func(ctx context.Context, b *hostbridge.Bench) ([]byte, error) {
				if err := shape.fill(ctx, s, b, args, doc); err != nil {
					return nil, err
				}
				return json.Marshal(doc)
			})
		},
	}
}

// dashed is a tool's or an argument's name as a command line has it.
func dashed(name string) string {
	var b strings.Builder
	for _, r := range name {
		switch {
		case r == '_':
			b.WriteByte('-')
		case unicode.IsUpper(r):
			b.WriteByte('-')
			b.WriteRune(unicode.ToLower(r))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func about(p catalog.Property) string {
	kind := "text"
	switch p.Type {
	case "number":
		kind = "number"
	case "array":
		kind = "json"
	}
	text := "the tool's argument " + p.Name
	if p.About != "" {
		text = fault.CleanLine(p.About)
	}
	if len(p.Enum) > 0 {
		text += ": " + strings.Join(p.Enum, ", ")
	}
	return "`" + kind + "` of " + text
}

// value reads one argument in the type that the schema names.
func (s streams) value(p catalog.Property, text string) (any, error) {
	switch p.Type {
	case "number":
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fault.New(fault.Usage, "--%s: %q is not a number", dashed(p.Name), text)
		}
		return n, nil
	case "array":
		text, err := s.argument(text)
		if err != nil {
			return nil, err
		}
		if !json.Valid([]byte(text)) {
			return nil, fault.New(fault.Usage, "--%s is not JSON", dashed(p.Name))
		}
		return json.RawMessage(text), nil
	}
	return s.argument(text)
}

// argument gives text, or standard input for "-".
func (s streams) argument(text string) (string, error) {
	if text != "-" {
		return text, nil
	}
	data, err := io.ReadAll(io.LimitReader(s.in, maxStdin+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read standard input: %w", err)
	case len(data) > maxStdin:
		return "", fault.New(fault.InputTooLarge, "standard input has more than %d bytes", maxStdin)
	}
	return string(data), nil
}

// run makes one call and shows its answer.
func (s streams) run(ctx context.Context, c *common, tool string, arguments func(context.Context, *hostbridge.Bench) ([]byte, error)) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b, err := c.Open(ctx, s.err)
	if err != nil {
		return err
	}
	defer b.Close()
	args, err := arguments(ctx, b)
	if err != nil {
		return err
	}
	res, err := Call(ctx, b.Tools, tool, args)
	if err != nil {
		return err
	}
	if c.json {
		fmt.Fprintln(s.out, res.Text)
		if res.Code == fault.SiblingUnavailable {
			fmt.Fprintf(s.err, "bridge: hint: %s\n", startHint(c, tool))
		}
		return status(res)
	}
	if res.Code != "" {
		f, err := refusal(res)
		if err != nil {
			return err
		}
		if res.Code == fault.SiblingUnavailable {
			f = f.WithHint("%s", startHint(c, tool)) // nobody looks after it from here
		}
		return f
	}
	if err := show(s.out, tool, res.Structured); err != nil {
		return err
	}
	if tool == "list" {
		s.noteSiblings(c, b)
	}
	return status(res)
}

// Call runs one tool by its name without prefix, as an MCP call does.
func Call(ctx context.Context, tools *catalog.Catalog, tool string, args []byte) (catalog.Result, error) {
	name := catalog.Prefix + tool
	request, err := tools.Accept(name, args)
	switch {
	case errors.Is(err, catalog.ErrUnknownTool):
		return catalog.Result{}, fault.New(fault.Usage, "no tool is called %q", tool).WithHint("bridge help lists the tools")
	case err != nil:
		return catalog.Result{}, fault.New(fault.InvalidArguments, "%w", err).WithHint("bridge %s -h shows the arguments", dashed(tool))
	}
	id, err := mcpserver.CallID(uuid.NewString(), []byte("1"))
	if err != nil {
		return catalog.Result{}, err
	}
	return request.Run(ctx, handoff.Call{ToolCallID: id, Tool: name}), nil
}

// status makes the exit status of an answer that has been shown.
func status(res catalog.Result) error {
	switch {
	case !res.IsError:
		return nil
	case res.Code != "":
		return service.Status(fault.ExitCode(fault.New(res.Code, "refused")))
	}
	return service.Status(service.ExitFail)
}

// refusal is an answer with a code, as a command says it.
func refusal(res catalog.Result) (*fault.Error, error) {
	var doc struct {
		Reason string `json:"reason"`
		Input  string `json:"terminal_input"`
		Next   struct {
			Hint string `json:"hint"`
		} `json:"next"`
	}
	if err := json.Unmarshal(res.Structured, &doc); err != nil {
		return nil, fmt.Errorf("read a refusal: %w", err)
	}
	f, hint := fault.New(res.Code, "%s", doc.Reason), doc.Next.Hint
	if doc.Input != "" && doc.Input != string(fault.InputNone) {
		hint = strings.TrimSpace("something may have been typed: do not repeat the call. " + hint)
	}
	if hint != "" {
		f = f.WithHint("%s", hint)
	}
	return f, nil
}

// startHint says how the program is started that a refused tool needs.
func startHint(c *common, tool string) string {
	name := "watchd"
	if tool == "retry_callback" {
		name = "outboxd"
	}
	return "start one: " + c.StartCommand(name)
}

// noteSiblings says what is missing for a send.
func (s streams) noteSiblings(c *common, b *hostbridge.Bench) {
	if b.Desk.Siblings()["watchd"] != "up" {
		fmt.Fprintf(s.out, "\nNo watchd serves this Store: nothing is monitored, and send is refused. A Host's bridge starts one, or\n  %s\n", c.StartCommand("watchd"))
	}
}

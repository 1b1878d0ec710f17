package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/agent/screen"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/service"
	"drawbridge/shared/terminal"
)

// explainCommand is bridge explain: what one screen is taken for, and why.
func explainCommand(s streams) *service.Command {
	var c common
	var file, kind, version, size string
	return &service.Command{
		Name: "explain", Short: "Say what a pane or a saved screen is taken for, and why", Args: "[<terminal>]", MaxArgs: 1,
		Long: "explain names the rule that decided, the rows that it stands on, the dialog and its keys,\n" +
			"what could be typed now and what forbids the rest, and what to do next. The pane is named\n" +
			"by its terminal id or short ref (bridge list). With --file it judges a saved screen, as\n" +
			"\"tmux capture-pane -e -p\" writes it; \"-\" is standard input. It types and writes nothing.",
		Flags: func(fs *flag.FlagSet) {
			c.register(fs)
			fs.StringVar(&file, "file", "", "judge the styled capture in this `file`")
			fs.StringVar(&kind, "agent", "", "whose screen the file is: codex or claude (default: whoever knows it)")
			fs.StringVar(&version, "version", "", "agent `version` of the file (default: the newest recorded one)")
			fs.StringVar(&size, "size", "", "size of the file's pane, as `120x40` (default: the rows and columns of the file)")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, args []string) error {
			ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			var e handoff.Explanation
			var err error
			switch {
			case (file == "") == (len(args) == 0):
				return fault.New(fault.Usage, "explain takes a terminal or --file, one of them")
			case file != "":
				e, err = s.explainFile(&c, file, kind, version, size)
			case kind != "" || version != "" || size != "":
				return fault.New(fault.Usage, "--agent, --version and --size belong to --file")
			default:
				e, err = s.explainPane(ctx, &c, args[0])
			}
			if err != nil {
				return err
			}
			if c.json {
				enc := json.NewEncoder(s.out)
				enc.SetEscapeHTML(false)
				enc.SetIndent("", "  ")
				return enc.Encode(e)
			}
			_, err = s.out.Write(explained(e))
			return err
		},
	}
}

func (s streams) explainPane(ctx context.Context, c *common, target string) (handoff.Explanation, error) {
	b, err := c.OpenLook(ctx, s.err)
	if err != nil {
		return handoff.Explanation{}, err
	}
	defer b.Close()
	e, err := b.Desk.Explain(ctx, target)
	if err != nil {
		return e, err
	}
	rules, err := c.Rules()
	if err != nil {
		return e, err
	}
	e.RuleFile = ruleFile(rules, e.Agent, e.Version)
	return e, nil
}

func ruleFile(rules *rule.Set, kind, version string) string {
	if f, _ := rules.For(kind, version); f != nil {
		return f.Name()
	}
	return ""
}

// explainFile judges a saved screen. Without an agent every one is asked, and
// the one whose rules hold answers.
func (s streams) explainFile(c *common, file, kind, version, size string) (handoff.Explanation, error) {
	if version != "" && kind == "" {
		return handoff.Explanation{}, fault.New(fault.Usage, "--version needs --agent")
	}
	shot, err := s.screen(file, size)
	if err != nil {
		return handoff.Explanation{}, err
	}
	adapters, err := c.Agents(s.err)
	if err != nil {
		return handoff.Explanation{}, err
	}
	rules, err := c.Rules()
	if err != nil {
		return handoff.Explanation{}, err
	}
	var all []handoff.Explanation
	for _, a := range adapters {
		if kind == "" || kind == string(a.Kind()) {
			all = append(all, judge(rules, a, version, shot, c.Untested()))
		}
	}
	if len(all) == 0 {
		return handoff.Explanation{}, fault.New(fault.CapabilityMissing, "no agent is called %q", kind).WithHint("codex and claude are known")
	}
	var sure []handoff.Explanation // by a rule that is about this very screen
	for _, e := range all {
		if knows(e) {
			sure = append(sure, e)
		}
	}
	if len(sure) == 0 {
		sure = slices.DeleteFunc(slices.Clone(all), func(e handoff.Explanation) bool { return e.State == string(agent.Unknown) })
	}
	switch {
	case len(all) == 1:
		return all[0], nil
	case len(sure) == 1:
		sure[0].Notes = append(sure[0].Notes, "no --agent was given; judged by the rules of "+sure[0].Agent)
		return sure[0], nil
	case len(sure) > 1:
		return handoff.Explanation{}, fault.New(fault.TerminalAmbiguous, "the rules of %s and %s both hold on this screen", sure[0].Agent, sure[1].Agent).
			WithHint("say whose it is with --agent")
	}
	return handoff.Explanation{}, fault.New(fault.NotFound, "the rules of no agent hold on this screen").
		WithHint("name the agent with --agent to see which proofs failed")
}

// judge asks the rules of one version. Where none is given, all recorded ones are
// asked, newest first, and the first that knows the screen answers.
func judge(rules *rule.Set, a agent.Adapter, version string, shot terminal.Screen, policy handoff.Untested) handoff.Explanation {
	one := func(v string) handoff.Explanation {
		f, class := rules.For(string(a.Kind()), v)
		e := handoff.ExplainScreen(a, v, class, shot, policy)
		e.Stable = true
		if f != nil {
			e.RuleFile = f.Name()
		}
		return e
	}
	if version != "" {
		return one(version)
	}
	var best handoff.Explanation
	for _, v := range slices.Backward(recorded(rules, string(a.Kind()))) {
		e := one(v)
		if best.Agent == "" || knows(e) {
			best = e
			best.Notes = append(best.Notes, "no --version was given; judged by the rules of "+v)
		}
		if knows(e) {
			break
		}
	}
	return best
}

// knows reports whether a rule holds that says more than that a person must act.
func knows(e handoff.Explanation) bool {
	return e.State != string(agent.Unknown) && e.State != string(agent.Blocked)
}

// recorded lists the versions of an agent that rules were recorded from, oldest
// first.
func recorded(rules *rule.Set, kind string) []string {
	var out []string
	for _, f := range rules.Files() {
		if f.Agent() == kind {
			out = append(out, f.Tested()...)
		}
	}
	return out
}

// screen reads a saved capture. Without a size the file tells it.
func (s streams) screen(file, size string) (terminal.Screen, error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = io.ReadAll(io.LimitReader(s.in, screen.MaxBytes+1))
	} else {
		var f *os.File
		if f, err = os.Open(file); err == nil {
			data, err = io.ReadAll(io.LimitReader(f, screen.MaxBytes+1))
			err = errors.Join(err, f.Close())
		}
	}
	switch {
	case err != nil:
		return terminal.Screen{}, fault.New(fault.Usage, "read the screen: %w", err)
	case len(data) > screen.MaxBytes:
		return terminal.Screen{}, fault.New(fault.InputTooLarge, "read the screen: more than %d bytes", screen.MaxBytes)
	}
	shot := terminal.Screen{Text: data}
	if size == "" {
		parsed := screen.Parse(data, 0, 0)
		shot.Pane.Height = parsed.Lines
		for _, row := range parsed.Rows {
			shot.Pane.Width = max(shot.Pane.Width, len(row.Cells))
		}
		return shot, nil
	}
	if n, err := fmt.Sscanf(size, "%dx%d", &shot.Pane.Width, &shot.Pane.Height); n != 2 || err != nil || shot.Pane.Width <= 0 || shot.Pane.Height <= 0 {
		return shot, fault.New(fault.Usage, "--size is %q, not like 120x40", size)
	}
	return shot, nil
}

// explained is an Explanation for people.
func explained(e handoff.Explanation) []byte {
	var b bytes.Buffer
	say := func(head, format string, args ...any) {
		fmt.Fprintf(&b, "%-9s %s\n", head, plain(fmt.Sprintf(format, args...)))
	}
	if e.Terminal != "" {
		say("terminal", "%s  %s", e.Terminal, e.ShortRef)
	}
	rules := "no rule file"
	if e.RuleFile != "" {
		rules = "rules " + e.RuleFile
	}
	say("agent", "%s %s, %s, %s", e.Agent, e.Version, e.Class, rules)
	if p := e.Pane; p != nil {
		closed := ""
		if p.InMode {
			closed = ", closed to keys (copy mode, input off, or synchronized)"
		}
		say("pane", "%s (%s), %dx%d, process %d, %s, in %s%s", p.Target, p.ID, p.Width, p.Height, p.PID, p.Mode, p.Cwd, closed)
	}
	if r := e.Records; r != nil {
		text := "thread " + r.Identity
		if r.Thread != "" {
			text += " " + r.Thread
		}
		text += ", " + r.Activity
		if r.Reason != "" {
			text += " (" + r.Reason + ")"
		}
		say("records", "%s", text)
	}
	say("state", "%s, by the rule %s", e.State, e.Rule)
	for _, p := range e.Evidence {
		where := ""
		if p.Region != "" {
			where = " at " + p.Region
		}
		say("proof", "%s%s: %s", p.Rule, where, p.Detail)
		b.WriteString(region(p.Rows))
	}
	if c := e.Composer; c != nil {
		switch {
		case c.Held != "":
			say("composer", "held: %s", c.Held)
		case c.Empty:
			say("composer", "empty")
		default:
			say("composer", "holds a draft of %d characters", len([]rune(c.Draft)))
		}
	}
	if p := e.Prompt; p != nil {
		say("dialog", "%s: %s", p.Kind, p.Title)
		if p.Command != "" {
			b.WriteString(region(strings.Split(p.Command, "\n")))
		}
		if p.Reason != "" {
			say("", "reason: %s", p.Reason)
		}
		for i, o := range p.Options {
			mark := " "
			if i == p.Selected {
				mark = ">"
			}
			say("", "%s %s", mark, o)
		}
		if p.Cut {
			say("", "the pane has no room for all of it")
		}
	}
	for _, t := range e.Typing {
		if t.Allowed {
			say("may", "%s: %s", t.What, strings.Join(t.Keys, ", then "))
		} else {
			say("may not", "%s: %s [%s]", t.What, t.Why, t.Code)
		}
	}
	if e.Owner != "" {
		say("owner", "%s", e.Owner)
	}
	for _, n := range e.Notes {
		say("note", "%s", n)
	}
	say("next", "%s", e.Next)
	return b.Bytes()
}

// region shows rows of a screen, without the empty ones around them.
func region(rows []string) string {
	return boxed(strings.Trim(strings.Join(rows, "\n"), "\n"))
}

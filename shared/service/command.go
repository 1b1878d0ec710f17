package service

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/peterbourgon/ff/v3"
	"github.com/peterbourgon/ff/v3/ffcli"

	"drawbridge/shared/fault"
)

// Program is one binary's command line.
type Program struct {
	Name     string // "bridge": prefix of messages and, in capitals, of environment settings
	Short    string // one sentence for help
	Stdout   io.Writer
	Stderr   io.Writer
	Plain    bool // failures end with 1, mistakes of the caller with 2, whatever their code; a Status stays
	Commands []*Command
}

// Command is one subcommand: a leaf with Run, or a group with Commands.
type Command struct {
	Name    string
	Args    string // synopsis of the arguments, "<path>"; "" when there are none
	MinArgs int
	MaxArgs int // -1 for any number; less than MinArgs means MinArgs
	Short   string
	Long    string

	// Flags defines the flags. Each is also read from the environment, as
	// <PROGRAM>_<FLAG>, and with a flag named "config" from the file it names.
	Flags func(fs *flag.FlagSet)

	// Run does the work; args are what is left when the flags are taken out,
	// between MinArgs and MaxArgs of them.
	Run func(ctx context.Context, args []string) error

	Commands []*Command

	// OtherSettings lets the configuration file hold settings of the program's
	// other commands: one that looks at what another one serves reads its file.
	OtherSettings bool
}

// Main parses args, runs the chosen command and gives the exit status. Mistakes
// of the caller are 2, failures have the status of their code. When the command
// has a boolean flag "json" and it is set, a failure is also printed as a JSON
// object on stdout.
func (p *Program) Main(ctx context.Context, args []string) int {
	var help bytes.Buffer // what ffcli prints as usage
	root, args, leaf := p.tree(&help, args)
	err := root.Parse(args)
	var noExec ffcli.NoExecError
	switch {
	case errors.Is(err, flag.ErrHelp):
		_, _ = p.Stdout.Write(help.Bytes())
		return ExitOK
	case errors.As(err, &noExec):
		fmt.Fprint(p.Stderr, noExec.Command.UsageFunc(noExec.Command))
		return ExitUsage
	case err != nil:
		return Usage(p.Stderr, p.Name, parseError(p.Name, leaf, err))
	}
	err = root.Run(ctx)
	if errors.Is(err, flag.ErrHelp) {
		_, _ = p.Stdout.Write(help.Bytes())
		return ExitOK
	}
	var status Status
	if err != nil && !errors.As(err, &status) && jsonAsked(leaf) {
		_, _ = p.Stdout.Write(append(errorJSON(err), '\n'))
	}
	code := Exit(p.Stderr, p.Name, err)
	if p.Plain && status == 0 {
		code = plainExit(code)
	}
	return code
}

// tree builds the ffcli tree and brings the arguments of the chosen leaf into
// the order that package flag wants. leaf is nil when args name none.
func (p *Program) tree(help io.Writer, args []string) (root *ffcli.Command, sorted []string, leaf *ffcli.Command) {
	root = p.command(help, nil, &Command{Name: p.Name, Short: p.Short, Commands: p.Commands})
	if len(args) > 0 && strings.EqualFold(args[0], "help") {
		args = append(append([]string(nil), args[1:]...), "-h")
	}
	at, depth := root, 0
	for ; depth < len(args) && len(at.Subcommands) > 0; depth++ {
		i := slices.IndexFunc(at.Subcommands, func(sub *ffcli.Command) bool {
			return strings.EqualFold(args[depth], sub.Name)
		})
		if i < 0 {
			return root, args, nil
		}
		at = at.Subcommands[i]
	}
	if len(at.Subcommands) > 0 {
		return root, args, nil
	}
	sorted = append(sorted, args[:depth]...)
	return root, append(sorted, flagsFirst(at.FlagSet, args[depth:])...), at
}

// command makes one node. Only leaves have flags and settings from the
// environment: a flag on two levels would lose its command-line value.
func (p *Program) command(help io.Writer, path []string, c *Command) *ffcli.Command {
	path = append(append([]string(nil), path...), c.Name)
	full := strings.Join(path, " ")
	fs := flag.NewFlagSet(full, flag.ContinueOnError)
	fs.SetOutput(help)
	out := &ffcli.Command{Name: c.Name, ShortHelp: c.Short, LongHelp: c.Long, FlagSet: fs, UsageFunc: ffcli.DefaultUsageFunc}
	if c.Run == nil {
		out.ShortUsage = full + " <command> [flags] [arguments]"
		for _, sub := range c.Commands {
			out.Subcommands = append(out.Subcommands, p.command(help, path, sub))
		}
		// Without the check ffcli hands an unknown subcommand to its parent.
		out.Exec = func(_ context.Context, args []string) error {
			if len(args) == 0 {
				fmt.Fprint(p.Stderr, out.UsageFunc(out))
				return Status(ExitUsage)
			}
			return usageError("unknown command %q", strings.Join(append(path[1:], args[0]), " ")).(*fault.Error).
				WithHint("%s lists the commands", strings.Join(append([]string{p.Name, "help"}, path[1:]...), " "))
		}
		return out
	}
	if c.Flags != nil {
		c.Flags(fs)
	}
	out.Options = []ff.Option{ff.WithEnvVarPrefix(environmentPrefix(p.Name))}
	if fs.Lookup("config") != nil {
		out.Options = append(out.Options, ff.WithConfigFileFlag("config"), ff.WithConfigFileParser(c.parseConfig(fs)))
	}
	out.ShortUsage = full
	if fs.Lookup("config") != nil || c.Flags != nil {
		out.ShortUsage += " [flags]"
	}
	if c.Args != "" {
		out.ShortUsage += " " + c.Args
	}
	out.Exec = func(ctx context.Context, args []string) error {
		if err := c.checkArgs(full, args); err != nil {
			return err
		}
		return c.Run(ctx, args)
	}
	return out
}

func (c *Command) checkArgs(full string, args []string) error {
	most := max(c.MinArgs, c.MaxArgs)
	var err error
	switch {
	case len(args) < c.MinArgs:
		err = usageError("%s: %d arguments given, %d needed", full, len(args), c.MinArgs)
	case c.MaxArgs >= 0 && len(args) > most:
		err = usageError("%s: unexpected argument %q", full, args[most])
	default:
		return nil
	}
	return err.(*fault.Error).WithHint("usage: %s", strings.TrimSpace(full+" [flags] "+c.Args))
}

// parseError makes one line of what ff and flag say, without their prefixes.
func parseError(program string, leaf *ffcli.Command, err error) error {
	if _, ok := fault.As(err); ok {
		return err
	}
	name := program
	if leaf != nil {
		name = leaf.FlagSet.Name()
	}
	text := strings.TrimPrefix(err.Error(), "error parsing commandline arguments: ")
	text = strings.TrimPrefix(text, "error parsing environment variables: ")
	return usageError("%s: %s", name, text).(*fault.Error).WithHint("%s -h shows the flags", name)
}

// jsonAsked reports whether the leaf has a boolean flag "json" that is set.
func jsonAsked(leaf *ffcli.Command) bool {
	if leaf == nil {
		return false
	}
	f := leaf.FlagSet.Lookup("json")
	return f != nil && isBool(f) && f.Value.String() == "true"
}

// flagsFirst moves flags before arguments, up to "--", since package flag stops
// at the first argument. A value stays behind its flag.
func flagsFirst(fs *flag.FlagSet, args []string) []string {
	var flags, rest []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			rest = append(rest, args[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			rest = append(rest, arg)
			continue
		}
		flags = append(flags, arg)
		name := strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-")
		f := fs.Lookup(name)
		if f != nil && !isBool(f) {
			if i+1 == len(args) {
				return flags // Parse will miss the value
			}
			i++
			flags = append(flags, args[i])
		}
	}
	return append(append(flags, "--"), rest...)
}

func isBool(f *flag.Flag) bool {
	b, ok := f.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

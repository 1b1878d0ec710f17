package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	public "drawbridge/kitrun/kit"

	"drawbridge/kitrun/internal/execution"
	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/strictjson"
)

// kitCommands are the commands on kits, as they stand at the top and below the
// alias kit.
func kitCommands(stdout, stderr io.Writer) []*service.Command {
	c := kitCLI{stdout, stderr}
	return []*service.Command{
		c.install(), c.update(), c.verify(), c.list(), c.status(), c.uninstall(), c.unlock(), c.validate(), c.inspect(),
	}
}

// kitAlias makes a link named flow-agents work: its commands begin with kit.
func kitAlias(commands []*service.Command) *service.Command {
	return &service.Command{Name: "kit", Short: "The same commands, as kits' own tool spells them", Commands: commands}
}

// kitCLI prints; package kit works.
type kitCLI struct{ stdout, stderr io.Writer }

// kitFlags are the settings that every command on a destination has.
type kitFlags struct {
	service.StoreFlags
	dest string
}

func (f *kitFlags) register(fs *flag.FlagSet) {
	f.registerDest(fs)
	fs.StringVar(&f.Config, "config", service.DefaultConfig("kitrun"), "JSON `file` with settings")
}

func (f *kitFlags) registerDest(fs *flag.FlagSet) {
	fs.StringVar(&f.dest, "dest", "", "`workspace` that the kits are in")
}

// registerStore is register for a command that must not change a kit while it runs:
// the Store knows the runs.
func (f *kitFlags) registerStore(fs *flag.FlagSet) {
	f.registerDest(fs)
	f.Register(fs)
}

// keeper changes no kit while it runs.
func (f *kitFlags) keeper() (*kit.Keeper, error) {
	dir, err := f.Path()
	if err != nil {
		return nil, err
	}
	return &kit.Keeper{Live: execution.Live(dir), Wait: execution.UpdateWait}, nil
}

func (c kitCLI) say(format string, args ...any) error {
	_, err := fmt.Fprintf(c.stdout, format+"\n", args...)
	return err
}

func (c kitCLI) document(write func(any) ([]byte, error), o strictjson.Object) error {
	data, err := write(o)
	if err != nil {
		return err
	}
	_, err = c.stdout.Write(append(data, '\n'))
	return err
}

// warn says what is not in the way, on stdout as the public tool does.
func (c kitCLI) warn(warnings []string) error {
	for _, w := range warnings {
		if err := c.say("warning: %s", fault.CleanLine(w)); err != nil {
			return err
		}
	}
	return nil
}

// recovered says what an interrupted change had left.
func (c kitCLI) recovered(r kit.Recovery) {
	for _, id := range r.Restored {
		fmt.Fprintf(c.stderr, "kitrun: an interrupted change of kit '%s' was undone: the registered copy is in its place again\n", id)
	}
	for _, id := range r.Required {
		fmt.Fprintf(c.stderr, "kitrun: recovery_required: a change of kit '%s' was interrupted, and no copy of it matches the registry; nothing was deleted\n", id)
	}
}

func (c kitCLI) install() *service.Command {
	var f kitFlags
	var o kit.InstallOptions
	return &service.Command{
		Name: "install", Args: "<path-or-git-url>", MinArgs: 1, Short: "Copy a kit into a workspace and record its hash",
		OtherSettings: true,
		Flags: func(fs *flag.FlagSet) {
			f.registerStore(fs)
			fs.StringVar(&o.Ref, "ref", "", "`branch` or tag of a git source")
			fs.Func("record-source", "`text` to record instead of the path", func(s string) error {
				o.RecordSource = &s
				return nil
			})
			fs.BoolVar(&o.Force, "force", false, "copy again although nothing changed")
			fs.BoolVar(&o.Update, "update", false, "replace a kit that came from elsewhere")
		},
		Run: func(ctx context.Context, args []string) error {
			o.Source, o.Dest = args[0], f.dest
			keeper, err := f.keeper()
			if err != nil {
				return err
			}
			return c.change(ctx, func(ctx context.Context) (kit.Outcome, error) { return keeper.Install(ctx, o) }, o.RecordSource != nil)
		},
	}
}

func (c kitCLI) update() *service.Command {
	var f kitFlags
	return &service.Command{
		Name: "update", Args: "<id>", MinArgs: 1, Short: "Install a kit again from where it came from",
		OtherSettings: true, Flags: f.registerStore,
		Run: func(ctx context.Context, args []string) error {
			keeper, err := f.keeper()
			if err != nil {
				return err
			}
			return c.change(ctx, func(ctx context.Context) (kit.Outcome, error) { return keeper.Update(ctx, args[0], f.dest) }, false)
		},
	}
}

// change runs an install that an interrupt undoes, and tells how it ended.
func (c kitCLI) change(ctx context.Context, do func(context.Context) (kit.Outcome, error), noted bool) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	out, err := do(ctx)
	c.recovered(out.Recovered)
	if f, ok := fault.As(err); ok {
		switch diagnostics, _ := f.Details["diagnostics"].([]string); f.Code {
		case fault.KitInvalid:
			return c.failed(diagnostics, nil)
		case fault.KitConflict:
			_ = c.warn(out.Warnings)
			_ = c.say("%s", fault.CleanLine(f.Message))
			return service.Status(service.ExitUsage)
		}
	}
	if err != nil {
		return err
	}
	if err := c.warn(out.Warnings); err != nil {
		return err
	}
	note := ""
	if noted {
		note = fmt.Sprintf("; recorded caller-declared source metadata '%s' (hash verifies copied bytes)", out.Source)
	}
	switch {
	case out.Change == kit.Unchanged:
		return c.say("kit '%s' is already installed from %s", out.ID, out.Source)
	case out.Git:
		return c.say("%s git kit '%s' from %s at %s", out.Change, out.ID, out.Source, out.Path)
	}
	return c.say("%s local kit '%s' at %s%s", out.Change, out.ID, out.Path, note)
}

// failed prints what is wrong with a kit.
func (c kitCLI) failed(diagnostics, warnings []string) error {
	if err := c.warn(warnings); err != nil {
		return err
	}
	if err := c.say("Flow Kit repository validation failed:"); err != nil {
		return err
	}
	for _, d := range diagnostics {
		if err := c.say(" - %s", fault.CleanLine(d)); err != nil {
			return err
		}
	}
	return service.Status(service.ExitFail)
}

func (c kitCLI) verify() *service.Command {
	var f kitFlags
	asJSON := false
	return &service.Command{
		Name: "verify", Args: "<id>", MinArgs: 1, Short: "Prove that an installed kit is what was installed and can be run",
		OtherSettings: true,
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&asJSON, "json", false, "print one JSON object, also for an error")
		},
		Run: func(ctx context.Context, args []string) error {
			v, err := public.Verify(ctx, args[0], f.dest)
			if err != nil {
				return err
			}
			return c.document(func(o any) ([]byte, error) { return o.(strictjson.Object).JSON() }, v.JSON())
		},
	}
}

func (c kitCLI) list() *service.Command {
	var f kitFlags
	return &service.Command{
		Name: "list", Short: "List the installed kits as recorded", OtherSettings: true, Flags: f.register,
		Run: func(context.Context, []string) error {
			entries, err := kit.List(f.dest)
			if err != nil {
				return err
			}
			if len(entries) == 0 {
				return c.say("No local Flow Kits installed.")
			}
			for _, e := range entries {
				state := e.Text("state")
				if state == "" {
					state = "unknown"
				}
				if err := c.say("%s | source=%s | hash=%s | installed_at=%s | path=%s | state=%s",
					e.ID(), e.Source(), e.Hash(), e.Text("installed_at"), e.Text("installed_path"), state); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (c kitCLI) status() *service.Command {
	var f kitFlags
	check := false
	return &service.Command{
		Name: "status", Args: "[<id>]", MaxArgs: 1, Short: "Compare the installed kits with what was recorded",
		OtherSettings: true,
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&check, "check", false, "exit 1 unless all are installed")
		},
		Run: func(ctx context.Context, args []string) error {
			id := strings.Join(args, "")
			all, err := kit.Statuses(ctx, f.dest, id)
			if err != nil {
				return err
			}
			if len(all) == 0 && id != "" {
				_ = c.say("local Flow Kit '%s' is not installed", id)
				return service.Status(service.ExitFail)
			}
			if len(all) == 0 {
				return c.say("No local Flow Kits installed.")
			}
			bad := false
			for _, s := range all {
				bad = bad || s.State != kit.Installed
				if err := c.document(strictjson.Indented, s.JSON()); err != nil {
					return err
				}
			}
			if check && bad {
				return service.Status(service.ExitFail)
			}
			return nil
		},
	}
}

func (c kitCLI) uninstall() *service.Command {
	var f kitFlags
	return &service.Command{
		Name: "uninstall", Args: "<id>", MinArgs: 1, Short: "Remove a kit from a workspace", OtherSettings: true, Flags: f.registerStore,
		Run: func(ctx context.Context, args []string) error {
			keeper, err := f.keeper()
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
			defer stop()
			out, err := keeper.Uninstall(ctx, args[0], f.dest)
			c.recovered(out.Recovered)
			if err != nil {
				return err
			}
			if err := c.warn(out.Warnings); err != nil {
				return err
			}
			return c.say("uninstalled local kit '%s' from %s", args[0], out.Path)
		},
	}
}

func (c kitCLI) unlock() *service.Command {
	var f kitFlags
	yes := false
	return &service.Command{
		Name: "unlock", Short: "Remove the lock that a killed install left, and put right what it left half done",
		OtherSettings: true,
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.BoolVar(&yes, "yes", false, "no install is at work on this workspace")
		},
		Run: func(ctx context.Context, _ []string) error {
			out, err := new(kit.Keeper).Unlock(ctx, f.dest, yes)
			c.recovered(out.Recovery)
			switch {
			case err != nil:
				return err
			case !out.Removed:
				return c.say("%s is not locked", f.dest)
			}
			return c.say("unlocked %s", f.dest)
		},
	}
}

func (c kitCLI) validate() *service.Command {
	return &service.Command{
		Name: "validate", Args: "[<dir>]", MaxArgs: 1, Short: "Check a kit before it is installed",
		Run: func(ctx context.Context, args []string) error {
			dir, err := kitDir(args)
			if err != nil {
				return err
			}
			r, err := public.Validate(dir)
			switch {
			case err != nil:
				return err
			case len(r.Errors) > 0:
				return c.failed(r.Errors, r.Warnings)
			}
			if _, err := public.HashTree(ctx, dir, ""); err != nil { // what an install would refuse
				if fault.Is(err, fault.KitTree) {
					return c.failed([]string{err.Error()}, r.Warnings)
				}
				return err
			}
			if err := c.warn(r.Warnings); err != nil {
				return err
			}
			return c.say("Flow Kit repository validation passed: %s", dir)
		},
	}
}

func (c kitCLI) inspect() *service.Command {
	asJSON := false
	return &service.Command{
		Name: "inspect", Args: "[<dir>]", MaxArgs: 1, Short: "Describe a kit as JSON: what it is valid for, and its entry",
		Flags: func(fs *flag.FlagSet) {
			fs.BoolVar(&asJSON, "json", false, "print a JSON object also for an error")
		},
		Run: func(_ context.Context, args []string) error {
			dir, err := kitDir(args)
			if err != nil {
				return err
			}
			i, err := kit.Inspect(dir)
			if err != nil {
				return err
			}
			if err := c.document(strictjson.Indented, i.JSON()); err != nil {
				return err
			}
			if !i.Conformance.K0 {
				return service.Status(service.ExitFail)
			}
			return nil
		},
	}
}

// kitDir is the directory of an argument, else the current one.
func kitDir(args []string) (string, error) {
	if len(args) == 0 {
		return filepath.Abs(".")
	}
	return filepath.Abs(args[0])
}

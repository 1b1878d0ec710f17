package hostcli

import (
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"

	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
	"drawbridge/shared/service"
)

// Commands gives the subcommands host-profile and doctor.
func Commands(stdout io.Writer) []*service.Command {
	return []*service.Command{
		{
			Name: "host-profile", Short: "Show, list and check Host Profiles",
			Commands: []*service.Command{exampleCommand(stdout), listCommand(stdout), validateCommand(stdout)},
		},
		doctorCommand(stdout),
	}
}

func exampleCommand(stdout io.Writer) *service.Command {
	return &service.Command{
		Name: "example", Short: "Print a Profile to start from",
		Run: func(context.Context, []string) error { return Example(stdout) },
	}
}

func listCommand(stdout io.Writer) *service.Command {
	return &service.Command{
		Name: "list", Short: "List the built-in Profiles",
		Run: func(context.Context, []string) error { return List(stdout, profile.BuiltIns()) },
	}
}

// register defines the flags that decide whom the bridge trusts.
func (r *Request) register(fs *flag.FlagSet, name string) {
	service.Argument(fs, &r.Selection, name, "Host Profile: `path` of a JSON file, or the id of a built-in one")
	service.Argument(fs, &r.Host, "host", "`id` of the Host")
	service.Argument(fs, &r.HostVersion, "host-version", "exact `version` of the Host")
}

func validateCommand(stdout io.Writer) *service.Command {
	var r Request
	return &service.Command{
		Name: "validate", Short: "Check a Profile, and with --host its compatibility", Args: "<path-or-id>", MaxArgs: 1,
		Long: "validate checks the document alone: it looks at neither the environment nor the callback\n" +
			"executable. --host and --host-version come together or not at all.",
		Flags: func(fs *flag.FlagSet) { r.register(fs, "profile") },
		Run: func(_ context.Context, args []string) error {
			if (len(args) == 1) == (r.Selection != "") {
				return fault.New(fault.Usage, "validate takes one Profile, as argument or as --profile")
			}
			if len(args) == 1 {
				r.Selection = args[0]
			}
			return Validate(stdout, profile.BuiltIns(), r)
		},
	}
}

func doctorCommand(stdout io.Writer) *service.Command {
	var r Request
	var storeDir, tmux, config string
	return &service.Command{
		Name: "doctor", Short: "Check whether a Host can run the bridge here",
		Long: "doctor makes every check it can and reports all of them as JSON. Run it in the environment\n" +
			"in which the Host will start the bridge. It sends nothing and writes nothing.",
		Flags: func(fs *flag.FlagSet) {
			r.register(fs, "host-profile")
			fs.StringVar(&storeDir, "store-dir", service.DefaultStoreDir(), "`directory` of the Store")
			fs.StringVar(&tmux, "tmux", "", "`path` of tmux (default: the one in PATH)")
			fs.StringVar(&config, "config", service.DefaultConfig("bridge"), "JSON `file` with settings")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			abs, err := filepath.Abs(storeDir)
			if err != nil || storeDir == "" {
				return fault.New(fault.Usage, "-store-dir is empty and has no default: this user has no home directory")
			}
			err = Doctor{
				Registry: profile.BuiltIns(), Environ: os.Environ(),
				Store: checkup.Store("bridge", abs), Siblings: SiblingsProbe(ownDir(), abs), Terminal: TerminalProbe(tmux),
			}.Run(ctx, stdout, r)
			if err == ErrFindings { // the report has said it
				return service.Status(service.ExitFail)
			}
			return err
		},
	}
}

// ownDir is where the bridge's executable lies, links resolved.
func ownDir() string {
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return ""
	}
	return filepath.Dir(exe)
}

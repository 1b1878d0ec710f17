// Package hostbridge is the subcommand that a controller Host starts: it binds
// one process to the Host's Profile and trusted session, opens the Store, serves
// the tools over stdin and stdout, and keeps the siblings running.
//
// The order is that of core §16: freeze the Profile, look at the callback
// executable, open the Store, forget the offers of this controller session, serve
// MCP, and only then read the agents' rules and start the siblings. On the way
// out the session drains first and the siblings are told last. It owns no state
// of its own on disk.
package hostbridge

import (
	"context"
	"errors"
	"flag"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"drawbridge/bridge/internal/mcpserver"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/process"
	"drawbridge/shared/service"
)

// config is what host-bridge was told.
type config struct {
	service.Common
	profile, host, hostVersion string
	with                       string
	sockets                    []string
	untested                   string
	approvalPolicy             string
	codexControl               string
	rulesDir                   string
	inactivity                 float64 // minutes
	hard                       float64
	retention                  float64
}

// Command is bridge host-bridge. The three streams are those of the process.
func Command(stdin io.Reader, stdout, stderr io.Writer) *service.Command {
	var cfg config
	return &service.Command{
		Name:  "host-bridge",
		Short: "Serve the tools to one Host over stdin and stdout",
		Long: "host-bridge is started by a controller Host as its MCP server. It binds itself to the\n" +
			"Host's trusted session, which the Profile says how to find, serves the nineteen tools,\n" +
			"and keeps watchd and outboxd running beside it, and what --with names. It ends with its\n" +
			"stdin, on SIGINT or SIGTERM, or when the Host is gone.",
		Flags: cfg.register,
		Run: func(ctx context.Context, _ []string) error {
			owner := process.OpenOwner()
			if err := cfg.check(); err != nil {
				return err
			}
			return serve(ctx, cfg, owner, stdin, stdout, stderr)
		},
	}
}

func (c *config) register(fs *flag.FlagSet) {
	c.Common.Register(fs, mcpserver.DefaultDrain)
	service.Argument(fs, &c.profile, "profile", "Host Profile: `path` of a JSON file, or the id of a built-in one")
	service.Argument(fs, &c.host, "host", "`id` of the Host")
	service.Argument(fs, &c.hostVersion, "host-version", "exact `version` of the Host")
	fs.StringVar(&c.with, "with", "", "also keep these `programs` running, with commas between them: brokerd, stationd")
	fs.Func("tmux-socket", "search this tmux `socket`, a name or a path; repeatable (default \"default\")", func(s string) error {
		if s == "" {
			return errors.New("is empty")
		}
		c.sockets = append(c.sockets, s)
		return nil
	})
	fs.StringVar(&c.untested, "untested-agents", string(handoff.UntestedSend), "what may be done with agent versions without recorded fixtures: observe, send or all")
	fs.StringVar(&c.approvalPolicy, "approval-policy", "", "JSON `file` of commands that may be approved without asking")
	fs.StringVar(&c.codexControl, "codex-control", "on", "ask the control socket of Codex's daemon: on or off")
	fs.StringVar(&c.rulesDir, "rules-dir", "", "`directory` of rule files that add to the built-in ones or replace them")
	fs.Float64Var(&c.inactivity, "inactivity-minutes", handoff.DefaultInactivity, "a Turn that is quiet for this long is stalled")
	fs.Float64Var(&c.hard, "hard-minutes", handoff.DefaultHard, "longest life of a Turn or Watch")
	fs.Float64Var(&c.retention, "retention-minutes", handoff.DefaultRetention, "an idle Turn is closed after this")
}

// check refuses what cannot work, before anything is opened.
func (c *config) check() error {
	if err := c.Common.Check(); err != nil {
		return err
	}
	for _, need := range []struct{ flag, value string }{
		{"profile", c.profile}, {"host", c.host}, {"host-version", c.hostVersion},
	} {
		if need.value == "" {
			return fault.New(fault.Usage, "host-bridge: --%s is missing", need.flag)
		}
	}
	if err := c.checkWith(); err != nil {
		return err
	}
	return c.checkSettings()
}

// checkSettings is what check asks of the settings that an operator has, too.
func (c *config) checkSettings() error {
	if c.rulesDir != "" {
		abs, err := filepath.Abs(c.rulesDir)
		if err != nil {
			return fault.New(fault.Usage, "host-bridge: --rules-dir: %w", err)
		}
		c.rulesDir = abs // siblings work in another directory
	}
	if c.approvalPolicy != "" {
		abs, err := filepath.Abs(c.approvalPolicy)
		if err != nil {
			return fault.New(fault.Usage, "host-bridge: --approval-policy: %w", err)
		}
		c.approvalPolicy = abs
		if _, err := handoff.LoadPolicy(abs); err != nil { // watchd would end with it later, and say it to nobody
			return err
		}
	}
	switch handoff.Untested(c.untested) {
	case handoff.UntestedObserve, handoff.UntestedSend, handoff.UntestedAll:
	default:
		return fault.New(fault.Usage, "host-bridge: --untested-agents is %q, not observe, send or all", c.untested)
	}
	if c.codexControl != "on" && c.codexControl != "off" {
		return fault.New(fault.Usage, "host-bridge: --codex-control is %q, not on or off", c.codexControl)
	}
	for _, m := range []struct {
		flag  string
		value float64
	}{{"inactivity-minutes", c.inactivity}, {"hard-minutes", c.hard}, {"retention-minutes", c.retention}} {
		if !(m.value > 0 && m.value <= maxMinutes) {
			return fault.New(fault.Usage, "host-bridge: --%s is %v, not more than 0 and at most %d", m.flag, m.value, maxMinutes)
		}
	}
	return nil
}

// maxMinutes is ten years.
const maxMinutes = 10 * 366 * 24 * 60

// checkWith knows the siblings that bridge may also start.
func (c *config) checkWith() error {
	for _, name := range c.extra() {
		if name != "brokerd" && name != "stationd" {
			return fault.New(fault.Usage, "host-bridge: --with names %q, which is not stationd or brokerd", name)
		}
	}
	return nil
}

// extra lists the programs that --with names, each once.
func (c *config) extra() []string {
	var out []string
	if c.with == "" {
		return nil
	}
	for name := range strings.SplitSeq(c.with, ",") {
		if name = strings.TrimSpace(name); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// onOwnerGone makes the end of the Host a stop like any other.
func onOwnerGone(run func(context.Context) error, said func()) func(context.Context) error {
	return func(ctx context.Context) error {
		err := run(ctx)
		if errors.Is(err, process.ErrOwnerGone) {
			said()
			return nil
		}
		return err
	}
}

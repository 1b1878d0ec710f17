package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/files"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/profile"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/watchd/internal/sweep"
)

// serveConfig is what serve was told.
type serveConfig struct {
	service.Common
	once         bool
	interval     time.Duration
	codexControl string
	rulesDir     string
	untested     string
	policyFile   string
	policy       *handoff.Policy
}

// serve is the subcommand that bridge, or an operator, starts.
func serveCommand(stderr io.Writer) *service.Command {
	var cfg serveConfig
	return &service.Command{
		Name:  "serve",
		Short: "Follow every Turn and Watch of a Store until told to stop",
		Long: "serve monitors managed Turns and Terminal Watches and writes what it sees as rows for\n" +
			"outboxd. One watchd of a Store sweeps; others stand by. It types nothing, but where an\n" +
			"approval policy of the operator decides a prompt.",
		Flags: func(fs *flag.FlagSet) {
			cfg.Register(fs, service.DefaultDrain)
			fs.BoolVar(&cfg.once, "once", false, "do one reconciliation pass and one observation of everything, then exit")
			fs.DurationVar(&cfg.interval, "interval", sweep.DefaultInterval, "between two sweeps; events are seen at once besides")
			fs.StringVar(&cfg.codexControl, "codex-control", "on", "ask the control socket of Codex's daemon: on or off")
			fs.StringVar(&cfg.policyFile, "approval-policy", "", "JSON `file` of commands that are approved without asking")
			fs.StringVar(&cfg.untested, "untested-agents", string(handoff.UntestedSend), "what may be done with agent versions without recorded fixtures: observe, send or all")
			fs.StringVar(&cfg.rulesDir, "rules-dir", "", "`directory` of rule files that add to the built-in ones or replace them")
		},
		Run: func(ctx context.Context, _ []string) error {
			if err := cfg.check(os.Environ()); err != nil {
				return err
			}
			return serve(ctx, cfg, stderr)
		},
	}
}

// check refuses what cannot work, before anything is opened.
func (c *serveConfig) check(environ []string) error {
	if err := c.Common.Check(); err != nil {
		return err
	}
	if c.interval < sweep.LeastInterval {
		return fault.New(fault.Usage, "serve: --interval is %v, less than %v", c.interval, sweep.LeastInterval)
	}
	if c.codexControl != "on" && c.codexControl != "off" {
		return fault.New(fault.Usage, "serve: --codex-control is %q, not on or off", c.codexControl)
	}
	switch handoff.Untested(c.untested) {
	case handoff.UntestedObserve, handoff.UntestedSend, handoff.UntestedAll:
	default:
		return fault.New(fault.Usage, "serve: --untested-agents is %q, not observe, send or all", c.untested)
	}
	if c.policyFile != "" {
		var err error
		if c.policy, err = handoff.LoadPolicy(c.policyFile); err != nil {
			return err
		}
	}
	// watchd needs no Profile: every row keeps its own route. A relay that is
	// broken is refused all the same, or bridge and watchd would disagree.
	if _, err := profile.FromRelay(environ); err != nil && !errors.Is(err, profile.ErrNoRelay) {
		return err
	}
	return nil
}

// serve opens, builds, groups and runs.
func serve(ctx context.Context, cfg serveConfig, stderr io.Writer) error {
	log, err := service.OpenLog(service.LogOptions{Program: "watchd", Stderr: stderr, Level: cfg.LogLevel, Format: cfg.LogFormat})
	if err != nil {
		return err
	}
	defer log.Close()
	if err := service.EnsurePrivateDir(cfg.RuntimeDir); err != nil {
		return err
	}
	db, err := store.Open(ctx, store.Options{Dir: cfg.StoreDir, Program: "watchd"})
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Writable(); err != nil {
		return err
	}
	if err := log.Daily(filepath.Join(cfg.StoreDir, store.LogDir)); err != nil {
		log.Warn("no runtime log file", "err", err)
	}
	rules, err := rule.Load(cfg.rulesDir)
	if err != nil {
		return err
	}
	debug.FreeOSMemory() // compiling the rules leaves several MiB, which an idle program would keep

	leases, bell, watcher := store.NewKeeper(db, log.Logger), store.NewDoorbell(db, log.Logger), files.New(log.Logger)
	tmux := terminal.New(terminal.Options{})
	sweeper := &sweep.Sweeper{
		Desk: handoff.New(handoff.Options{
			Store: db, Leases: leases, Bell: bell, Files: watcher, Tmux: tmux,
			Agents: []agent.Adapter{
				codex.New(codex.Options{Rules: rules, Control: cfg.codexControl == "on", Log: log.Logger}),
				claude.New(claude.Options{Rules: rules, Log: log.Logger}),
			},
			RuntimeDir: cfg.RuntimeDir, Untested: handoff.Untested(cfg.untested), Policy: cfg.policy, Log: log.Logger,
		}),
		Store: db, Leases: leases, Bell: bell, Files: watcher, Tmux: tmux,
		Interval: cfg.interval, Standing: service.Ready, Log: log.Logger,
	}
	g := service.Group{Log: log.Logger, Drain: cfg.Drain, Stopping: service.Stopping, Stacks: stderr}
	if err := g.AddLifeline(); err != nil {
		return err
	}
	work := sweeper.Run
	if cfg.once {
		work = sweeper.Once
	}
	g.Add("sweep", work)
	g.Add("leases", leases.Run)
	g.Add("files", watcher.Run)
	g.Add("doorbell", bell.Run)
	return g.Run(ctx)
}

package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"drawbridge/outboxd/internal/deliver"
	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
	"drawbridge/shared/redact"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

// defaultDrain lets the longest callback child end by its own limit.
const defaultDrain = 35 * time.Second

// serveConfig is what serve was told.
type serveConfig struct {
	service.Common
	profile, host, hostVersion string
	allowRouteBound            bool
}

func (c *serveConfig) register(fs *flag.FlagSet) {
	c.Common.Register(fs, defaultDrain)
	service.Argument(fs, &c.profile, "profile", "Host Profile: `path` of a JSON file, or the id of a built-in one")
	service.Argument(fs, &c.host, "host", "`id` of the Host")
	service.Argument(fs, &c.hostVersion, "host-version", "exact `version` of the Host")
	fs.BoolVar(&c.allowRouteBound, "allow-route-bound", false, "deliver for every session of a Profile with the scope route_bound_v1")
}

func serveCommand(stderr io.Writer) *service.Command {
	var cfg serveConfig
	return &service.Command{
		Name: "serve", Short: "Deliver the callbacks of one Profile and controller session",
		Long: "serve gets its Profile from the bridge that starts it, or from --profile, --host and\n" +
			"--host-version; then it reads the session variable itself. Of several for one Profile and\n" +
			"session one delivers, the others stand by. SIGTERM, or the end of the bridge, lets running\n" +
			"callbacks end and starts no more.",
		Flags: cfg.register,
		Run: func(ctx context.Context, _ []string) error {
			if err := cfg.Check(); err != nil {
				return err
			}
			return serve(ctx, cfg, os.Environ(), stderr)
		},
	}
}

// serve freezes the Profile, opens the Store, and runs the courier between the
// lifeline and what carries it.
func serve(ctx context.Context, cfg serveConfig, environ []string, stderr io.Writer) error {
	prof, captured, err := freeze(cfg, environ)
	if err != nil {
		return err
	}
	log, err := service.OpenLog(service.LogOptions{
		Program: "outboxd", Stderr: stderr, Level: cfg.LogLevel, Format: cfg.LogFormat, Redactor: secrets(prof, captured, environ),
	})
	if err != nil {
		return err
	}
	defer log.Close()
	db, err := store.Open(ctx, store.Options{Dir: cfg.StoreDir, Program: "outboxd"})
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

	keeper, bell := store.NewKeeper(db, log.Logger), store.NewDoorbell(db, log.Logger)
	courier := deliver.New(deliver.Options{
		Store: db, Keeper: keeper, Doorbell: bell, Captured: captured, Environ: environ, Log: log.Logger,
		State: func(s deliver.State) {
			service.State(string(s))
			service.Ready()
		},
	})
	g := service.Group{Log: log.Logger, Drain: cfg.Drain, Stopping: service.Stopping, Stacks: stderr}
	if err := g.AddLifeline(); err != nil {
		return err
	}
	g.Add("courier", courier.Run)
	g.Add("leases", keeper.Run)
	g.Add("doorbell", bell.Run)
	return g.Run(ctx)
}

// secrets knows what no line of the log may hold, should a line ever try.
func secrets(prof profile.Profile, captured profile.Captured, environ []string) *redact.Redactor {
	r := redact.New(redact.Options{Paths: map[string]string{service.StateRoot(): "<state>"}})
	r.Learn(captured.Session)
	for _, entry := range prof.Environment(environ) {
		if name, value, _ := strings.Cut(entry, "="); name != "PATH" {
			r.Learn(value)
		}
	}
	return r
}

// freeze takes the Profile from the relay or from the flags, never from both.
func freeze(cfg serveConfig, environ []string) (profile.Profile, profile.Captured, error) {
	captured, err := capture(cfg, environ)
	if err != nil {
		return profile.Profile{}, captured, err
	}
	if captured.Scope == profile.ScopeRouteBound && !cfg.allowRouteBound {
		return profile.Profile{}, captured, fault.New(fault.ScopeNotStandalone, "serve: the Profile has the scope %s", captured.Scope).
			WithHint("a connector that serves many sessions says --allow-route-bound")
	}
	prof, err := captured.Check()
	if err != nil {
		return prof, captured, err
	}
	return prof, captured, prof.Ready()
}

func capture(cfg serveConfig, environ []string) (profile.Captured, error) {
	given := 0
	for _, v := range []string{cfg.profile, cfg.host, cfg.hostVersion} {
		if v != "" {
			given++
		}
	}
	switch {
	case given > 0 && profile.HasRelay(environ):
		return profile.Captured{}, fault.New(fault.Usage, "serve: the Profile comes from the bridge or from flags, not from both").
			WithHint("a relay of the bridge is in the environment")
	case given > 0 && given < 3:
		return profile.Captured{}, fault.New(fault.Usage, "serve: --profile, --host and --host-version are given together")
	case given == 3:
		return fromFlags(cfg, environ)
	}
	captured, err := profile.FromRelay(environ)
	if errors.Is(err, profile.ErrNoRelay) {
		return captured, fault.New(fault.Usage, "serve: no Profile: there is no relay of a bridge, and --profile, --host and --host-version are missing")
	}
	return captured, err
}

func fromFlags(cfg serveConfig, environ []string) (profile.Captured, error) {
	p, src, err := profile.Load(cfg.profile, profile.BuiltIns())
	if err != nil {
		return profile.Captured{}, err
	}
	return profile.Capture(p, src, cfg.host, cfg.hostVersion, environ)
}

func versionFacts() []strictjson.Member {
	return []strictjson.Member{{Name: "store_schema", Value: store.SchemaVersion}}
}

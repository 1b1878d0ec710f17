package hostbridge

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/bridge/internal/mcpserver"
	"drawbridge/bridge/internal/siblings"
	"drawbridge/shared/agent"
	"drawbridge/shared/agent/claude"
	"drawbridge/shared/agent/codex"
	"drawbridge/shared/agent/files"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/process"
	"drawbridge/shared/profile"
	"drawbridge/shared/redact"
	"drawbridge/shared/service"
	"drawbridge/shared/sibling"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/version"
)

const (
	// drainMargin is how much longer the group waits than its parts: each of them
	// keeps the drain deadline by itself.
	drainMargin = time.Second
	// gcPercent lets garbage grow to twice the live heap, which is a few MiB: at
	// Go's default every few dozen calls pay for a collection.
	gcPercent = 200
)

// serve is host-bridge: freeze the Profile, open, build, group, run.
func serve(ctx context.Context, cfg config, owner process.Owner, stdin io.Reader, stdout, stderr io.Writer) error {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	prof, captured, err := freeze(cfg)
	if err != nil {
		return err
	}
	log, err := service.OpenLog(service.LogOptions{
		Program: "bridge", Stderr: stderr, Level: cfg.LogLevel, Format: cfg.LogFormat, Redactor: secrets(prof, captured, os.Environ()),
	})
	if err != nil {
		return err
	}
	defer log.Close()
	if err := service.EnsurePrivateDir(cfg.RuntimeDir); err != nil {
		return err
	}
	db, err := store.Open(ctx, store.Options{Dir: cfg.StoreDir, Program: "bridge"})
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Writable(); err != nil {
		return err
	}
	if _, err := db.DeleteOffers(ctx, captured.Session); err != nil {
		return err
	}
	output := log.Logger // siblings keep the daily file themselves
	if err := log.Daily(filepath.Join(cfg.StoreDir, store.LogDir)); err != nil {
		log.Warn("no runtime log file", "err", err)
	}

	beside := siblings.New(siblings.Options{
		Programs: programs(cfg, prof, captured, log.Logger), Log: log.Logger, Output: output,
	})
	leases, bell, watcher := store.NewKeeper(db, log.Logger), store.NewDoorbell(db, log.Logger), files.New(log.Logger)
	// The rules of the agents take longer to read than all the rest together,
	// and a Host that waits for initialize needs none of them.
	desk := sync.OnceValues(func() (catalog.Handoff, error) {
		return newDesk(cfg, captured, db, leases, bell, watcher, beside.States, log.Logger)
	})
	tools, err := catalog.New(catalog.Options{
		Handoff: func(context.Context) (catalog.Handoff, error) { return desk() }, Log: log.Logger,
		Private: []string{captured.Session, cfg.StoreDir, cfg.RuntimeDir},
		Paths:   []string{prof.Executable(), captured.Selection},
	})
	if err != nil {
		return err
	}
	server, err := mcpserver.New(mcpserver.Options{
		Tools: tools, In: stdin, Out: stdout, Log: log.Logger, Version: version.String(), Drain: cfg.Drain,
	})
	if err != nil {
		return err
	}

	var cut error // of the session, when a signal came first
	g := service.Group{Log: log.Logger, Drain: cfg.Drain + drainMargin, IgnoreSecondSignal: true, Stopping: service.Stopping, Stacks: stderr}
	g.Add("owner", onOwnerGone(owner.Run, func() { log.Info("stopping", "why", "the Host is gone") }))
	g.Add("mcp", func(ctx context.Context) error { cut = server.Run(ctx); return cut })
	g.Add("desk", func(ctx context.Context) error {
		select {
		case <-server.Answered():
		case <-ctx.Done():
			return nil
		}
		if _, err := desk(); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	})
	g.Add("leases", leases.Run)
	g.Add("files", watcher.Run)
	g.Add("doorbell", bell.Run)
	beside.Follow(server.Answered(), server.Deadline) // initialize is answered before any sibling exists
	g.Add("siblings", beside.Run)
	service.Ready()
	if err := g.Run(ctx); err != nil {
		return err
	}
	return cut
}

// freeze reads the Profile and captures what it says about this process.
func freeze(cfg config) (profile.Profile, profile.Captured, error) {
	prof, src, err := profile.Load(cfg.profile, profile.BuiltIns())
	if err != nil {
		return profile.Profile{}, profile.Captured{}, err
	}
	captured, err := profile.Capture(prof, src, cfg.host, cfg.hostVersion, os.Environ())
	if err != nil {
		return profile.Profile{}, profile.Captured{}, err
	}
	if !prof.Standalone() {
		return profile.Profile{}, profile.Captured{}, fault.New(fault.ScopeNotStandalone,
			"host-bridge: the Profile %s has the scope %s, which needs a connector of its own", prof.ID(), prof.Scope())
	}
	return prof, captured, prof.Ready()
}

// secrets gives a redactor that knows the controller session and the values that
// the callback child may see.
func secrets(prof profile.Profile, captured profile.Captured, environ []string) *redact.Redactor {
	paths := map[string]string{service.StateRoot(): "<state>"}
	if home, err := os.UserHomeDir(); err == nil {
		paths[home] = "<home>"
	}
	r := redact.New(redact.Options{Paths: paths})
	r.Learn(captured.Session)
	for _, entry := range prof.Environment(environ) {
		if name, value, _ := strings.Cut(entry, "="); name != "PATH" {
			r.Learn(value)
		}
	}
	return r
}

// newDesk builds what the tools work with.
func newDesk(cfg config, captured profile.Captured, db *store.Store, leases *store.Keeper, bell *store.Doorbell,
	watcher *files.Watcher, states func() map[string]string, log *slog.Logger,
) (catalog.Handoff, error) {
	rules, err := rule.Load(cfg.rulesDir)
	if err != nil {
		return nil, err
	}
	debug.FreeOSMemory() // compiling the rules leaves several MiB, which an idle program would keep
	return handoff.New(handoff.Options{
		Store: db, Leases: leases, Bell: bell, Files: watcher,
		Tmux: terminal.New(terminal.Options{Sockets: cfg.sockets}),
		Agents: []agent.Adapter{
			codex.New(codex.Options{Rules: rules, Control: cfg.codexControl == "on", Log: log}),
			claude.New(claude.Options{Rules: rules, Log: log}),
		},
		RuntimeDir: cfg.RuntimeDir,
		Controller: captured.Session, Route: &captured.Route,
		Untested:   handoff.Untested(cfg.untested),
		Inactivity: cfg.inactivity, Hard: cfg.hard, Retention: cfg.retention,
		Siblings: states, Log: log,
	}), nil
}

// dockerVariables say which engine's workers a brokerd is to be reached by.
var dockerVariables = []string{"DOCKER_HOST"}

// programs lists the siblings. One that is missing is not an error here: it is
// reported by list and status, and by doctor.
func programs(cfg config, prof profile.Profile, captured profile.Captured, log *slog.Logger) []sibling.Program {
	args := []string{"serve", "-store-dir", cfg.StoreDir, "-runtime-dir", cfg.RuntimeDir, "-log-level", cfg.LogLevel, "-log-format", "json"}
	observe := append(slices.Clone(args), "-codex-control", cfg.codexControl, "-untested-agents", cfg.untested)
	if cfg.approvalPolicy != "" {
		observe = append(observe, "-approval-policy", cfg.approvalPolicy)
	}
	if cfg.rulesDir != "" {
		observe = append(observe, "-rules-dir", cfg.rulesDir)
	}
	environ := os.Environ()
	list := []sibling.Program{
		{Name: "watchd", Args: observe, Env: sibling.Environment(environ, nil, captured.Relay())},
		{Name: "outboxd", Args: args, Env: sibling.Environment(environ, prof.Allow(), captured.Relay())},
	}
	for _, name := range cfg.extra() {
		// It serves workers or stations of any Host, so it learns nothing of this one's session.
		p := sibling.Program{Name: name, Args: args, Env: sibling.Environment(environ, dockerVariables, nil)}
		if name == "stationd" {
			// What its own configuration says is for a service manager: here no daemon outlives it.
			p.Args, p.Env = append(slices.Clone(args), "-on-exit", "stop"), sibling.Environment(environ, nil, nil)
		}
		list = append(list, p)
	}
	for i := range list {
		path, err := sibling.Beside(list[i].Name)
		if err != nil {
			log.Error("siblings cannot be found", "err", err)
		}
		list[i].Path = path
	}
	return list
}

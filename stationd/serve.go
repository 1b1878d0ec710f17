package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/access"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/station"
)

const (
	// drainMargin is how much longer the group waits than the attempts: the gate
	// and the control socket end after them.
	drainMargin = 8 * time.Second
	// actingPoll is the time between two looks at whether this stationd acts.
	actingPoll = 50 * time.Millisecond
	// standbyAfter is how long a stationd that does not act yet may only have begun.
	standbyAfter = time.Second
)

func serveCommand(stderr io.Writer) *service.Command {
	var cfg serveConfig
	return &service.Command{
		Name: "serve", Short: "Run the stations of this host",
		Long: "serve takes up what an earlier stationd left, answers the other commands on the control socket in\n" +
			"the runtime directory, and lets clients through the bridge to the daemons. One stationd acts for a\n" +
			"Store and host; a second one stands by. At the end it stops all attempts, or with -on-exit keep\n" +
			"leaves them to the next one, for as long as -orphan says.",
		Flags: cfg.register,
		Run: func(ctx context.Context, _ []string) error {
			if err := cfg.check(); err != nil {
				return err
			}
			return serve(ctx, cfg, stderr)
		},
	}
}

// serve opens, builds, groups and runs.
func serve(ctx context.Context, cfg serveConfig, stderr io.Writer) error {
	bridge, err := cfg.listener()
	if err != nil {
		return err
	}
	defer bridge.Close()
	redactor := cfg.redactor(os.Environ())
	log, err := service.OpenLog(service.LogOptions{
		Program: "stationd", Stderr: stderr, Level: cfg.LogLevel, Format: cfg.LogFormat, Redactor: redactor,
	})
	if err != nil {
		return err
	}
	defer log.Close()
	for _, dir := range []string{cfg.RuntimeDir, cfg.stateDir} {
		if err := service.EnsurePrivateDir(dir); err != nil {
			return err
		}
	}
	db, err := store.Open(ctx, store.Options{Dir: cfg.StoreDir, Program: "stationd"})
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
	providers, err := cfg.providers(ctx, log.Logger)
	if err != nil {
		return err
	}
	defer providers.close()
	who, err := access.New(ctx, db, log.Logger)
	if err != nil {
		return err
	}
	defer who.Close()
	bell := store.NewDoorbell(db, log.Logger)
	changes, cancel := bell.Subscribe()
	defer cancel()
	front, err := gate.New(gate.Options{
		Listeners: []net.Listener{bridge}, Authorizer: who, Changes: changes, Detach: cfg.onExit == station.OnExitKeep, Log: log.Logger,
	})
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fault.New(fault.Internal, "ask for the name of this host: %w", err)
	}
	m, err := station.New(station.Options{
		Store: db, Host: host, Gate: front, Access: who, Providers: providers, Profiles: cfg.stationProfiles, Egress: cfg.egressProfiles,
		Internal: internal(ctx, db, bridge), StateDir: cfg.stateDir, Environ: os.Environ(),
		Orphan: cfg.orphan, Grace: cfg.grace, Drain: cfg.Drain, OnExit: cfg.onExit, Log: log.Logger,
	})
	if err != nil {
		return err
	}
	api := control.Options{
		RuntimeDir: cfg.RuntimeDir, Store: db, Bell: bell, Manager: m, GatePort: front.Port(), Redactor: redactor, Log: log.Logger,
	}

	g := service.Group{Log: log.Logger, Drain: cfg.Drain + drainMargin, Stopping: service.Stopping, Stacks: stderr}
	if err := g.AddLifeline(); err != nil {
		return err
	}
	g.Add("control", func(ctx context.Context) error { return answer(ctx, m, db, api, bridge.Addr().String(), log.Logger) })
	g.Add("stations", m.Run)
	g.Add("gate", front.Run)
	g.Add("access", who.Run)
	g.Add("doorbell", bell.Run)
	g.Add("watchdog", watchdog(m.Healthy))
	return g.Run(ctx)
}

// answer serves the control socket while this stationd acts, and says that it is
// ready. Before that, and while another one acts, it stands by.
func answer(ctx context.Context, m *station.Manager, db *store.Store, api control.Options, bridge string, log *slog.Logger) error {
	for {
		lease := acting(ctx, m)
		if lease == nil {
			return nil
		}
		switch err := ensureSelf(ctx, db, lease); {
		case ctx.Err() != nil:
			return nil
		case fault.Is(err, fault.LeaseLost):
			continue
		case err != nil:
			return err
		}
		term, end := context.WithCancel(ctx)
		var watching sync.WaitGroup
		watching.Go(func() {
			defer end()
			pause(term, func() bool { return m.Lease() != lease })
		})
		err := control.New(api).Run(term, func() {
			service.State("active")
			service.Ready()
			log.Info("serving", "bridge", bridge, "control", filepath.Join(api.RuntimeDir, control.Socket))
		})
		end()
		watching.Wait()
		if err != nil {
			return err
		}
	}
}

// acting waits until this stationd acts, and has taken up what was left; nil when ctx
// ends first.
func acting(ctx context.Context, m *station.Manager) (lease *store.Lease) {
	told, since := false, time.Now()
	pause(ctx, func() bool {
		select {
		case <-m.Recovered():
			lease = m.Lease()
		default:
		}
		if m.Lease() == nil && !told && time.Since(since) > standbyAfter {
			service.State("standby")
			told = true
		}
		return lease != nil
	})
	return lease
}

// pause looks now and then, until over says so or ctx ends.
func pause(ctx context.Context, over func() bool) {
	tick := time.NewTicker(actingPoll)
	defer tick.Stop()
	for !over() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ensureSelf gives the user that runs stationd a principal, at the first start.
func ensureSelf(ctx context.Context, db *store.Store, l *store.Lease) error {
	uid := os.Geteuid()
	name := "uid-" + strconv.Itoa(uid)
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		_, err := db.EnsurePeer(ctx, l, u.Username, int64(uid))
		if !fault.Is(err, fault.InvalidArguments) { // not every user's name is a principal's
			return err
		}
	}
	_, err := db.EnsurePeer(ctx, l, name, int64(uid))
	return err
}

// redactor knows the secrets in the environment and the directories.
func (c *serveConfig) redactor(environ []string) *redact.Redactor {
	paths := map[string]string{service.StateRoot(): "<state>", c.stateDir: "<state>", c.RuntimeDir: "<run>", c.StoreDir: "<store>"}
	if home, err := os.UserHomeDir(); err == nil {
		paths[home] = "<home>"
	}
	r := redact.New(redact.Options{Paths: paths})
	for _, secret := range launch.Known(environ, launch.Spec{}) {
		r.Learn(secret.Reveal())
	}
	return r
}

// internal are the addresses of the gate and of brokerd, where no way out leads.
func internal(ctx context.Context, db *store.Store, bridge net.Listener) (out []netip.AddrPort) {
	if a, ok := bridge.Addr().(*net.TCPAddr); ok {
		out = append(out, a.AddrPort())
	}
	endpoints, err := db.Endpoints(ctx)
	if err != nil {
		return out // every address of this host is closed besides
	}
	for _, e := range endpoints {
		if addr, err := netip.ParseAddr(e.BindAddress); err == nil && e.Port > 0 && e.Port <= 65535 {
			out = append(out, netip.AddrPortFrom(addr, uint16(e.Port)))
		}
	}
	return out
}

// watchdog tells systemd, as often as it asks, that the supervisor's loop turns; it
// is silent when it does not.
func watchdog(healthy func() bool) func(context.Context) error {
	return func(ctx context.Context) error {
		every, err := daemon.SdWatchdogEnabled(false)
		if err != nil || every == 0 {
			<-ctx.Done()
			return nil
		}
		tick := time.NewTicker(every / 2)
		defer tick.Stop()
		for {
			if healthy() {
				_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}
}

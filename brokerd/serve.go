package main

import (
	"context"
	"crypto/x509"
	"flag"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"drawbridge/brokerd/internal/broker"
	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
	"drawbridge/shared/workernet"
)

const (
	maxRoots       = 4 << 20 // bytes of the file of -ca-file
	maxConnections = 4096    // that -max-connections may ask for
)

// serveConfig is what serve was told.
type serveConfig struct {
	service.Common
	listen, allowHeaders, denyMembers words
	relayPort, connections            uint
	advertise, dockerHost, network    string
	proxy, roots, testUpstream        string
	metrics                           string
}

// words is a flag that may be repeated.
type words []string

func (w *words) String() string { return strings.Join(*w, " ") }

func (w *words) Set(value string) error {
	*w = append(*w, value)
	return nil
}

func (c *serveConfig) register(fs *flag.FlagSet) {
	c.Common.Register(fs, service.DefaultDrain)
	fs.Var(&c.listen, "listen", "auto, all[:PORT], IP[:PORT] or unix:PATH; may be repeated (default auto)")
	fs.UintVar(&c.relayPort, "relay-port", broker.DefaultRelayPort, "`port` at which a worker finds the relay to a socket file")
	fs.StringVar(&c.advertise, "advertise-host", broker.DefaultHost, "`host` in the base URL: "+broker.DefaultHost+" or the literal of an address")
	fs.StringVar(&c.dockerHost, "docker-host", "", "`address` of the container engine (default DOCKER_HOST, else the usual socket)")
	fs.StringVar(&c.network, "network", workernet.DefaultName, "`name` of the network of the workers")
	fs.StringVar(&c.proxy, "upstream-proxy", "", "`URL` of a proxy for upstream calls; the proxy variables of the environment have no effect")
	fs.StringVar(&c.roots, "ca-file", "", "PEM `file` with the roots to trust upstream, instead of the system's")
	fs.Var(&c.allowHeaders, "allow-request-header", "`name` of one more request header to pass on; may be repeated")
	fs.Var(&c.denyMembers, "deny-body-key", "`name` of a member of the body that refuses a request; may be repeated")
	fs.StringVar(&c.testUpstream, "test-upstream", "", "`URL` on a loopback address that stands in for the provider; takes test credentials only")
	fs.UintVar(&c.connections, "max-connections", upstream.MaxConnections, "the most connections of workers at one time, up to 4096")
	fs.StringVar(&c.metrics, "metrics", "", "loopback `address` and port of a metrics page (default none)")
}

func serveCommand(stderr io.Writer) *service.Command {
	var cfg serveConfig
	return &service.Command{
		Name: "serve", Short: "Serve the grants of one Store",
		Long: "serve takes up grants that kitrun or brokerd grant ask for in the Store, answers the requests\n" +
			"of workers that hold a capability, and sends them to the provider with the host's credential.\n" +
			"One brokerd serves a Store; a second one ends with status 75. SIGTERM ends every grant. When\n" +
			"the program that started it ends, it serves until no grant is left.",
		Flags: cfg.register,
		Run: func(ctx context.Context, _ []string) error {
			if err := cfg.Common.Check(); err != nil {
				return err
			}
			return serve(ctx, cfg, stderr)
		},
	}
}

// serve checks all settings, opens the Store, and runs the broker between what
// tells it to stop and what carries it.
func serve(ctx context.Context, cfg serveConfig, stderr io.Writer) error {
	opt, err := cfg.options()
	if err != nil {
		return err
	}
	defer closeListeners(opt.Inherited)
	opt.Redactor = redact.New(redact.Options{Paths: map[string]string{service.StateRoot(): "<state>"}})
	log, err := service.OpenLog(service.LogOptions{
		Program: "brokerd", Stderr: stderr, Level: cfg.LogLevel, Format: cfg.LogFormat, Redactor: opt.Redactor,
	})
	if err != nil {
		return err
	}
	defer log.Close()
	db, err := store.Open(ctx, store.Options{Dir: cfg.StoreDir, Program: "brokerd"})
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Writable(); err != nil {
		return err
	}
	if err := alone(ctx, db); err != nil {
		return err
	}
	if err := log.Daily(filepath.Join(cfg.StoreDir, store.LogDir)); err != nil {
		log.Warn("no runtime log file", "err", err)
	}

	g := service.Group{Log: log.Logger, Drain: cfg.Drain, Stopping: service.Stopping, Stacks: stderr}
	orphaned, err := lifeline(&g)
	if err != nil {
		return err
	}
	keeper, bell := store.NewKeeper(db, log.Logger), store.NewDoorbell(db, log.Logger)
	opt.Store, opt.Keeper, opt.Doorbell, opt.Log = db, keeper, bell, log.Logger
	opt.Orphaned, opt.Ready, opt.Beat = orphaned.ended, service.Ready, watchdog()
	b, err := broker.New(opt)
	if err != nil {
		return err
	}
	g.Add("broker", b.Run)
	orphaned.add(&g)
	g.Add("leases", keeper.Run)
	g.Add("doorbell", bell.Run)
	return g.Run(ctx)
}

// alone refuses to start beside a brokerd that lives on the Store. Of two that start
// at the same time the lease itself decides.
func alone(ctx context.Context, db *store.Store) error {
	rows, err := db.Leases(ctx, store.BrokerdLease())
	if err != nil || len(rows) == 0 || !rows[0].Live {
		return err
	}
	who := "another brokerd"
	if parts := strings.Split(rows[0].Holder, "/"); len(parts) > 2 {
		who += " (pid " + parts[2] + ")"
	}
	return fault.New(fault.LeaseHeld, "serve the Store: %s serves it", who).
		WithHint("brokerd status shows where it listens; it takes grants as it is, or end it first")
}

// options turns the settings into what a Broker takes, and refuses what it would
// not run with. A listener of socket activation stands instead of -listen.
func (c serveConfig) options() (broker.Options, error) {
	opt := broker.Options{
		RelayPort: int(c.relayPort), AdvertiseHost: c.advertise, Network: c.network, Metrics: c.metrics,
		MaxConnections: int(c.connections), AllowHeaders: c.allowHeaders, DenyMembers: c.denyMembers, DockerHost: broker.EngineHost(c.dockerHost),
	}
	if c.relayPort == 0 || c.relayPort > 65535 {
		return opt, fault.New(fault.Usage, "-relay-port is %d, not between 1 and 65535", c.relayPort)
	}
	if c.connections == 0 || c.connections > maxConnections {
		return opt, fault.New(fault.Usage, "-max-connections is %d, not between 1 and %d", c.connections, maxConnections)
	}
	if err := broker.CheckHost(c.advertise); err != nil {
		return opt, err
	}
	if c.metrics != "" {
		if err := broker.CheckLoopback(c.metrics); err != nil {
			return opt, err
		}
	}
	for _, name := range c.allowHeaders {
		if err := upstream.CheckHeader(name); err != nil {
			return opt, fault.New(fault.Usage, "-allow-request-header: %w", err)
		}
	}
	for _, value := range c.listen {
		l, err := broker.ParseListen(value)
		if err != nil {
			return opt, err
		}
		opt.Listen = append(opt.Listen, l)
	}
	if c.testUpstream != "" {
		origin, err := upstream.ParseTestOrigin(c.testUpstream)
		if err != nil {
			return opt, fault.New(fault.Usage, "%w", err)
		}
		opt.TestOrigin = origin
	}
	transport, err := c.transport()
	if err != nil {
		return opt, err
	}
	opt.Transport = transport
	if opt.Inherited, err = inherited(); err != nil {
		return opt, err
	}
	switch {
	case len(opt.Inherited) > 0 && len(opt.Listen) > 0:
		closeListeners(opt.Inherited)
		return opt, fault.New(fault.Usage, "-listen is given, and listeners are inherited; it must be one of them")
	case len(opt.Inherited) == 0 && len(opt.Listen) == 0:
		auto, err := broker.ParseListen("auto")
		if err != nil {
			return opt, err
		}
		opt.Listen = []broker.Listen{auto}
	}
	return opt, nil
}

func (c serveConfig) transport() (http.RoundTripper, error) {
	var o upstream.TransportOptions
	if c.proxy != "" {
		u, err := url.Parse(c.proxy)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
			return nil, fault.New(fault.Usage, "-upstream-proxy is not http://HOST:PORT or https://HOST:PORT, without a password")
		}
		o.Proxy = u
	}
	if c.roots != "" {
		f, err := os.Open(c.roots)
		if err != nil {
			return nil, fault.New(fault.Usage, "-ca-file: %w", err)
		}
		defer f.Close()
		pem, err := io.ReadAll(io.LimitReader(f, maxRoots))
		o.Roots = x509.NewCertPool()
		if err != nil || !o.Roots.AppendCertsFromPEM(pem) {
			return nil, fault.New(fault.Usage, "-ca-file %s holds no certificate in PEM form", c.roots)
		}
	}
	return upstream.NewTransport(o), nil
}

// inherited gives the listeners of socket activation, none without it.
func inherited() ([]net.Listener, error) {
	all, err := activation.Listeners()
	if err != nil {
		return nil, fault.New(fault.ListenerUnavailable, "use inherited listeners: %w", err)
	}
	for _, l := range all {
		if l == nil {
			closeListeners(all)
			return nil, fault.New(fault.ListenerUnavailable, "use inherited listeners: one of them is no stream listener")
		}
	}
	return all, nil
}

func closeListeners(all []net.Listener) {
	for _, l := range all {
		if l != nil {
			_ = l.Close()
		}
	}
}

// owner is the lifeline of a brokerd that another program started. Its end is no
// stop: grants of others may still need this process.
type owner struct {
	line  *service.Lifeline
	ended chan struct{} // nil without a lifeline
}

func lifeline(g *service.Group) (owner, error) {
	line, err := service.OpenLifeline()
	if line == nil || err != nil {
		return owner{}, err
	}
	g.Sibling = true
	return owner{line, make(chan struct{})}, nil
}

func (o owner) add(g *service.Group) {
	if o.line == nil {
		return
	}
	g.Add("lifeline", func(ctx context.Context) error {
		err := o.line.Run(ctx)
		close(o.ended)
		<-ctx.Done()
		return err
	})
}

// watchdog gives what tells systemd, as often as it asks, that the work goes on.
func watchdog() func() {
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return func() {}
	}
	var last time.Time
	return func() {
		if now := time.Now(); now.Sub(last) >= every/2 {
			last = now
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
	}
}

func versionFacts() []strictjson.Member {
	return []strictjson.Member{{Name: "store_schema", Value: store.SchemaVersion}}
}

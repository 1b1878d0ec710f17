// Package broker lends a provider credential as capabilities: it takes up the
// grants that creators ask for in the Store, serves them on its listeners, and ends
// them (broker §1–4, §10, §11). What happens to one request is package upstream's.
//
// # Who writes what
//
// A creator inserts a grant in state requested and may ask for its close; all other
// moves are made here, under the lease brokerd/main, of which a Store has one.
// The credential is read when a grant is taken up and stays in memory. No row, log
// line or event holds it, nor the capability.
//
// # Crashes
//
// A grant that was active is served on by the next brokerd, when its endpoint, its
// credential and its budget are still what they were; else it is closed with the
// reason. Rows of requests that were under way become interrupted and stay spent.
// The row of a registered run's budget is committed before its ledger file is
// written, and the grant is activated after it, so that a crash between the two is
// known by a grant that is still requested.
//
// # Stopping
//
// When its context ends, Run accepts no more, closes every grant with the reason
// broker_shutdown within CloseWait, and leaves requested grants alone: their
// creators find the lease free and start a brokerd of their own. When Orphaned
// ends first, the owner of this process is gone: Run goes on until no grant is
// left, because other creators may depend on it.
package broker

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
)

// Bounds (broker §17).
const (
	CloseWait  = 5 * time.Second        // for the handlers of a grant that ends
	poll       = 250 * time.Millisecond // behind the bell, for grants to take up or close
	look       = time.Second            // at every grant, for what no row says: creators that are gone
	tamperWait = time.Second            // until a grant ends whose ledger file was touched
	purgeEvery = time.Hour
	purgePause = 50 * time.Millisecond
	startWait  = 10 * time.Second // for the Store, when a grant is to be ended at the stop
)

// Reasons of a close that brokerd itself gives, beside those of package store.
const (
	reasonShutdown    = "broker_shutdown"
	reasonCreatorGone = "creator_gone"
	reasonEndpoint    = "endpoint_lost"
	reasonDoubt       = "activation_in_doubt"
)

// Options of a Broker. Store, Keeper, Doorbell and Log are required.
type Options struct {
	Store    *store.Store
	Keeper   *store.Keeper
	Doorbell *store.Doorbell

	Listen        []Listen       // ParseListen
	Inherited     []net.Listener // of socket activation, instead of Listen
	RelayPort     int            // advertised for a socket file
	AdvertiseHost string         // CheckHost
	DockerHost    string         // EngineHost
	Network       string         // of the workers
	Metrics       string         // CheckLoopback; "": no metrics page

	Transport    http.RoundTripper // of upstream.NewTransport
	TestOrigin   string            // of upstream.ParseTestOrigin; "": live
	AllowHeaders []string
	DenyMembers  []string

	MaxConnections int // of workers; 0: upstream.MaxConnections

	Log      *slog.Logger
	Redactor *redact.Redactor // learns the secrets that this process holds; nil: none
	Now      func() time.Time // nil: time.Now
	Orphaned <-chan struct{}  // ends with the owner of this process; nil: it has none
	Ready    func()           // called once it serves
	Beat     func()           // called while it works, four times a second or more
}

// Broker serves the grants of one Store.
type Broker struct {
	opt     Options
	log     *slog.Logger
	vault   *vault
	meter   *upstream.Meter
	journal *upstream.Journal
	handler *upstream.Handler

	lease     *store.Lease
	endpoints []store.Endpoint

	mu       sync.RWMutex
	sessions map[string]*session

	closes sync.WaitGroup // closes under way
}

// session is one live grant.
type session struct {
	id         string
	facts      upstream.Grant // no id: it is not served
	credential string         // path
	kind       string
	budget     *store.Lease // nil: a budget of its own
	unkeep     func()
	anchor     *anchor
	tampered   atomic.Int64 // ms when the anchor was found wrong; 0: never
	unreadable atomic.Value // code of the last failure to read the credential again, "" after a success
	closing    bool         // Broker.mu
}

// New makes a Broker.
func New(opt Options) (*Broker, error) {
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Ready == nil {
		opt.Ready = func() {}
	}
	if opt.Beat == nil {
		opt.Beat = func() {}
	}
	b := &Broker{
		opt: opt, log: opt.Log, vault: newVault(opt.Now, opt.Redactor), meter: upstream.NewMeter(), sessions: map[string]*session{},
	}
	ledger := ledger{b}
	b.journal = upstream.NewJournal(ledger, opt.Log)
	var err error
	b.handler, err = upstream.NewHandler(upstream.Options{
		Ledger: ledger, Journal: b.journal, Credentials: b.credential, Transport: opt.Transport,
		TestOrigin: opt.TestOrigin, AllowHeaders: opt.AllowHeaders, DenyMembers: opt.DenyMembers, MaxConnections: opt.MaxConnections,
		Log: opt.Log, Now: opt.Now, Meter: b.meter,
	})
	return b, err
}

// Run serves until ctx ends, until its owner and all grants are gone, or until the
// lease is lost. lease_held: another brokerd serves this Store.
func (b *Broker) Run(ctx context.Context) error {
	l, err := b.opt.Store.Acquire(ctx, store.BrokerdLease(), store.LeaseTTL)
	if err != nil {
		return err
	}
	b.lease = l
	held, stop := b.opt.Keeper.Keep(context.WithoutCancel(ctx), l)
	defer stop()
	defer func() {
		if err := b.opt.Store.Release(context.WithoutCancel(ctx), l); err != nil && !fault.Is(err, fault.LeaseLost) {
			b.log.Warn("lease not given back", "err", err)
		}
	}()
	metrics, err := b.metrics()
	if err != nil {
		return err
	}
	all, err := b.start(ctx)
	if err != nil {
		metrics.end()
		return err
	}
	return b.serve(ctx, held, all, metrics)
}

// start repairs what a dead brokerd left, listens, and takes its grants over.
func (b *Broker) start(ctx context.Context) (all []bound, err error) {
	n, err := b.opt.Store.InterruptRequests(ctx, b.lease)
	if err != nil {
		return nil, err
	}
	if n > 0 {
		b.log.Warn("requests were under way when the last brokerd died; they stay spent", "count", n)
	}
	old, err := b.opt.Store.Endpoints(ctx)
	if err != nil {
		return nil, err
	}
	if all, err = (listeners{opt: &b.opt, old: old}).open(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeAll(all)
		}
	}()
	rows := make([]store.NewEndpoint, len(all))
	for i, l := range all {
		rows[i] = l.row
	}
	if b.endpoints, err = b.opt.Store.OpenEndpoints(ctx, b.lease, rows); err != nil {
		return nil, err
	}
	for _, e := range b.endpoints {
		b.log.Info("listening", "address", e.BindAddress, "port", e.Port, "base_url", e.BaseURL, "reason", e.BindReason, "transport_mode", e.TransportMode)
	}
	return all, b.adopt(ctx)
}

// serve runs the servers and the work on grants, and ends them in order: accept no
// more, close the grants, write what is left.
func (b *Broker) serve(ctx, held context.Context, all []bound, metrics *metricsServer) (err error) {
	journalCtx, endJournal := context.WithCancel(context.WithoutCancel(ctx))
	defer endJournal()
	var running, working, journal sync.WaitGroup
	failed := make(chan error, len(all)+3)
	report := func(err error) {
		if err != nil {
			failed <- err
		}
	}
	journal.Go(func() { report(b.journal.Run(journalCtx)) })
	server := upstream.Server(b.handler)
	for _, l := range all {
		running.Go(func() { report(served(server.Serve(b.handler.Listen(l)))) })
	}
	if metrics != nil {
		running.Go(func() { report(served(metrics.serve())) })
	}

	work, endWork := context.WithCancel(held)
	defer endWork()
	orphan := make(chan struct{})
	working.Go(func() {
		if b.work(work) {
			close(orphan)
		}
	})
	working.Go(func() { b.purge(work) })
	b.opt.Ready()

	select {
	case <-ctx.Done():
	case <-orphan:
		b.log.Info("the owner is gone and no grant is left")
	case <-held.Done():
		err = context.Cause(held)
	case err = <-failed:
	}
	b.log.Info("stopping", "grants", b.live())
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseWait)
	defer cancel()
	var shut sync.WaitGroup
	shut.Go(func() { _ = server.Shutdown(stopping) }) // accepts no more from here on
	endWork()
	working.Wait()
	if held.Err() == nil {
		b.closeAll(reasonShutdown)
	} else {
		b.abandon(stopping)
	}
	b.closes.Wait()
	cancel()
	shut.Wait()
	_ = server.Close()
	metrics.end()
	running.Wait()
	endJournal()
	journal.Wait()
	if held.Err() == nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), startWait)
		defer cancel()
		err = errors.Join(err, b.opt.Store.EndEndpoints(ending, b.lease))
	}
	return err
}

// served turns the end of a server that was told to end into nil.
func served(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fault.New(fault.ListenerUnavailable, "serve: %w", err)
}

// work takes up, watches and closes grants until ctx ends; orphaned reports that
// it ended because nobody needs it.
func (b *Broker) work(ctx context.Context) (orphaned bool) {
	wake, cancel := b.opt.Doorbell.Subscribe()
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	owner := b.opt.Orphaned
	alone, all := false, true
	var looked time.Time
	for {
		if all || time.Since(looked) >= look {
			looked = time.Now()
			err := b.pass(ctx)
			switch {
			case err != nil && ctx.Err() == nil:
				b.log.Warn("look at the grants", "err", err)
			case err == nil && alone && b.live() == 0:
				return true
			}
		}
		b.opt.Beat()
		all = true
		select {
		case <-ctx.Done():
			return false
		case <-owner:
			b.log.Info("the owner is gone; serving until no grant is left", "grants", b.live())
			owner, alone = nil, true
		case <-wake:
		case <-tick.C:
			waiting, err := b.opt.Store.GrantsWaiting(ctx)
			all = waiting || err != nil || alone
		}
	}
}

// purge removes old rows, a batch at a time.
func (b *Broker) purge(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		more, err := b.opt.Store.PurgeGrants(ctx, b.lease)
		if err != nil && ctx.Err() == nil {
			b.log.Warn("remove old grants", "err", err)
		}
		timer.Reset(purgeEvery)
		if more && err == nil {
			timer.Reset(purgePause)
		}
	}
}

// live counts the grants that are served or about to be closed.
func (b *Broker) live() int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return len(b.sessions)
}

func closeAll[T io.Closer](all []T) {
	for _, c := range all {
		_ = c.Close()
	}
}

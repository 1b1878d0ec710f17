// Package deliver is outboxd's work: it claims callback rows of one route family
// and has each delivered, at most four at a time and never two of one Turn or
// Watch (core §8).
//
// One Courier delivers for a route family: it holds the lease
// outboxd/<digest of Profile id and session>, others stand by. Every attempt is
// bracketed: the claim is committed, the Profile is read again and compared, all
// checks that need no process are made, the start marker is committed, the
// program runs, the outcome is committed. Where a crash cuts this:
//
//	after the claim      nothing was started; the row is due again, the attempt counted
//	after the marker     the Host may have it; the row becomes uncertain and is never repeated
//	after the child      as after the marker
//	after the outcome    nothing is left to do
//
// The claim lives longer than any child can, so a live attempt is never taken
// over. On stop no new attempt starts, running ones end by their own limits and
// are settled, and the lease is released.
//
// Nothing that is logged names the session, an argument or a variable's value.
package deliver

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"drawbridge/shared/callback"
	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
	"drawbridge/shared/store"
)

// Bounds (core §8.3, §12, §14).
const (
	Parallel    = 4               // attempts at one time
	Poll        = 5 * time.Second // behind the doorbell and the times at which rows are due
	standByPoll = time.Second     // between two tries for the lease, at most
	settleTries = 5               // each waits for the write lock by itself
	settlePause = 200 * time.Millisecond
	quiet       = time.Minute // between two log lines of the same trouble
)

// A State is what a Courier does.
type State string

// The states.
const (
	Delivering State = "delivering" // the lease is held
	Standby    State = "standby"    // another one holds it, or nothing can be claimed now
)

// Options of a Courier. All but Log, Now, Poll and State are required.
type Options struct {
	Store    *store.Store
	Keeper   *store.Keeper
	Doorbell *store.Doorbell
	Captured profile.Captured
	Environ  []string // from which the Profile's variables are taken

	Log   *slog.Logger
	Now   func() time.Time
	Poll  time.Duration // default Poll
	State func(State)   // told when it changes
}

// A Courier delivers the callbacks of one route family.
type Courier struct {
	opt    Options
	family store.RouteFamily
	lease  string

	state   State         // told last; of Run's own goroutine
	ended   chan struct{} // an attempt came to its end
	running int           // of Run's own goroutine
	attempt sync.WaitGroup
	passed  func()               // tests wait for passes here; nil in programs
	trouble map[string]time.Time // last log line of each
}

// New makes a Courier.
func New(opt Options) *Courier {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	if opt.Poll <= 0 {
		opt.Poll = Poll
	}
	if opt.State == nil {
		opt.State = func(State) {}
	}
	route := opt.Captured.Route
	return &Courier{
		opt: opt,
		family: store.RouteFamily{
			ProfileID: route.ProfileID, ControllerSessionID: route.ControllerSessionID,
			RouteBound: opt.Captured.Scope == profile.ScopeRouteBound,
		},
		lease:   store.OutboxdLease(route.ProfileID, route.ControllerSessionID),
		ended:   make(chan struct{}, Parallel),
		trouble: map[string]time.Time{},
	}
}

// Run delivers until ctx ends, then waits for the attempts that run. Keeper and
// Doorbell must run longer than it. Only a Store that cannot be written ends it
// with an error.
func (c *Courier) Run(ctx context.Context) error {
	defer c.attempt.Wait()
	if err := c.opt.Store.Writable(); err != nil {
		return err
	}
	wake, cancel := c.opt.Doorbell.Subscribe()
	defer cancel()
	timer := time.NewTimer(c.opt.Poll)
	defer timer.Stop()
	w := waker{wake, timer, c.ended}
	for ctx.Err() == nil {
		lease := c.standBy(ctx, w)
		if lease == nil {
			break
		}
		c.hold(ctx, lease, w)
	}
	return nil
}

// waker is everything that makes a pass worth while.
type waker struct {
	bell  <-chan struct{}
	timer *time.Timer
	end   <-chan struct{}
}

// standBy waits for the lease; nil when ctx ended first.
func (c *Courier) standBy(ctx context.Context, w waker) *store.Lease {
	said := false
	for {
		lease, err := c.opt.Store.Acquire(ctx, c.lease, store.LeaseTTL)
		switch {
		case err == nil:
			c.opt.Log.Info("delivering", "epoch", lease.Epoch)
			c.say(Delivering)
			return lease
		case ctx.Err() != nil:
			return nil
		case fault.Is(err, fault.LeaseHeld):
			if !said {
				c.opt.Log.Info("standing by: another outboxd delivers for this Profile and session")
				said = true
			}
			c.say(Standby)
		default:
			c.complain("take lease", err)
			c.say(Standby)
		}
		if !c.wait(ctx, w, min(c.opt.Poll, standByPoll)) {
			return nil
		}
	}
}

// hold delivers while the lease is held and ctx lasts. The lease is released
// after the last attempt, so that a successor does not meet our claims.
func (c *Courier) hold(ctx context.Context, lease *store.Lease, w waker) {
	held, stop := c.opt.Keeper.Keep(context.WithoutCancel(ctx), lease)
	defer stop()
	for ctx.Err() == nil && held.Err() == nil && c.alive(ctx, lease) {
		c.pass(ctx, lease)
		c.wait(ctx, w, c.rest(ctx))
	}
	if ctx.Err() == nil {
		c.opt.Log.Warn("lease lost: claiming stops, running attempts are settled", "running", c.running)
		c.say(Standby)
		return
	}
	c.drain()
	if err := c.opt.Store.Release(context.WithoutCancel(ctx), lease); err != nil {
		c.complain("release lease", err)
	}
}

// say tells what the Courier does, when that changes.
func (c *Courier) say(s State) {
	if c.state != s {
		c.state = s
		c.opt.State(s)
	}
}

// alive looks at the lease before the keeper does: a suspend may have eaten it.
func (c *Courier) alive(ctx context.Context, lease *store.Lease) bool {
	if lease.Live() {
		return true
	}
	lost, err := c.opt.Store.Renew(ctx, lease)
	if err != nil && ctx.Err() == nil {
		c.complain("renew lease", err)
	}
	return err == nil && len(lost) == 0
}

// rest gives how long to wait for a bell: until the next row is due, and no
// longer than the poll.
func (c *Courier) rest(ctx context.Context) time.Duration {
	due, ok, err := c.opt.Store.NextDue(ctx, c.family)
	if err != nil || !ok {
		return c.opt.Poll
	}
	left := time.UnixMilli(due).Sub(c.opt.Now())
	return min(max(left, 0)+time.Millisecond, c.opt.Poll)
}

// wait blocks until there may be something to do, at most for d; false when ctx
// ended.
func (c *Courier) wait(ctx context.Context, w waker, d time.Duration) bool {
	w.timer.Reset(d)
	select {
	case <-ctx.Done():
		return false
	case <-w.bell:
	case <-w.timer.C:
	case <-w.end:
		c.running--
	}
	for { // what has ended meanwhile too
		select {
		case <-w.end:
			c.running--
		default:
			return ctx.Err() == nil
		}
	}
}

// drain waits for the running attempts.
func (c *Courier) drain() {
	if c.running > 0 {
		c.opt.Log.Info("draining: no new attempt starts", "running", c.running)
	}
	for c.running > 0 {
		<-c.ended
		c.running--
	}
}

// pass settles claims that nobody can finish and fills the free places. A row
// is taken in the order of its last attempt, and of one Turn or Watch only while
// no other attempt of it runs: both are in the claim statement.
func (c *Courier) pass(ctx context.Context, lease *store.Lease) {
	if _, err := c.opt.Store.ExpireClaims(ctx); err != nil && ctx.Err() == nil {
		c.complain("settle expired claims", err)
	}
	if c.passed != nil {
		defer c.passed()
	}
	for c.running < Parallel && ctx.Err() == nil && lease.Live() {
		row, ok, err := c.opt.Store.ClaimCallback(ctx, lease, c.family, c.claimTTL())
		if err != nil {
			if ctx.Err() == nil && !fault.Is(err, fault.LeaseLost) {
				c.complain("claim", err)
				c.say(Standby) // whoever asks must not believe that callbacks leave
			}
			return
		}
		c.say(Delivering)
		if !ok {
			return
		}
		c.running++
		c.attempt.Go(func() {
			defer func() { c.ended <- struct{}{} }()
			c.deliver(context.WithoutCancel(ctx), lease, row)
		})
	}
}

// claimTTL is longer than any child under this format can live. The Profile on
// disk may have changed, so the largest timeout counts, not the captured one.
func (c *Courier) claimTTL() time.Duration {
	return max(store.ClaimTTLLeast, profile.MaxTimeout+store.ClaimTTLOverhead)
}

// complain logs one kind of trouble at most once in a while.
func (c *Courier) complain(what string, err error) {
	key := what + " " + string(fault.CodeOf(err))
	if last, ok := c.trouble[key]; ok && c.opt.Now().Sub(last) < quiet {
		return
	}
	c.trouble[key] = c.opt.Now()
	c.opt.Log.Warn("cannot "+what, "err", err)
}

// routeOf rebuilds the route that a row was made with. Its capabilities are not
// kept in the row and decide nothing here.
func routeOf(row store.Callback) callback.Route {
	return callback.Route{
		Schema: profile.RouteSchema, Version: profile.RouteVersion, Transport: row.RouteTransport,
		ProfileID: row.RouteProfileID, ProfileRevision: row.RouteProfileRevision, ControllerSessionID: row.RouteControllerSessionID,
	}
}

var errPanic = errors.New("panic while delivering")

// Package siblings starts the programs that work beside bridge (watchd,
// outboxd and what --with names) and keeps them running while bridge lives.
//
// Each sibling is a child in a process group of its own, because Hosts kill the
// group of bridge, and has a lifeline that ends with bridge (package sibling).
// Bridge never signals and never kills one.
//
// A sibling says by sd_notify how it is: READY=1, and STATUS=standby while
// another one holds its lease. One that exits by itself is started again after
// 1, 2, 4 … 30 s; after five exits within a minute it is marked failed and tried
// every 30 s until it is ready again. A sibling that cannot be started is an
// exit too. One that ends because another process holds its lease, as brokerd does
// where watchd and outboxd stand by, counts as a stand-by and is tried every 30 s.
// Nothing of this ends bridge.
//
// On stop the lifelines are closed, and Run waits for what is left of the
// drain; a sibling with more to finish goes on without bridge.
package siblings

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/sibling"
)

// State of a sibling as list and status show it. One that has not said that it
// is ready yet counts as a stand-by.
type State string

// The states (tools §8.1).
const (
	Up      State = "up"
	Standby State = "standby"
	Failed  State = "failed"
)

// leaseHeld is the exit status of a program whose lease another process holds.
var leaseHeld = fault.ExitCode(fault.New(fault.LeaseHeld, "held"))

// Timing of restarts and of the stop. Zero fields take the defaults.
type Timing struct {
	FirstPause  time.Duration // before the first restart; doubles each time
	MostPause   time.Duration
	FailedPause time.Duration // between tries of a sibling that failed, or is not needed
	Window      time.Duration // in which Exits exits make it failed
	Exits       int
	StartAnyway time.Duration // start without a word from the Host after this
	Stop        time.Duration // wait for the siblings' end when no deadline is known
}

func (t Timing) withDefaults() Timing {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&t.FirstPause, time.Second)
	def(&t.MostPause, 30*time.Second)
	def(&t.FailedPause, 30*time.Second)
	def(&t.Window, time.Minute)
	def(&t.StartAnyway, 5*time.Second)
	def(&t.Stop, 3*time.Second)
	if t.Exits <= 0 {
		t.Exits = 5
	}
	return t
}

// Options of Siblings. Programs and Log are required.
type Options struct {
	Programs []sibling.Program
	Log      *slog.Logger // what happens to the siblings
	Output   *slog.Logger // what they write; nil: Log
	Timing   Timing
	Now      func() time.Time
}

// Siblings is the one actor that owns all of them.
type Siblings struct {
	opts   Options
	notify *sibling.Notify // nil when there is no socket: a running sibling is up

	start    <-chan struct{}  // nil: at once
	deadline func() time.Time // nil: Timing.Stop after the stop

	mu    sync.Mutex
	kept  []*kept
	byPID map[int]*kept
}

// kept is one program with what is known of its current process.
type kept struct {
	sibling.Program

	// Guarded by Siblings.mu.
	ready   bool
	standby bool
	failed  bool
	exits   []time.Time // within Window, oldest first
	pause   time.Duration
}

// New prepares the siblings and the socket on which they say how they are.
// Nothing is started before Run.
func New(o Options) *Siblings {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Output == nil {
		o.Output = o.Log
	}
	o.Timing = o.Timing.withDefaults()
	s := &Siblings{opts: o, byPID: map[int]*kept{}}
	for _, p := range o.Programs {
		s.kept = append(s.kept, &kept{Program: p})
	}
	n, err := sibling.OpenNotify("bridge")
	if err != nil {
		o.Log.Warn("siblings cannot tell their state", "err", err)
	}
	s.notify = n
	return s
}

// Follow makes Run wait until start is closed, at most Timing.StartAnyway, and
// stop by the deadline that is known then, unless it is zero. It is called before
// Run, if at all.
func (s *Siblings) Follow(start <-chan struct{}, deadline func() time.Time) {
	s.start, s.deadline = start, deadline
}

// States gives the state of every sibling by name.
func (s *Siblings) States() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]string, len(s.kept))
	for _, k := range s.kept {
		out[k.Name] = string(k.state())
	}
	return out
}

func (k *kept) state() State {
	switch {
	case k.failed:
		return Failed
	case k.ready && !k.standby:
		return Up
	}
	return Standby
}

// Run keeps the siblings until ctx is done, then stops them.
func (s *Siblings) Run(ctx context.Context) error {
	var listening sync.WaitGroup
	if s.notify != nil {
		listening.Go(func() { s.notify.Listen(s.heard) })
		defer listening.Wait()
		defer s.notify.Close()
	}
	anyway := time.NewTimer(s.opts.Timing.StartAnyway)
	defer anyway.Stop()
	if s.start != nil {
		select {
		case <-s.start:
		case <-anyway.C:
		case <-ctx.Done():
			return nil
		}
	}
	var keepers sync.WaitGroup
	for _, k := range s.kept {
		keepers.Go(func() { s.keep(ctx, k) })
	}
	keepers.Wait()
	return nil
}

// keep runs one sibling over and over.
func (s *Siblings) keep(ctx context.Context, k *kept) {
	for ctx.Err() == nil {
		c, err := s.spawn(k)
		held := false
		if err != nil {
			s.opts.Log.Error("sibling cannot start", "sibling", k.Name, "err", err)
		} else if held, err = s.attend(ctx, k, c); err != nil {
			return
		}
		pause := s.ended(k, held)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// spawn runs the program. Its pid is known to heard before it can speak.
func (s *Siblings) spawn(k *kept) (*sibling.Child, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := k.Start(s.opts.Output, s.notify)
	if err != nil {
		return nil, err
	}
	k.ready, k.standby = s.notify == nil, false
	s.byPID[c.PID()] = k
	return c, nil
}

// errStopped is the end of a sibling that was told to stop.
var errStopped = errors.New("stopped")

// attend waits until the child has ended by itself and says whether that was for a
// lease that another process holds; or it stops it, and gives errStopped.
func (s *Siblings) attend(ctx context.Context, k *kept, c *sibling.Child) (held bool, err error) {
	defer c.Release()
	how, ended := c.Wait(ctx)
	s.mu.Lock()
	delete(s.byPID, c.PID())
	s.mu.Unlock()
	if ended {
		if c.ExitCode() == leaseHeld {
			s.opts.Log.Debug("sibling is not needed: another process holds its lease", "sibling", k.Name)
			return true, nil
		}
		s.opts.Log.Warn("sibling ended", "sibling", k.Name, "how", how)
		return false, nil
	}
	c.CutLifeline()
	last, cancel := context.WithDeadline(context.WithoutCancel(ctx), s.lastMoment())
	defer cancel()
	if how, ended = c.Wait(last); !ended {
		s.opts.Log.Info("sibling still drains and is left to its own deadline", "sibling", k.Name, "sibling_pid", c.PID())
	} else {
		s.opts.Log.Debug("sibling ended", "sibling", k.Name, "how", how)
	}
	return false, errStopped
}

func (s *Siblings) lastMoment() time.Time {
	if s.deadline != nil {
		if d := s.deadline(); !d.IsZero() {
			return d
		}
	}
	return time.Now().Add(s.opts.Timing.Stop)
}

// ended counts one exit and gives the pause before the next start.
func (s *Siblings) ended(k *kept, held bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, now := s.opts.Timing, s.opts.Now()
	if held {
		k.ready, k.standby, k.failed, k.exits, k.pause = false, true, false, nil, 0
		return t.FailedPause
	}
	if k.ready && !k.failed && len(k.exits) > 0 && now.Sub(k.exits[len(k.exits)-1]) > t.Window {
		k.pause = 0 // it ran well for a while
	}
	k.ready, k.standby = false, false
	recent := k.exits[:0]
	for _, at := range k.exits {
		if now.Sub(at) < t.Window {
			recent = append(recent, at)
		}
	}
	k.exits = append(recent, now)
	if !k.failed && len(k.exits) >= t.Exits {
		k.failed = true
		s.opts.Log.Error("sibling keeps ending and is marked failed; tools that need it refuse", "sibling", k.Name,
			"exits", len(k.exits), "next_try", t.FailedPause)
	}
	if k.failed {
		k.exits = nil
		k.pause = 0
		return t.FailedPause
	}
	k.pause = min(max(2*k.pause, t.FirstPause), t.MostPause)
	return k.pause
}

// heard takes in what the process pid said of itself.
func (s *Siblings) heard(pid int, m sibling.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.byPID[pid]
	if k == nil {
		return
	}
	before := k.state()
	if m.Status != "" {
		k.standby = m.Standby
	}
	if m.Ready {
		k.ready, k.failed = true, false
	}
	if after := k.state(); after != before || m.Ready {
		s.opts.Log.Info("sibling", "sibling", k.Name, "state", string(after), "sibling_pid", pid)
	}
}

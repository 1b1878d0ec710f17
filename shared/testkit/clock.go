package testkit

import (
	"sync"
	"time"
)

// Clock is a wall clock and a boot-time clock that stand still until moved. Its
// methods may be called from several goroutines; pass c.Now and c.Boot where
// code wants a clock.
type Clock struct {
	mu   sync.Mutex
	wall time.Time
	boot int64
}

// NewClock starts at 2026-01-02 03:04:05 UTC with 1,000,000 ms since boot.
func NewClock() *Clock {
	return &Clock{wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), boot: 1_000_000}
}

// Now gives the wall clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wall
}

// Boot gives the milliseconds since boot.
func (c *Clock) Boot() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.boot
}

// Advance moves both clocks, as time does.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
	c.boot += d.Milliseconds()
}

// Step moves the wall clock alone, as an operator or a time server does.
func (c *Clock) Step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall = c.wall.Add(d)
}

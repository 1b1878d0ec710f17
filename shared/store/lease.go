package store

import (
	"sync/atomic"
	"time"
)

// Times of leases (core §3.1).
const (
	TerminalTTL = 60 * time.Second
	LeaseTTL    = 15 * time.Second
	LeaseMargin = 2 * time.Second // an effect outside the Store starts only this long before the end
)

// Lease is a right held by this process. It stays a value of the holder: Live
// says whether an effect outside the Store may still start.
type Lease struct {
	Name   string
	Holder string
	BootID string
	Epoch  int64
	TTL    time.Duration

	until atomic.Int64 // boot-time ms; 0 = lost or released
	boot  func() (int64, string)
}

// LeaseRow is a row of the leases table.
type LeaseRow struct {
	Name       string
	Holder     string // "" = free
	BootID     string
	Epoch      int64
	AcquiredAt int64 // boot-time ms
	ExpiresAt  int64
	Live       bool // held, of this boot, not expired, holder not proven dead
}

package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"time"

	"drawbridge/shared/fault"
)

// Times of leases (core §3.1).
const (
	TerminalTTL = 60 * time.Second
	LeaseTTL    = 15 * time.Second
	LeaseMargin = 2 * time.Second // an effect outside the Store starts only this long before the end
	awaitPoll   = 20 * time.Millisecond
)

// Lease is a right held by this process. Every write under it is conditional on
// its holder and epoch; Live says whether an effect outside the Store may start.
type Lease struct {
	Name   string
	Holder string
	BootID string
	Epoch  int64 // fencing token: grows with every holder
	TTL    time.Duration

	until atomic.Int64 // end, ms of the boot-time clock; 0: lost or released
	boot  func() (int64, string)
}

// LeaseRow is a row of the leases table.
type LeaseRow struct {
	Name       string
	Holder     string // "" = free
	BootID     string
	Epoch      int64
	AcquiredAt int64 // ms of the boot-time clock
	ExpiresAt  int64
	Live       bool // held, of this boot, not over, holder not proven dead
}

// TerminalLease names the right to observe-then-type in a pane.
func TerminalLease(terminalKey string) string { return "terminal/" + terminalKey }

// MonitorLease names the right to monitor one message of a Turn.
func MonitorLease(turnID, messageID string) string { return "monitor/" + turnID + "/" + messageID }

// AcceptLease names the right to decide which equal request an agent home took.
func AcceptLease(homeID, requestHash string) string {
	return "codex-accept/" + homeID + "/" + requestHash
}

// WatchdLease names the one sweeping watchd.
func WatchdLease() string { return "watchd/main" }

// OutboxdLease names the one outboxd of a route family.
func OutboxdLease(profileID, controllerSessionID string) string {
	sum := sha256.Sum256([]byte(profileID + "\x00" + controllerSessionID))
	return "outboxd/" + hex.EncodeToString(sum[:])
}

// held is the fencing condition of every write under a lease.
const held = `EXISTS (SELECT 1 FROM leases
  WHERE name = :lease AND holder = :lease_holder AND epoch = :lease_epoch AND boot_id = :boot_id AND expires_at > :boot)`

var (
	leaseAcquire = define(`
INSERT INTO leases(name, holder, boot_id, epoch, acquired_at, expires_at)
VALUES (:name, :holder, :boot_id, 1, :boot, :boot + :ttl)
ON CONFLICT(name) DO UPDATE
SET holder = :holder, boot_id = :boot_id, epoch = leases.epoch + 1, acquired_at = :boot, expires_at = :boot + :ttl
WHERE leases.holder = '' OR leases.boot_id <> :boot_id OR leases.expires_at <= :boot`)

	leaseFree = define(`
UPDATE leases
SET holder = ''
WHERE name = :name AND holder = :holder AND epoch = :epoch`)

	leaseRenew = define(`
UPDATE leases
SET expires_at = :boot + :ttl
WHERE name = :lease AND holder = :lease_holder AND epoch = :lease_epoch AND boot_id = :boot_id AND expires_at > :boot`)

	leaseHeld = define(`SELECT ` + held)

	leaseRow = define(`
SELECT name, holder, boot_id, epoch, acquired_at, expires_at
FROM leases
WHERE name = :name`)

	leaseRows = define(`
SELECT name, holder, boot_id, epoch, acquired_at, expires_at
FROM leases
WHERE name >= :prefix AND name < :end
ORDER BY name`)
)

func scanLease(r scanner) (l LeaseRow, err error) {
	err = r.Scan(&l.Name, &l.Holder, &l.BootID, &l.Epoch, &l.AcquiredAt, &l.ExpiresAt)
	return l, err
}

// Acquire takes a lease or fails with lease_held (detail "holder": the program
// that has it). A holder whose process is proven dead is replaced at once.
func (s *Store) Acquire(ctx context.Context, name string, ttl time.Duration) (*Lease, error) {
	if err := s.Writable(); err != nil {
		return nil, err
	}
	row, ok, err := first(pool{ctx, s.rdb}, scanLease, leaseRow, "name", name)
	if err != nil {
		return nil, storeError("read lease", err)
	}
	if ok && s.live(row, s.opt.Gone) { // those who wait do not take the write lock in vain
		return nil, leaseTaken(row)
	}
	// A row that is not live by time is free; by death, only as it was seen.
	l, row, err := s.acquire(ctx, name, ttl, row)
	if err == nil && l == nil {
		err = leaseTaken(row)
	}
	return l, err
}

// Await is Acquire that tries again until wait has passed.
func (s *Store) Await(ctx context.Context, name string, ttl, wait time.Duration) (*Lease, error) {
	deadline := time.Now().Add(wait)
	for {
		l, err := s.Acquire(ctx, name, ttl)
		if !fault.Is(err, fault.LeaseHeld) || !time.Now().Before(deadline) {
			return l, err
		}
		select {
		case <-time.After(awaitPoll):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// acquire tries once, after it freed the row of a holder that is not live. Without
// a lease it gives the row that stands in the way.
func (s *Store) acquire(ctx context.Context, name string, ttl time.Duration, dead LeaseRow) (l *Lease, row LeaseRow, err error) {
	err = s.transact(ctx, func(t *tx) error {
		t.silent = true
		if dead.Holder != "" {
			if _, err := t.exec(leaseFree, "name", name, "holder", dead.Holder, "epoch", dead.Epoch); err != nil {
				return err
			}
		}
		taken, err := t.exec(leaseAcquire, "name", name, "holder", t.holder,
			"boot_id", t.bootID, "boot", t.boot, "ttl", ttl.Milliseconds())
		if err != nil {
			return err
		}
		if row, _, err = first(t, scanLease, leaseRow, "name", name); err != nil || taken == 0 {
			return err
		}
		l = &Lease{Name: name, Holder: t.holder, BootID: t.bootID, Epoch: row.Epoch, TTL: ttl, boot: s.opt.Boot}
		l.until.Store(t.boot + ttl.Milliseconds())
		return nil
	})
	if err != nil {
		return nil, row, err
	}
	return l, row, nil
}

// Renew prolongs leases in one transaction and rings no bell. Those that are not
// held any more come back in lost and are dead for good.
func (s *Store) Renew(ctx context.Context, leases ...*Lease) (lost []*Lease, err error) {
	if len(leases) == 0 {
		return nil, nil
	}
	var began int64
	err = s.transact(ctx, func(t *tx) error {
		t.silent, began = true, t.boot
		for _, l := range leases {
			n, err := t.exec(leaseRenew, append(t.under(l), "ttl", l.TTL.Milliseconds())...)
			if err != nil {
				return err
			}
			if n == 0 {
				lost = append(lost, l)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		if end := l.until.Load(); end != 0 {
			l.until.CompareAndSwap(end, began+l.TTL.Milliseconds())
		}
	}
	for _, l := range lost {
		l.until.Store(0)
	}
	return lost, nil
}

// Release frees leases; a lease that was lost before is left alone.
func (s *Store) Release(ctx context.Context, leases ...*Lease) error {
	if len(leases) == 0 {
		return nil
	}
	for _, l := range leases {
		l.until.Store(0)
	}
	return s.transact(ctx, func(t *tx) error {
		for _, l := range leases {
			if _, err := t.exec(leaseFree, "name", l.Name, "holder", l.Holder, "epoch", l.Epoch); err != nil {
				return err
			}
		}
		return nil
	})
}

// Leases lists the lease rows whose name begins with prefix.
func (s *Store) Leases(ctx context.Context, prefix string) ([]LeaseRow, error) {
	rows, err := leasesOf(pool{ctx, s.rdb}, prefix)
	if err != nil {
		return nil, storeError("list leases", err)
	}
	gone := s.holders()
	for i := range rows {
		rows[i].Live = s.live(rows[i], gone)
	}
	return rows, nil
}

func leasesOf(q queryer, prefix string) ([]LeaseRow, error) {
	return list(q, scanLease, leaseRows, "prefix", prefix, "end", prefix+"\U0010FFFF")
}

func (s *Store) live(r LeaseRow, over func(holder string) (gone, known bool)) bool {
	boot, bootID := s.opt.Boot()
	if r.Holder == "" || r.BootID != bootID || r.ExpiresAt <= boot {
		return false
	}
	gone, known := over(r.Holder)
	return !gone || !known
}

// holders gives Options.Gone with a memory, for one look at many rows: they have
// few holders, and each question reads /proc.
func (s *Store) holders() func(holder string) (gone, known bool) {
	type answer struct{ gone, known bool }
	seen := map[string]answer{}
	return func(holder string) (gone, known bool) {
		a, ok := seen[holder]
		if !ok {
			a.gone, a.known = s.opt.Gone(holder)
			seen[holder] = a
		}
		return a.gone, a.known
	}
}

// Live reports whether an effect outside the Store may start now: the lease was
// not lost and has more than LeaseMargin left.
func (l *Lease) Live() bool {
	boot, bootID := l.boot()
	return bootID == l.BootID && boot < l.until.Load()-LeaseMargin.Milliseconds()
}

// Check gives nil while Live, else lease_lost.
func (l *Lease) Check() error {
	if l.Live() {
		return nil
	}
	return leaseGone(l)
}

// over reports whether the lease has ended by its own clock.
func (l *Lease) over() bool {
	boot, bootID := l.boot()
	return bootID != l.BootID || boot >= l.until.Load()
}

// under gives the parameters of held.
func (t *tx) under(l *Lease) []any {
	return []any{"lease", l.Name, "lease_holder", l.Holder, "lease_epoch", l.Epoch, "boot_id", t.bootID, "boot", t.boot}
}

// guard fails with lease_lost unless l is held at this moment.
func (t *tx) guard(l *Lease) error {
	if l == nil {
		return fault.New(fault.Internal, "write without the lease that it needs")
	}
	ok, _, err := first(t, scanInt, leaseHeld, t.under(l)...)
	if err == nil && ok == 0 {
		return leaseGone(l)
	}
	return err
}

func leaseGone(l *Lease) error {
	return fault.New(fault.LeaseLost, "write under lease %s: it is not held any more", leaseKind(l.Name))
}

func leaseTaken(row LeaseRow) error {
	program, _, _ := strings.Cut(row.Holder, "/")
	return fault.New(fault.LeaseHeld, "take lease %s: %s holds it", leaseKind(row.Name), program).With("holder", program)
}

// leaseKind is what may be said of a lease in a message.
func leaseKind(name string) string {
	kind, _, _ := strings.Cut(name, "/")
	return kind
}

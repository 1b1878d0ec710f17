// Package store is drawbridge's one database: a SQLite file that all programs
// share, its leases, and the doorbell by which a commit in one program wakes
// the others. It is the only package that knows SQL; a row crosses its border
// as a plain struct, JSON as opaque bytes.
//
// # On disk
//
// One directory of mode 0700 holds store.db, store.db-wal, store.db-shm, bell
// and log/, all private. Open refuses a symlink at any of these names, makes a Store
// only in an empty directory, and never adopts a foreign database.
//
// # Moves
//
// Every state change is one exported method and one BEGIN IMMEDIATE
// transaction that does nothing but SQL. A move compares the old state (and,
// under a lease, the lease's holder and epoch) in the same transaction; when
// nothing matches it changes nothing and returns a fault.Error whose code says
// why: lease_lost, turn_status_invalid, session_conflict, watch_conflict and so
// on. Nothing is retried blindly. What can never be true whoever writes it
// (forbidden status pairs, changed receipts, settled Watches) is refused by
// triggers of the schema besides.
//
// Wall time comes from Options.Now, once for each transaction, and never makes
// a row go back in time. Leases and claims count on the boot-time clock.
//
// # Writing and waiting
//
// One connection writes. It does not use SQLite's busy handler, which lets one
// process starve the others for seconds: it tries again every 0.2 to 1.2 ms
// until WriteWait has passed, then store_busy. Readers are a small pool. After a
// commit the byte in bell changes, and a Doorbell of any program wakes. A program
// that is stopped (SIGSTOP) inside a transaction holds up all writers until it goes
// on or dies; transactions last well below a millisecond, so that is rare.
//
// A Store of another writer protocol or a newer schema is read and never
// written: every move fails with store_incompatible before anything happens.
//
// # Crash points
//
// These names of package crashpoint stand right behind the commit they name:
// prepared, input_marked, text_injected, enter_dispatched, agent_accepted,
// dispatch_settled, dispatch_aborted, approval_notified, approval_reserved,
// approval_consumed, approval_doubted, question_seen, question_notified,
// watch_question_notified, interaction_reserved, interaction_executing,
// interaction_returned, interaction_sent, interaction_advanced,
// interaction_doubted, superseded_stalled,
// completion_claimed, turn_stalled, turn_renewed, cancel_committed,
// close_committed, transition_prepared, transition_dispatching,
// transition_submitted, transition_verified, transition_committed,
// transition_aborted, transition_uncertain, watch_created, watch_notified, watch_settled,
// offer_consumed, callback_claimed, callback_started, callback_settled,
// budget_prepared, grant_activated, request_reserved, request_settled,
// grant_closing, grant_closed,
// worker_admitted, worker_created, worker_running, worker_ended,
// kit_run_begun, kit_run_running, kit_run_ended,
// attempt_begun, attempt_launching, shim_recorded, daemon_recorded, attempt_ready,
// stop_requested, attempt_stopping, attempt_ended, attempt_purged,
// lease_acquired, lease_releasing, lease_released.
package store

import (
	"database/sql"
	"sync"
	"time"
)

// Format, protocol and schema numbers of this build.
const (
	Schema         = "drawbridge/store"
	FormatVersion  = 1
	WriterProtocol = 1
)

// Bounds.
const (
	WriteWait     = 10 * time.Second // until store_busy (core §14)
	readWait      = 10 * time.Second // busy timeout of readers
	retryMin      = 200 * time.Microsecond
	retryMax      = 1200 * time.Microsecond
	walLimit      = 64 << 20  // journal_size_limit
	WALComplaint  = 128 << 20 // doctor complains above it
	readers       = 5         // pooled reading connections, one of them for the Doorbell
	statementKeep = 128       // prepared statements kept by one connection
)

// Names inside the Store directory.
const (
	dbName   = "store.db"
	bellName = "bell"
	LogDir   = "log"
)

// Options configure Open. The zero value of every field but Dir and Program is
// usable.
type Options struct {
	Dir      string // Store directory; made if absent
	Program  string // "bridge", "watchd", …: first part of lease holders
	ReadOnly bool   // make nothing, migrate nothing, refuse every mutation

	Now    func() time.Time                       // wall clock
	Boot   func() (ms int64, bootID string)       // CLOCK_BOOTTIME and its boot
	NewID  func() string                          // random ids (UUID)
	Holder string                                 // overrides the holder made from this process
	Gone   func(holder string) (gone, known bool) // is that holder's process proven dead
}

// Info describes an opened Store.
type Info struct {
	Dir            string
	ID             string // random, made with the Store
	CreatedAt      int64
	FormatVersion  int
	WriterProtocol int
	UserVersion    int // migrations applied
	Writable       bool
	Reason         string // why it is not writable; "" when it is
	SQLite         string // library version
	WALBytes       int64
}

// Store is one opened Store. Its methods may be called from several goroutines.
type Store struct {
	opt    Options
	info   Info
	holder string
	path   string

	write chan *writer // holds the one writing connection; taking it is the lock
	wdb   *sql.DB
	rdb   *sql.DB
	bell  *bell

	closing sync.Once
	closed  error

	failCommit func() error // tests inject a failing commit here
}

// Holder names this process in leases and claims: program, instance, pid and
// birth.
func (s *Store) Holder() string { return s.holder }

// Now is the Store's wall clock in milliseconds, the unit of all its times.
func (s *Store) Now() int64 { return s.opt.Now().UnixMilli() }

// Dir is the Store directory.
func (s *Store) Dir() string { return s.opt.Dir }

// ID is the random id of the Store, fixed when it was made.
func (s *Store) ID() string { return s.info.ID }

// NewID makes a random id with Options.NewID.
func (s *Store) NewID() string { return s.opt.NewID() }

// Close ends all connections. It does not release leases.
func (s *Store) Close() error {
	s.closing.Do(func() { s.closed = s.shut() })
	return s.closed
}

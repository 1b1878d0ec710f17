package store

import (
	"context"
	"database/sql"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/mattn/go-sqlite3"

	"drawbridge/shared/fault"
)

// writer is the one writing connection.
type writer struct{ conn *sql.Conn }

// tx is one write transaction. It can run statements and tell the time at which
// it began; it reaches nothing outside the database, which keeps IO out of
// transactions (core §2).
type tx struct {
	conn   *sql.Conn
	now    int64 // wall clock, ms
	boot   int64 // boot-time clock, ms
	bootID string
	holder string
	newID  func() string
	silent bool // no bell after the commit
}

var protocolNow = define(`SELECT value FROM meta WHERE key = 'writer_protocol'`)

func (t *tx) query(st stmt, pairs []any) (*sql.Rows, error) {
	// Background: a transaction is short and is never cut in the middle.
	values, err := st.values(pairs)
	if err != nil {
		return nil, err
	}
	return t.conn.QueryContext(context.Background(), st.sql, values...)
}

// exec gives the number of changed rows.
func (t *tx) exec(st stmt, pairs ...any) (int64, error) {
	values, err := st.values(pairs)
	if err != nil {
		return 0, err
	}
	res, err := t.conn.ExecContext(context.Background(), st.sql, values...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// must is exec for a statement that has to change exactly one row.
func (t *tx) must(st stmt, pairs ...any) error {
	n, err := t.exec(st, pairs...)
	if err == nil && n != 1 {
		err = errUnmoved
	}
	return err
}

// errUnmoved says that a guarded statement found its row changed. It cannot
// happen after the same transaction read the row; if it does, nothing is written.
var errUnmoved = errors.New("a row is not as it was read in the same transaction")

// transact runs fn in one BEGIN IMMEDIATE transaction. Waiting for the write
// lock ends with store_busy after WriteWait, or with ctx. An error or panic of
// fn, or an error of the commit, leaves nothing behind.
func (s *Store) transact(ctx context.Context, fn func(*tx) error) error {
	if err := s.Writable(); err != nil {
		return err
	}
	deadline := time.Now().Add(WriteWait)
	w, err := s.takeWriter(ctx, deadline)
	if err != nil {
		return err
	}
	defer func() { s.write <- w }()
	if err := s.begin(ctx, w, deadline); err != nil {
		return err
	}
	defer w.rollback() // does nothing after a commit
	t := &tx{conn: w.conn, now: s.opt.Now().UnixMilli(), holder: s.holder, newID: s.opt.NewID}
	t.boot, t.bootID = s.opt.Boot()
	if err := inside(t, fn); err != nil {
		return err
	}
	if err := s.commit(w); err != nil {
		return storeError("write to the Store", err)
	}
	if !t.silent {
		s.bell.ring()
	}
	return nil
}

// view runs fn on one snapshot of the database with a reading connection. fn must
// not write; SQLite would refuse it.
func (s *Store) view(ctx context.Context, fn func(*tx) error) error {
	conn, err := s.rdb.Conn(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return storeError("read the Store", err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(context.Background(), "BEGIN"); err != nil {
		return storeError("read the Store", err)
	}
	r := &writer{conn}
	defer r.rollback()
	t := &tx{conn: conn, now: s.opt.Now().UnixMilli(), holder: s.holder, newID: s.opt.NewID}
	t.boot, t.bootID = s.opt.Boot()
	return storeError("read the Store", fn(t))
}

// inside checks the writer protocol, which a newer program may have raised since
// this Store was opened, and runs the move.
func inside(t *tx, fn func(*tx) error) error {
	protocol, _, err := first(t, scanString, protocolNow)
	if err != nil {
		return storeError("read the Store's writer protocol", err)
	}
	if protocol != writerProtocolText {
		return incompatible("its writer protocol is %q now, this program writes %q", protocol, writerProtocolText)
	}
	if err := fn(t); err != nil {
		return storeError("write to the Store", err)
	}
	return nil
}

func (s *Store) takeWriter(ctx context.Context, deadline time.Time) (*writer, error) {
	wait := time.NewTimer(time.Until(deadline))
	defer wait.Stop()
	select {
	case w, ok := <-s.write:
		if !ok {
			return nil, fault.New(fault.StoreUnavailable, "write to the Store: it is closed")
		}
		return w, nil
	case <-wait.C:
		return nil, busy()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// begin waits for SQLite's write lock by short random pauses, which is fair
// among processes; SQLite's own handler is not.
func (s *Store) begin(ctx context.Context, w *writer, deadline time.Time) error {
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := w.conn.ExecContext(context.Background(), "BEGIN IMMEDIATE")
		if err == nil {
			return nil
		}
		if !isBusy(err) {
			return storeError("write to the Store", err)
		}
		if !time.Now().Before(deadline) {
			return busy()
		}
		pause()
	}
}

func (s *Store) commit(w *writer) error {
	if s.failCommit != nil {
		if err := s.failCommit(); err != nil {
			return err
		}
	}
	_, err := w.conn.ExecContext(context.Background(), "COMMIT")
	return err
}

// rollback ends a transaction that is still open.
func (w *writer) rollback() {
	_ = w.conn.Raw(func(c any) error {
		if conn, ok := c.(*sqlite3.SQLiteConn); ok && !conn.AutoCommit() {
			_, err := conn.Exec("ROLLBACK", nil)
			return err
		}
		return nil
	})
}

func pause() { time.Sleep(retryMin + rand.N(retryMax-retryMin)) }

func busy() error {
	return fault.New(fault.StoreBusy, "write to the Store: the write lock was not free for %s", WriteWait).
		WithHint("another program holds it; try again").Safe()
}

func incompatible(format string, args ...any) *fault.Error {
	return fault.New(fault.StoreIncompatible, "write to the Store: "+format, args...).
		WithHint("a newer drawbridge owns this Store: stop this program and start the newer one")
}

// storeError gives an error of SQLite its code and leaves others alone. A
// broken constraint is a mistake of ours and stays internal.
func storeError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := fault.As(err); ok {
		return err
	}
	var e sqlite3.Error
	_ = errors.As(err, &e) // its code stays 0 where SQLite said nothing
	switch {
	case isBusy(err):
		return fault.New(fault.StoreBusy, "%s: %w", doing, err)
	case errors.Is(err, errUnmoved), e.Code == sqlite3.ErrConstraint, e.Code == sqlite3.ErrError:
		return fault.New(fault.Internal, "%s: %w", doing, err)
	}
	f := fault.New(fault.StoreUnavailable, "%s: %w", doing, err)
	f.Hint = hints[e.Code]
	return f
}

// hints say what to do about what SQLite cannot mend. All programs take -store-dir.
var hints = map[sqlite3.ErrNo]string{
	sqlite3.ErrFull:     "free space where the Store is (-store-dir) and try again; this was not written, and nothing that was written before is lost",
	sqlite3.ErrIoErr:    "reading or writing the disk of the Store (-store-dir) failed: look at its quota and at the kernel's log",
	sqlite3.ErrReadonly: "the Store's files (-store-dir) take no writes: are they another user's, or is the file system mounted read-only?",
	sqlite3.ErrCantOpen: "the files of the Store (-store-dir) cannot be opened: was the directory moved or removed, or are too many files open?",
}

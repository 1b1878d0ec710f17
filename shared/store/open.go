package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/mattn/go-sqlite3"
	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
)

var writerProtocolText = strconv.Itoa(WriterProtocol)

// ours are the names that a Store directory may hold.
var ours = []string{dbName, dbName + "-wal", dbName + "-shm", dbName + "-journal", bellName, LogDir}

// Open opens the Store in opt.Dir and makes it if the directory is absent or
// empty. It sets the umask of the process to 0077 for good: everything that
// drawbridge writes is private.
//
// Errors: store_unavailable (unsafe directory, foreign content, unreadable
// file), store_incompatible (other format). A Store of a newer schema or another
// writer protocol opens, but only for reading: see Writable.
func Open(ctx context.Context, opt Options) (*Store, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, err
	}
	syscall.Umask(0o077)
	frugal()
	foreign, err := prepareDir(opt)
	if err != nil {
		return nil, err
	}
	s := &Store{opt: opt, holder: opt.Holder, path: filepath.Join(opt.Dir, dbName), write: make(chan *writer, 1)}
	if err := s.open(ctx, foreign); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// OpenExisting opens a Store that is there: looking for something makes none.
// Unless opt.ReadOnly, what it gives can be written.
func OpenExisting(ctx context.Context, opt Options) (*Store, error) {
	look := opt
	look.ReadOnly = true
	s, err := Open(ctx, look)
	if err != nil || opt.ReadOnly {
		return s, err
	}
	if err := s.Close(); err != nil {
		return nil, err
	}
	if s, err = Open(ctx, opt); err != nil {
		return nil, err
	}
	if err := s.Writable(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (o Options) withDefaults() (Options, error) {
	if o.Dir == "" || !filepath.IsAbs(o.Dir) {
		return o, fault.New(fault.StoreUnavailable, "open the Store: directory %q is not an absolute path", o.Dir)
	}
	o.Dir = filepath.Clean(o.Dir)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Boot == nil {
		o.Boot = func() (int64, string) { return process.BootTime(), process.BootID() }
	}
	if o.NewID == nil {
		o.NewID = uuid.NewString
	}
	if o.Gone == nil {
		o.Gone = holderGone
	}
	if o.Holder == "" {
		if o.Program == "" || strings.Contains(o.Program, "/") {
			return o, fault.New(fault.Internal, "open the Store: %q is no program name", o.Program)
		}
		self := process.Self()
		if self.IsZero() {
			return o, fault.New(fault.StoreUnavailable, "open the Store: this process cannot identify itself in /proc")
		}
		o.Holder = o.Program + "/" + uuid.NewString() + "/" + self.String()
	}
	return o, nil
}

// open reads what is there, migrates it, and opens the connections. foreign is a
// name in the directory that is not ours; it may lie beside a Store, but no Store is
// made beside it.
func (s *Store) open(ctx context.Context, foreign string) error {
	if err := s.makeDatabase(); err != nil {
		return err
	}
	s.rdb = sql.OpenDB(connector{s.dsn("_query_only=1&_txlock=deferred&_busy_timeout=" +
		strconv.Itoa(int(readWait.Milliseconds())))})
	s.rdb.SetMaxOpenConns(readers)
	s.rdb.SetMaxIdleConns(readers)

	state, err := s.probe(ctx)
	if err != nil {
		return err
	}
	if state.fresh && s.opt.ReadOnly {
		return fault.New(fault.StoreUnavailable, "open the Store in %s: it holds no Store yet", s.opt.Dir)
	}
	if state.fresh && foreign != "" {
		return unsafeDir(s.opt.Dir, "it holds %q, which is not of drawbridge", foreign)
	}
	if err := s.makePrivate(); err != nil {
		return err
	}
	reason := s.opt.readOnlyReason(state)
	if reason == "" {
		if err := s.openWriter(ctx); err != nil {
			return err
		}
		if err := s.migrate(ctx); err != nil {
			return err
		}
		if state, err = s.probe(ctx); err != nil {
			return err
		}
		reason = s.opt.readOnlyReason(state)
	}
	s.info = state.info
	s.info.Dir, s.info.Writable, s.info.Reason = s.opt.Dir, reason == "", reason
	s.info.SQLite, _, _ = sqlite3.Version()
	s.bell, err = openBell(filepath.Join(s.opt.Dir, bellName), s.info.Writable)
	return err
}

// Writable gives nil, or store_incompatible (or store_unavailable for a Store
// opened read-only on purpose): then every move fails with the same error.
func (s *Store) Writable() error {
	switch {
	case s.info.Writable:
		return nil
	case s.opt.ReadOnly:
		return fault.New(fault.StoreUnavailable, "write to the Store: %s", s.info.Reason)
	}
	return incompatible("%s", s.info.Reason)
}

// Info describes the Store as it is now.
func (s *Store) Info(ctx context.Context) (Info, error) {
	info := s.info
	state, err := s.probe(ctx)
	if err != nil {
		return info, err
	}
	info.WriterProtocol, info.UserVersion = state.info.WriterProtocol, state.info.UserVersion
	if st, err := os.Lstat(s.path + "-wal"); err == nil {
		info.WALBytes = st.Size()
	}
	return info, nil
}

func (s *Store) shut() error {
	var errs []error
	if s.wdb != nil {
		wait := time.NewTimer(WriteWait)
		defer wait.Stop()
		select {
		case w := <-s.write:
			errs = append(errs, w.conn.Close())
			close(s.write)
		case <-wait.C:
			errs = append(errs, errors.New("close the Store: a write transaction does not end"))
		}
		errs = append(errs, s.wdb.Close())
	}
	if s.rdb != nil {
		errs = append(errs, s.rdb.Close())
	}
	if s.bell != nil {
		errs = append(errs, s.bell.close())
	}
	return errors.Join(errs...)
}

// openWriter opens the writing connection. Switching a new file to WAL meets
// other programs that do the same, so busy is tried again.
func (s *Store) openWriter(ctx context.Context) error {
	s.wdb = sql.OpenDB(connector{s.dsn("_journal_mode=WAL&_txlock=immediate&_busy_timeout=0")})
	s.wdb.SetMaxOpenConns(1)
	deadline := time.Now().Add(WriteWait)
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		conn, err := s.wdb.Conn(context.Background())
		if err == nil {
			s.write <- &writer{conn}
			return nil
		}
		if !isBusy(err) {
			return storeError("open the Store in "+s.opt.Dir, err)
		}
		if !time.Now().Before(deadline) {
			return busy()
		}
		pause()
	}
}

func (s *Store) dsn(extra string) string {
	u := url.URL{Scheme: "file", OmitHost: true, Path: s.path}
	return u.String() + "?_foreign_keys=on&_synchronous=FULL&_stmt_cache_size=" +
		strconv.Itoa(statementKeep) + "&" + extra
}

// connector opens connections with the settings that a DSN has no key for.
type connector struct{ dsn string }

func (c connector) Connect(context.Context) (driver.Conn, error) { return c.Driver().Open(c.dsn) }

func (c connector) Driver() driver.Driver {
	return &sqlite3.SQLiteDriver{ConnectHook: func(conn *sqlite3.SQLiteConn) error {
		_, err := conn.Exec("PRAGMA journal_size_limit = "+strconv.Itoa(walLimit), nil)
		return err
	}}
}

// unsafeDir refuses a directory.
func unsafeDir(dir, format string, args ...any) error {
	return fault.New(fault.StoreUnavailable, "open the Store in %s: %w", dir, fmt.Errorf(format, args...)).
		WithHint("give an empty private directory, or one made by drawbridge, with -store-dir")
}

// prepareDir checks the directory and makes it if it is absent. What is there it
// leaves as it is. It gives one name that is not ours, if there is any.
func prepareDir(opt Options) (foreign string, err error) {
	st, err := os.Lstat(opt.Dir)
	if errors.Is(err, fs.ErrNotExist) && !opt.ReadOnly {
		if err := os.MkdirAll(opt.Dir, dirMode); err != nil {
			return "", unsafeDir(opt.Dir, "make it: %w", err)
		}
		st, err = os.Lstat(opt.Dir)
	}
	if err != nil {
		return "", unsafeDir(opt.Dir, "%w", err)
	}
	sys, known := st.Sys().(*syscall.Stat_t)
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		return "", unsafeDir(opt.Dir, "it is a symbolic link")
	case !st.IsDir():
		return "", unsafeDir(opt.Dir, "it is not a directory")
	case !known || int(sys.Uid) != os.Geteuid():
		return "", unsafeDir(opt.Dir, "it belongs to another user")
	}
	entries, err := os.ReadDir(opt.Dir)
	if err != nil {
		return "", unsafeDir(opt.Dir, "%w", err)
	}
	database := false
	for _, e := range entries {
		name := e.Name()
		switch {
		case !slices.Contains(ours, name):
			foreign = name
		case e.Type()&fs.ModeSymlink != 0:
			return "", unsafeDir(opt.Dir, "%s in it is a symbolic link", name)
		case e.IsDir() != (name == LogDir), !e.IsDir() && !e.Type().IsRegular():
			return "", unsafeDir(opt.Dir, "%s in it is of the wrong kind", name)
		}
		database = database || name == dbName
	}
	if foreign != "" && !database {
		return "", unsafeDir(opt.Dir, "it holds %q, which is not of drawbridge", foreign)
	}
	return foreign, nil
}

// makeDatabase makes an absent store.db before SQLite does, so that its mode does
// not depend on the umask; -wal and -shm take the mode of the database.
func (s *Store) makeDatabase() error {
	if _, err := os.Lstat(s.path); s.opt.ReadOnly || err == nil {
		return nil
	}
	return s.makeFile(dbName)
}

// makePrivate gives the directory and all files of a Store that is ours its mode.
func (s *Store) makePrivate() error {
	if s.opt.ReadOnly {
		return nil
	}
	if err := os.Chmod(s.opt.Dir, dirMode); err != nil {
		return fault.New(fault.StoreUnavailable, "open the Store in %s: make it private: %w", s.opt.Dir, err)
	}
	return errors.Join(s.makeFile(bellName), s.private(dbName), s.private(dbName+"-wal"), s.private(dbName+"-shm"), s.private(bellName))
}

// makeFile makes an absent file. One that exists is not even opened: see private.
func (s *Store) makeFile(name string) error {
	f, err := os.OpenFile(filepath.Join(s.opt.Dir, name), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fault.New(fault.StoreUnavailable, "open the Store in %s: make %s: %w", s.opt.Dir, name, err)
	}
	return nil
}

// private sets the mode of one file, which may be absent.
//
// The file is opened as a path only. Closing any other descriptor of it would
// drop the POSIX locks that SQLite holds in this process: another program would
// take itself for the only one, cut the shared memory under our feet (SIGBUS), and
// at its end delete the log that we go on writing.
func (s *Store) private(name string) error {
	fd, err := unix.Open(filepath.Join(s.opt.Dir, name), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		switch {
		case err != nil:
		case st.Mode&unix.S_IFMT != unix.S_IFREG:
			err = errors.New("it is no regular file")
		case st.Mode&0o7777 != fileMode:
			err = unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), fileMode)
		}
		err = errors.Join(err, unix.Close(fd))
	}
	if err != nil {
		return fault.New(fault.StoreUnavailable, "open the Store in %s: make %s private: %w", s.opt.Dir, name, err)
	}
	return nil
}

// holderGone is the default of Options.Gone: a holder ends with the incarnation
// of its process.
func holderGone(holder string) (gone, known bool) {
	inc, err := holderIncarnation(holder)
	if err != nil {
		return false, false
	}
	return inc.Gone()
}

func holderIncarnation(holder string) (process.Incarnation, error) {
	parts := strings.SplitN(holder, "/", 3)
	if len(parts) != 3 {
		return process.Incarnation{}, fmt.Errorf("holder %q names no process", holder)
	}
	return process.ParseIncarnation(parts[2])
}

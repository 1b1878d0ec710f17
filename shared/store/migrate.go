package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sort"
	"strconv"
	"time"

	"github.com/mattn/go-sqlite3"

	"drawbridge/shared/fault"
)

//go:embed sql/*.sql
var migrationFiles embed.FS

// SchemaVersion is the number of migrations of this build.
var SchemaVersion = len(migrations())

// migrations gives the shipped migrations in order. A shipped file is never
// edited; a test holds the digests.
func migrations() []string {
	names, err := fs.Glob(migrationFiles, "sql/*.sql")
	if err != nil {
		panic(err) // the pattern is constant
	}
	sort.Strings(names)
	out := make([]string, len(names))
	for i, name := range names {
		data, err := migrationFiles.ReadFile(name)
		if err != nil {
			panic(err) // embedded
		}
		out[i] = string(data)
	}
	return out
}

// state is what a look at the database says.
type state struct {
	fresh bool // no schema yet
	info  Info
}

// probe reads version and meta without writing anything.
func (s *Store) probe(ctx context.Context) (state, error) {
	var st state
	refuse := func(code fault.Code, format string, args ...any) (state, error) {
		err := fmt.Errorf(format, args...)
		f := fault.New(code, "open the Store in %s: %w", s.opt.Dir, err)
		var e sqlite3.Error
		if errors.As(err, &e) {
			f.Hint = hints[e.Code]
		}
		return st, f
	}
	conn, err := s.probeConn(ctx)
	if err != nil {
		return refuse(fault.StoreUnavailable, "%w", err)
	}
	defer conn.Close()
	tables, hasMeta := 0, false
	if err := conn.QueryRowContext(ctx, `SELECT count(*), coalesce(max(name = 'meta'), 0) FROM sqlite_schema WHERE type = 'table'`).Scan(&tables, &hasMeta); err != nil {
		return refuse(fault.StoreUnavailable, "%w", err)
	}
	if err := conn.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&st.info.UserVersion); err != nil {
		return refuse(fault.StoreUnavailable, "%w", err)
	}
	if tables == 0 && st.info.UserVersion == 0 {
		st.fresh = true
		return st, nil
	}
	if !hasMeta {
		return refuse(fault.StoreUnavailable, "%s is a database of another program", dbName)
	}
	meta, err := readMeta(ctx, conn)
	if err != nil {
		return refuse(fault.StoreUnavailable, "read meta: %w", err)
	}
	if meta["schema"] != Schema {
		return refuse(fault.StoreUnavailable, "%s is a database of another program", dbName)
	}
	if meta["format_version"] != strconv.Itoa(FormatVersion) {
		return refuse(fault.StoreIncompatible, "its format is %q, this program knows %d", meta["format_version"], FormatVersion)
	}
	st.info.FormatVersion, st.info.ID = FormatVersion, meta["store_id"]
	st.info.CreatedAt, _ = strconv.ParseInt(meta["created_at"], 10, 64)
	if st.info.WriterProtocol, err = strconv.Atoi(meta["writer_protocol"]); err != nil || st.info.WriterProtocol < 0 {
		st.info.WriterProtocol = -1 // unreadable: never written
	}
	return st, nil
}

// probeConn gives a reading connection to a database that may not be in WAL mode
// yet, because another program is making it.
func (s *Store) probeConn(ctx context.Context) (*sql.Conn, error) {
	deadline := time.Now().Add(readWait)
	for {
		conn, err := s.rdb.Conn(ctx)
		if err == nil || !isBusy(err) || !time.Now().Before(deadline) {
			var e sqlite3.Error
			if errors.As(err, &e) && e.Code == sqlite3.ErrNotADB {
				return nil, fmt.Errorf("%s is not a database", dbName)
			}
			return conn, err
		}
		pause()
	}
}

func readMeta(ctx context.Context, conn *sql.Conn) (map[string]string, error) {
	rows, err := conn.QueryContext(ctx, `SELECT key, value FROM meta`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	meta := map[string]string{}
	for rows.Next() {
		var k, v string
		if err := rows.Scan(&k, &v); err != nil {
			return nil, err
		}
		meta[k] = v
	}
	return meta, rows.Err()
}

// readOnlyReason says why a Store in this state is not written, "" if it may be.
func (o Options) readOnlyReason(st state) string {
	switch {
	case st.fresh && !o.ReadOnly:
		return ""
	case st.info.WriterProtocol < 0 || st.info.WriterProtocol > WriterProtocol:
		return fmt.Sprintf("its writer protocol is %d, this program writes %d", st.info.WriterProtocol, WriterProtocol)
	case st.info.UserVersion > SchemaVersion:
		return fmt.Sprintf("its schema is number %d, this program knows %d", st.info.UserVersion, SchemaVersion)
	case o.ReadOnly:
		return "it was opened for reading only"
	}
	return ""
}

// migrate applies the missing migrations, each in its own transaction, and
// raises an older writer protocol. Another program may do the same at the same
// time, so the version is read again under the lock.
func (s *Store) migrate(ctx context.Context) error {
	deadline := time.Now().Add(WriteWait)
	w, err := s.takeWriter(ctx, deadline)
	if err != nil {
		return err
	}
	defer func() { s.write <- w }()
	for i, text := range migrations() {
		if err := s.begin(ctx, w, deadline); err != nil {
			return err
		}
		err := s.migrateTo(ctx, w.conn, i+1, text)
		if err == nil {
			err = s.commit(w)
		}
		if err != nil {
			w.rollback()
			return storeError(fmt.Sprintf("migrate the Store to schema %d", i+1), err)
		}
	}
	return nil
}

func (s *Store) migrateTo(ctx context.Context, conn *sql.Conn, number int, text string) error {
	var version int
	if err := conn.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	if version < number {
		if _, err := conn.ExecContext(ctx, text); err != nil {
			return err
		}
		if _, err := conn.ExecContext(ctx, fmt.Sprintf(`PRAGMA user_version = %d`, number)); err != nil {
			return err
		}
	}
	if version == 0 && number == 1 {
		return s.insertMeta(ctx, conn)
	}
	_, err := conn.ExecContext(ctx,
		`UPDATE meta SET value = ?1 WHERE key = 'writer_protocol' AND CAST(value AS INTEGER) < CAST(?1 AS INTEGER)`, writerProtocolText)
	return err
}

func (s *Store) insertMeta(ctx context.Context, conn *sql.Conn) error {
	for _, row := range [][2]string{
		{"schema", Schema},
		{"format_version", strconv.Itoa(FormatVersion)},
		{"writer_protocol", writerProtocolText},
		{"created_at", strconv.FormatInt(s.opt.Now().UnixMilli(), 10)},
		{"store_id", s.opt.NewID()},
	} {
		if _, err := conn.ExecContext(ctx, `INSERT INTO meta(key, value) VALUES (?, ?)`, row[0], row[1]); err != nil {
			return err
		}
	}
	return nil
}

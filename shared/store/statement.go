package store

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/mattn/go-sqlite3"
)

// A stmt is one SQL statement of this package. It exists only by define, so
// that the plan test sees every statement there is.
type stmt struct{ sql string }

// defined holds every statement, for the plan test.
var defined []stmt

func define(text string) stmt {
	s := stmt{strings.TrimSpace(text)}
	defined = append(defined, s)
	return s
}

// queryer runs statements on one connection or pool. Arguments are pairs of a
// parameter name and a value.
type queryer interface {
	query(st stmt, pairs []any) (*sql.Rows, error)
}

// scanner is one row.
type scanner interface{ Scan(dest ...any) error }

// named turns pairs into named parameters: []byte is JSON and becomes text,
// nil bytes become NULL.
func named(pairs []any) []any {
	out := make([]any, len(pairs)/2)
	for i := range out {
		v := pairs[2*i+1]
		if b, ok := v.([]byte); ok {
			v = jsonText(b)
		}
		out[i] = sql.Named(pairs[2*i].(string), v)
	}
	return out
}

func jsonText(b []byte) any {
	if b == nil {
		return nil
	}
	return string(b)
}

// orNull stores "" and 0 as NULL.
func orNull[T string | int64](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}

// list reads all rows of a statement.
func list[T any](q queryer, scan func(scanner) (T, error), st stmt, pairs ...any) ([]T, error) {
	rows, err := q.query(st, pairs)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return out, rows.Close()
}

// first reads the first row of a statement, if there is one.
func first[T any](q queryer, scan func(scanner) (T, error), st stmt, pairs ...any) (T, bool, error) {
	var v T
	rows, err := q.query(st, pairs)
	if err != nil {
		return v, false, err
	}
	defer rows.Close()
	if !rows.Next() {
		return v, false, rows.Err()
	}
	if v, err = scan(rows); err != nil {
		return v, false, err
	}
	for rows.Next() { // a RETURNING statement is done only when stepped to its end
	}
	if err := rows.Err(); err != nil {
		return v, false, err
	}
	return v, true, rows.Close()
}

func scanInt(r scanner) (n int64, err error)     { err = r.Scan(&n); return n, err }
func scanString(r scanner) (t string, err error) { err = r.Scan(&t); return t, err }

// pool reads with the reading connections. A reading that has begun is not cut
// off by the end of ctx: all are short, and the goroutines that would wait for it
// in database/sql and in the driver cost a third of a reading.
type pool struct {
	ctx context.Context
	db  *sql.DB
}

func (p pool) query(st stmt, pairs []any) (*sql.Rows, error) {
	if err := p.ctx.Err(); err != nil {
		return nil, err
	}
	return p.db.QueryContext(context.WithoutCancel(p.ctx), st.sql, named(pairs)...)
}

// isBusy reports whether SQLite found the database locked.
func isBusy(err error) bool {
	var e sqlite3.Error
	return errors.As(err, &e) && (e.Code == sqlite3.ErrBusy || e.Code == sqlite3.ErrLocked)
}

// violated gives the columns or the index of a broken unique constraint, "" for
// any other error.
func violated(err error) string {
	var e sqlite3.Error
	if !errors.As(err, &e) || e.Code != sqlite3.ErrConstraint {
		return ""
	}
	if e.ExtendedCode != sqlite3.ErrConstraintUnique && e.ExtendedCode != sqlite3.ErrConstraintPrimaryKey {
		return ""
	}
	_, what, _ := strings.Cut(e.Error(), "constraint failed: ")
	return what
}

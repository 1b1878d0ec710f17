package store

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mattn/go-sqlite3"

	"drawbridge/shared/fault"
)

// A stmt is one SQL statement of this package. It exists only by define, so
// that the plan test sees every statement there is.
type stmt struct {
	sql    string   // as SQLite gets it: its parameters are numbered, since names are looked up again for each run
	text   string   // as it was written
	params []string // names of the parameters, by number
}

// defined holds every statement, for the plan test.
var defined []stmt

// define takes a statement with named parameters. No text literal in it may hold a
// colon before a letter.
func define(text string) stmt {
	s := stmt{text: strings.TrimSpace(text)}
	s.sql = parameter.ReplaceAllStringFunc(s.text, func(name string) string {
		i := slices.Index(s.params, name[1:])
		if i < 0 {
			i = len(s.params)
			s.params = append(s.params, name[1:])
		}
		return "?" + strconv.Itoa(i+1)
	})
	defined = append(defined, s)
	return s
}

var parameter = regexp.MustCompile(`:[a-z_]+`)

// queryer runs statements on one connection or pool. Arguments are pairs of a
// parameter name and a value.
type queryer interface {
	query(st stmt, pairs []any) (*sql.Rows, error)
}

// scanner is one row.
type scanner interface{ Scan(dest ...any) error }

// values gives the values of the statement's parameters, by number: []byte is JSON and
// becomes text, nil bytes become NULL. Of a name that pairs give twice the last value
// counts; what they give besides is for other statements.
func (st stmt) values(pairs []any) ([]any, error) {
	out := make([]any, len(st.params))
	for i, name := range st.params {
		at := len(pairs) - 2
		for at >= 0 && pairs[at] != name {
			at -= 2
		}
		if at < 0 {
			return nil, fault.New(fault.Internal, "run a statement: parameter %s has no value", name)
		}
		out[i] = pairs[at+1]
		if b, ok := out[i].([]byte); ok {
			out[i] = jsonText(b)
		}
	}
	return out, nil
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
	values, err := st.values(pairs)
	if err != nil {
		return nil, err
	}
	return p.db.QueryContext(context.WithoutCancel(p.ctx), st.sql, values...)
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

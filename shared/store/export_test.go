package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"

	"github.com/fsnotify/fsnotify"
)

// Statements gives every SQL statement of the package.
func Statements() []string {
	out := make([]string, len(defined))
	for i, s := range defined {
		out[i] = s.text
	}
	return out
}

// Values gives what SQLite gets for the parameters of a statement.
func Values(text string, pairs ...any) ([]any, error) {
	defer func(all []stmt) { defined = all }(defined)
	return define(text).values(pairs)
}

// FailCommit makes the next commits of s fail with err; nil ends that.
func FailCommit(s *Store, err error) {
	s.failCommit = nil
	if err != nil {
		s.failCommit = func() error { return err }
	}
}

// FullDisk lets the database of s grow no more; it may grow again when the returned
// function was called.
func FullDisk(s *Store) (free func()) {
	pages := func(n int) {
		w := <-s.write
		defer func() { s.write <- w }()
		if _, err := w.conn.ExecContext(context.Background(), "PRAGMA max_page_count = "+strconv.Itoa(n)); err != nil {
			panic(err)
		}
	}
	pages(1) // SQLite makes it what there is
	return func() { pages(1 << 30) }
}

// Migrations gives the shipped migrations.
func Migrations() []string { return migrations() }

// NoNotification makes file notification fail until the returned function is called.
func NoNotification() (restore func()) {
	old := newWatcher
	newWatcher = func() (*fsnotify.Watcher, error) { return nil, errors.New("no inotify") }
	return func() { newWatcher = old }
}

// Readers gives the reading connections.
func Readers(s *Store) *sql.DB { return s.rdb }

// Allowed reports whether a move names one of the Turn statuses it starts from.
func TurnStatuses() []string { return allTurnStatuses }

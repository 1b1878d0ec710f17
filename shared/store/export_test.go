package store

import (
	"database/sql"
	"errors"

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

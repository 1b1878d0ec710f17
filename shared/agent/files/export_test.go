package files

import (
	"errors"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// Deaf is a Watcher that gets no inotify instance.
func Deaf() *Watcher {
	w := New(nil)
	w.create = func() (backend, error) { return nil, unix.EMFILE }
	return w
}

// scripted is a backend without a kernel behind it.
type scripted struct {
	events chan fsnotify.Event
	errs   chan error
	add    error
}

func (s *scripted) Add(string) error    { return s.add }
func (s *scripted) Remove(string) error { return errors.New("no such watch") }
func (s *scripted) Close() error        { close(s.events); close(s.errs); return nil }
func (s *scripted) channels() (<-chan fsnotify.Event, <-chan error) {
	return s.events, s.errs
}

// Full is a Watcher that gets no watch.
func Full() *Watcher {
	w := New(nil)
	w.create = func() (backend, error) {
		return &scripted{make(chan fsnotify.Event), make(chan error), unix.ENOSPC}, nil
	}
	return w
}

// Scripted is a Watcher whose queue overflows when told.
func Scripted() (w *Watcher, overflow func()) {
	w = New(nil)
	s := &scripted{make(chan fsnotify.Event), make(chan error), nil}
	w.create = func() (backend, error) { return s, nil }
	return w, func() { s.errs <- fsnotify.ErrEventOverflow }
}

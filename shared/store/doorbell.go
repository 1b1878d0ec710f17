package store

import (
	"context"
	"database/sql"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

const (
	versionPoll = 4 * time.Second        // PRAGMA data_version behind the bell
	blindPoll   = 250 * time.Millisecond // the same where file notification does not work
)

// bell is the file that a program touches after its commit. The file is the
// signal, not the database's own: events of the WAL come before the commit can be
// seen by others, and renewals of leases shall wake nobody.
type bell struct{ file *os.File }

func openBell(path string, ring bool) (*bell, error) {
	if !ring {
		return nil, nil
	}
	f, err := os.OpenFile(path, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return nil, storeError("open the bell", err)
	}
	return &bell{f}, nil
}

// ring wakes all programs. An error is ignored: the listeners look at
// data_version besides.
func (b *bell) ring() {
	if b != nil {
		_, _ = b.file.WriteAt([]byte{1}, 0)
	}
}

func (b *bell) close() error {
	if b == nil {
		return nil
	}
	return b.file.Close()
}

// Doorbell wakes its subscribers after commits of any program on the Store,
// within milliseconds by the bell file and within seconds without it.
type Doorbell struct {
	s   *Store
	log *slog.Logger

	mu   sync.Mutex
	subs map[chan struct{}]struct{}
}

// NewDoorbell makes a Doorbell. log may be nil.
func NewDoorbell(s *Store, log *slog.Logger) *Doorbell {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Doorbell{s: s, log: log, subs: map[chan struct{}]struct{}{}}
}

// Subscribe gives a channel that receives once for any number of commits since
// the last receive. A wake may also be in vain. cancel ends the subscription.
func (d *Doorbell) Subscribe() (wake <-chan struct{}, cancel func()) {
	c := make(chan struct{}, 1)
	d.mu.Lock()
	d.subs[c] = struct{}{}
	d.mu.Unlock()
	return c, func() {
		d.mu.Lock()
		delete(d.subs, c)
		d.mu.Unlock()
	}
}

// Run listens until ctx ends.
func (d *Doorbell) Run(ctx context.Context) error {
	conn, err := d.s.rdb.Conn(ctx) // data_version compares with earlier looks of the same connection
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return storeError("listen to the doorbell", err)
	}
	defer conn.Close()
	ear := d.listen()
	defer func() { ear.close() }()
	last := dataVersion(ctx, conn)
	timer := time.NewTimer(ear.poll())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-ear.events:
			if !ok || e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) {
				ear.close()
				ear = d.listen()
			}
			last = dataVersion(ctx, conn)
			d.wake()
		case err := <-ear.errors:
			d.log.Warn("file notification of the doorbell", "err", err)
			d.wake()
		case <-timer.C:
			if v := dataVersion(ctx, conn); v != last {
				last = v
				d.wake()
			}
			if ear.watcher == nil {
				ear = d.listen()
			}
			timer.Reset(ear.poll())
		}
	}
}

func (d *Doorbell) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.subs {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// ear is the file notification, with nil channels where it does not work.
type ear struct {
	watcher *fsnotify.Watcher
	events  <-chan fsnotify.Event
	errors  <-chan error
}

// listen watches the bell itself, not its directory, where every write to the
// WAL would be an event. The file is never replaced.
func (d *Doorbell) listen() ear {
	w, err := newWatcher()
	if err != nil {
		return ear{}
	}
	if err := w.Add(filepath.Join(d.s.opt.Dir, bellName)); err != nil {
		_ = w.Close()
		return ear{}
	}
	return ear{w, w.Events, w.Errors}
}

// newWatcher is replaced by tests of a machine without file notification.
var newWatcher = fsnotify.NewWatcher

func (e ear) poll() time.Duration {
	if e.watcher == nil {
		return blindPoll
	}
	return versionPoll
}

func (e *ear) close() {
	if e.watcher != nil {
		_ = e.watcher.Close()
	}
	*e = ear{}
}

// dataVersion changes when another connection has committed; -1 when it cannot
// be read now.
func dataVersion(ctx context.Context, conn *sql.Conn) (v int64) {
	if err := conn.QueryRowContext(context.WithoutCancel(ctx), `PRAGMA data_version`).Scan(&v); err != nil {
		return -1
	}
	return v
}

// Package files wakes those who wait for the files of an agent: rollouts,
// transcripts, registries.
//
// One Watcher, with one inotify instance, serves a whole process. bridge waits
// for an acceptance on it, watchd for everything else. A subscriber names paths
// and gets a channel that is filled whenever something happened to one of the
// files, or in one of the directories, since it last looked; events merge and
// carry nothing, so a wake means "read again from your offset", never "one record
// came". Who knows its file names the file: all agents of a person write into one
// directory, and each write there would wake all who wait for it.
//
// The order is add-then-read: Subscribe returns with every watch in place and the
// channel already filled, so whoever reads its files after each wake loses
// nothing that was written before, during or after the subscription. A path that
// does not exist yet is waited for at its nearest existing parent.
//
// Where inotify fails (no instance, no watch left, a network file system that
// gives none) the same channels are filled every PollInterval instead. When the
// kernel's queue overflows, everybody is woken. Nothing is written to disk.
package files

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Bounds.
const (
	// PollInterval is the wake interval of a directory that inotify does not cover.
	PollInterval = 250 * time.Millisecond
	// burstGap is the least time between two wakes of one subscription: more than
	// about 20 events a second cost more than polling (dryrun §2).
	burstGap = 5 * time.Millisecond
	// maxWatches bounds the paths of all subscriptions together.
	maxWatches = 8192
)

// Watcher owns the inotify instance. New makes one, Run drives it.
type Watcher struct {
	log    *slog.Logger
	create func() (backend, error)

	mu      sync.Mutex
	events  backend         // nil: not running, or inotify is not to be had
	watched map[string]bool // paths with a watch
	subs    map[*Subscription]bool
	deaf    bool          // inotify failed as a whole: poll for everybody
	nudge   chan struct{} // something for Run to look at: lost events, a deaf subscription
	lost    atomic.Bool   // the kernel or fsnotify dropped events
}

// backend is the part of fsnotify that is used.
type backend interface {
	Add(dir string) error
	Remove(dir string) error
	Close() error
	channels() (<-chan fsnotify.Event, <-chan error)
}

type notify struct{ *fsnotify.Watcher }

func (n notify) channels() (<-chan fsnotify.Event, <-chan error) { return n.Events, n.Errors }

// New makes a Watcher. A nil log drops what little there is to say.
func New(log *slog.Logger) *Watcher {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Watcher{
		log: log, watched: map[string]bool{}, subs: map[*Subscription]bool{}, nudge: make(chan struct{}, 1),
		create: func() (backend, error) {
			w, err := fsnotify.NewBufferedWatcher(4096)
			if err != nil {
				return nil, err
			}
			return notify{w}, nil
		},
	}
}

// Run delivers wakes until ctx ends. Subscriptions may be made before Run; until
// it runs they are filled once only.
func (w *Watcher) Run(ctx context.Context) error {
	events, errs := w.start()
	// Errors are taken by a goroutine that locks nothing: fsnotify may hold its own
	// lock while it sends one.
	var errors sync.WaitGroup
	errors.Go(func() {
		for err := range errs {
			w.log.Debug("watch agent files", "err", err)
			w.lost.Store(true)
			w.ping()
		}
	})
	defer errors.Wait()
	defer w.stop()
	poll := time.NewTicker(PollInterval)
	defer poll.Stop()
	if !w.anyDeaf() {
		poll.Stop()
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-events:
			if !ok {
				events = nil
				w.fail()
				poll.Reset(PollInterval)
				continue
			}
			w.event(e)
		case <-w.nudge:
			// An overflow lost events; any other error may have. Both mean: look now.
			if w.lost.Swap(false) {
				w.wakeAll()
			}
			if w.anyDeaf() {
				poll.Reset(PollInterval)
			}
		case <-poll.C:
			if !w.pollOnce() {
				poll.Stop()
			}
		}
	}
}

func (w *Watcher) start() (<-chan fsnotify.Event, <-chan error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b, err := w.create()
	if err != nil {
		w.deaf = true
		w.log.Warn("inotify is not to be had, agent files are polled", "err", err, "interval", PollInterval)
		none := make(chan error)
		close(none)
		return nil, none
	}
	w.events = b
	for s := range w.subs {
		w.cover(s)
		s.wake()
	}
	return b.channels()
}

func (w *Watcher) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events != nil {
		if err := w.events.Close(); err != nil {
			w.log.Debug("close the watch of agent files", "err", err)
		}
	}
	w.events, w.watched = nil, map[string]bool{}
	for s := range w.subs {
		s.wake()
	}
}

func (w *Watcher) ping() {
	select {
	case w.nudge <- struct{}{}:
	default:
	}
}

func (w *Watcher) fail() {
	w.log.Warn("the watch of agent files ended, they are polled", "interval", PollInterval)
	w.mu.Lock()
	w.deaf, w.events, w.watched = true, nil, map[string]bool{}
	w.mu.Unlock()
	w.wakeAll()
}

// Subscribe waits for changes of files and in directories. The channel of the
// subscription is filled once at once. Close ends it.
func (w *Watcher) Subscribe(paths []string) *Subscription {
	s := &Subscription{w: w, c: make(chan struct{}, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subs[s] = true
	s.paths = clean(paths)
	w.cover(s)
	s.wake()
	return s
}

// cover puts the watches of s in place. The caller holds mu.
func (w *Watcher) cover(s *Subscription) {
	s.at = map[string]bool{}
	deaf := false
	for _, path := range s.paths {
		at, ok := w.watch(path)
		if !ok {
			deaf = true
			continue
		}
		s.at[at] = true
	}
	if deaf != s.deaf {
		s.deaf = deaf
		w.ping()
	}
	w.prune()
}

// watch adds a watch on dir, or on its nearest existing parent. ok is false where
// inotify cannot do it.
func (w *Watcher) watch(dir string) (at string, ok bool) {
	if w.events == nil {
		return "", !w.deaf // before Run: start covers it
	}
	for at = dir; ; {
		if w.watched[at] {
			return at, true
		}
		if len(w.watched) >= maxWatches {
			return "", false
		}
		err := w.events.Add(at)
		switch {
		case err == nil:
			w.watched[at] = true
			if at == dir {
				return at, true
			}
			if _, err := os.Lstat(step(at, dir)); err != nil {
				return at, true
			}
			at = dir // the next step down appeared between the two looks
		case errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at):
			at = filepath.Dir(at)
		default:
			w.log.Debug("watch agent files", "path", at, "err", err)
			return "", false
		}
	}
}

// step gives the child of at that leads to dir.
func step(at, dir string) string {
	rest, _ := filepath.Rel(at, dir)
	first, _, _ := strings.Cut(rest, string(filepath.Separator))
	return filepath.Join(at, first)
}

// prune removes watches that nobody needs any more.
func (w *Watcher) prune() {
	if w.events == nil {
		return
	}
	for dir := range w.watched {
		used := false
		for s := range w.subs {
			if s.at[dir] {
				used = true
				break
			}
		}
		if !used {
			_ = w.events.Remove(dir) // gone with its directory is as good
			delete(w.watched, dir)
		}
	}
}

// event wakes the subscribers of the path of e and of its directory. What
// appeared may be what somebody waits for; what vanished needs a watch on its
// parent again. A file that was replaced while its writer still holds it open is
// told of as a change of its attributes.
func (w *Watcher) event(e fsnotify.Event) {
	dir := filepath.Dir(e.Name)
	moved := e.Has(fsnotify.Create) || e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename) || e.Has(fsnotify.Chmod)
	w.mu.Lock()
	defer w.mu.Unlock()
	if moved && !e.Has(fsnotify.Create) && w.watched[e.Name] {
		_ = w.events.Remove(e.Name)
		delete(w.watched, e.Name)
	}
	for s := range w.subs {
		hit, again := false, false
		for _, want := range s.paths {
			switch {
			case want == dir || want == e.Name:
				hit = true
				again = again || (moved && want == e.Name)
			case moved && strings.HasPrefix(want, e.Name+string(filepath.Separator)):
				hit, again = true, true
			}
		}
		if again {
			w.cover(s)
		}
		if hit {
			s.wake()
		}
	}
}

func (w *Watcher) wakeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for s := range w.subs {
		w.cover(s)
		s.wake()
	}
}

func (w *Watcher) anyDeaf() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deaf {
		return true
	}
	for s := range w.subs {
		if s.deaf {
			return true
		}
	}
	return false
}

// pollOnce wakes those whom inotify does not serve and reports whether there are any.
func (w *Watcher) pollOnce() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	some := w.deaf
	for s := range w.subs {
		if w.deaf || s.deaf {
			some = true
			s.wake()
		}
	}
	return some
}

// Subscription is one interest in a set of files and directories.
type Subscription struct {
	w *Watcher
	c chan struct{}

	// guarded by w.mu
	paths []string
	at    map[string]bool // paths whose watch serves this subscription
	deaf  bool
	last  time.Time
	timer *time.Timer
	done  bool
}

// C is filled when something happened since the last receive. It is never closed.
func (s *Subscription) C() <-chan struct{} { return s.c }

// Set replaces the paths; the channel is filled when they differ.
func (s *Subscription) Set(paths []string) {
	paths = clean(paths)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.done || equal(s.paths, paths) {
		return
	}
	s.paths = paths
	s.w.cover(s)
	s.wake()
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.done {
		return
	}
	s.done = true
	if s.timer != nil {
		s.timer.Stop()
	}
	delete(s.w.subs, s)
	s.w.prune()
}

// wake fills the channel, at most once per burstGap. The caller holds mu.
func (s *Subscription) wake() {
	if s.done {
		return
	}
	if wait := burstGap - time.Since(s.last); wait > 0 {
		if s.timer == nil {
			s.timer = time.AfterFunc(wait, func() {
				s.w.mu.Lock()
				defer s.w.mu.Unlock()
				s.timer = nil
				if !s.done {
					s.fill()
				}
			})
		}
		return
	}
	s.fill()
}

func (s *Subscription) fill() {
	s.last = time.Now()
	select {
	case s.c <- struct{}{}:
	default:
	}
}

// clean drops what is not absolute, and repetitions.
func clean(paths []string) []string {
	var out []string
	seen := map[string]bool{}
	for _, d := range paths {
		if !filepath.IsAbs(d) {
			continue
		}
		if d = filepath.Clean(d); !seen[d] {
			seen[d] = true
			out = append(out, d)
		}
	}
	return out
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	in := map[string]bool{}
	for _, d := range a {
		in[d] = true
	}
	for _, d := range b {
		if !in[d] {
			return false
		}
	}
	return true
}

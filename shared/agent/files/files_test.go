package files_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drawbridge/shared/agent/files"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a watcher until the test ends.
func start(t *testing.T, w *files.Watcher) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func write(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
}

// woken waits for a wake.
func woken(t *testing.T, s *files.Subscription, why string) {
	t.Helper()
	select {
	case <-s.C():
	case <-time.After(10 * time.Second):
		t.Fatalf("not woken: %s", why)
	}
}

// calm drains wakes until none came for a while.
func calm(s *files.Subscription) {
	for {
		select {
		case <-s.C():
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
}

func quiet(t *testing.T, s *files.Subscription, why string) {
	t.Helper()
	select {
	case <-s.C():
		t.Fatalf("woken: %s", why)
	case <-time.After(100 * time.Millisecond):
	}
}

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	mkdir(t, a)
	mkdir(t, b)
	w := files.New(nil)
	early := w.Subscribe([]string{a})
	woken(t, early, "a new subscription reads once")
	start(t, w)
	woken(t, early, "Run began")
	both := w.Subscribe([]string{a, b, a, "relative", ""})
	calm(early)
	calm(both)

	write(t, filepath.Join(a, "f"), "x\n")
	woken(t, early, "a file appeared")
	woken(t, both, "a file appeared")
	calm(early)
	calm(both)
	write(t, filepath.Join(a, "f"), "y\n")
	woken(t, early, "a file grew")
	calm(early)
	calm(both)
	write(t, filepath.Join(b, "f"), "x\n")
	woken(t, both, "the other directory")
	quiet(t, early, "a directory that it did not name")

	early.Set([]string{b})
	woken(t, early, "other directories")
	calm(early)
	early.Set([]string{b, b})
	quiet(t, early, "the same directories again")
	write(t, filepath.Join(a, "f"), "z\n")
	quiet(t, early, "a directory that it no longer names")
	early.Close()
	early.Close()
	write(t, filepath.Join(b, "f"), "z\n")
	quiet(t, early, "after Close")
	early.Set([]string{a})
	woken(t, both, "still open")
}

// A file that is named wakes for itself and not for its neighbours, from before it
// exists and through its replacement.
func TestWatcher_File(t *testing.T) {
	dir := t.TempDir()
	mine, other := filepath.Join(dir, "day", "mine.jsonl"), filepath.Join(dir, "day", "other.jsonl")
	w := files.New(nil)
	start(t, w)
	s := w.Subscribe([]string{mine})
	all := w.Subscribe([]string{filepath.Dir(mine)})
	calm(s)
	mkdir(t, filepath.Dir(mine))
	write(t, mine, "x\n")
	woken(t, s, "the file appeared")
	calm(s)
	calm(all)
	write(t, other, "x\n")
	woken(t, all, "a file of the directory")
	quiet(t, s, "a neighbour appeared")
	write(t, other, "y\n")
	quiet(t, s, "a neighbour grew")
	write(t, mine, "y\n")
	woken(t, s, "the file grew")
	calm(s)

	held, err := os.Open(mine) // as its writer does
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := os.Rename(other, mine); err != nil {
		t.Fatal(err)
	}
	woken(t, s, "another file took the name")
	calm(s)
	write(t, mine, "z\n")
	woken(t, s, "the new file grew")
	calm(s)
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	woken(t, s, "the file went")
	calm(s)
	write(t, mine, "x\n")
	woken(t, s, "it came back")
}

// A directory that does not exist is waited for, however deep, and again after it
// was removed.
func TestWatcher_Appearing(t *testing.T) {
	root := filepath.Join(t.TempDir(), "home")
	mkdir(t, root)
	w := files.New(nil)
	start(t, w)
	want := filepath.Join(root, "sessions", "2026", "12", "01")
	s := w.Subscribe([]string{want})
	calm(s)
	write(t, filepath.Join(root, "state.sqlite-wal"), "x")
	quiet(t, s, "another file beside a parent")
	for range 3 {
		mkdir(t, want)
		write(t, filepath.Join(want, "r.jsonl"), "x\n")
		woken(t, s, "the directory appeared")
		calm(s)
		write(t, filepath.Join(want, "r.jsonl"), "y\n")
		woken(t, s, "a file in it grew")
		calm(s)
		if err := os.RemoveAll(filepath.Join(root, "sessions")); err != nil {
			t.Fatal(err)
		}
		woken(t, s, "it was removed")
		calm(s)
	}
}

// Nothing is lost: a reader that reads after each wake sees every record of a
// burst, and the directories that appear during it.
func TestWatcher_Burst(t *testing.T) {
	const dirs, records = 5, 400
	root := t.TempDir()
	w := files.New(nil)
	start(t, w)
	var names []string
	for i := range dirs {
		names = append(names, filepath.Join(root, fmt.Sprint(i)))
	}
	s := w.Subscribe(names)
	defer s.Close()
	var writer sync.WaitGroup
	writer.Go(func() {
		for _, name := range names {
			if os.Mkdir(name, 0o700) != nil {
				return
			}
			f, err := os.Create(filepath.Join(name, "f"))
			if err != nil {
				return
			}
			for range records {
				_, _ = f.WriteString("x\n")
			}
			f.Close()
		}
	})
	defer writer.Wait()
	deadline := time.After(20 * time.Second)
	for seen := int64(0); seen < dirs*records*2; {
		select {
		case <-s.C():
			seen = 0
			for _, name := range names {
				if fi, err := os.Stat(filepath.Join(name, "f")); err == nil {
					seen += fi.Size()
				}
			}
		case <-deadline:
			t.Fatalf("saw %d bytes of %d", seen, dirs*records*2)
		}
	}
}

// Without inotify every subscription is woken at the poll interval.
func TestWatcher_Poll(t *testing.T) {
	for _, tc := range []struct {
		name string
		w    *files.Watcher
	}{{"no instance", files.Deaf()}, {"no watch", files.Full()}} {
		t.Run(tc.name, func(t *testing.T) {
			start(t, tc.w)
			s := tc.w.Subscribe([]string{t.TempDir()})
			woken(t, s, "at once")
			begin := time.Now()
			for range 4 {
				woken(t, s, "by the poll")
			}
			if d := time.Since(begin); d < files.PollInterval*2 {
				t.Errorf("four polls in %v", d)
			}
			s.Close()
		})
	}
}

// An overflow wakes everybody.
func TestWatcher_Overflow(t *testing.T) {
	w, overflow := files.Scripted()
	start(t, w)
	s := w.Subscribe([]string{t.TempDir()})
	calm(s)
	overflow()
	woken(t, s, "events were lost")
}

// Run may end while subscribers stay, and a subscriber may come after it.
func TestWatcher_Stop(t *testing.T) {
	w := files.New(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	s := w.Subscribe([]string{t.TempDir()})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	s.Set([]string{t.TempDir()})
	s.Close()
	w.Subscribe([]string{t.TempDir()}).Close()
}

func BenchmarkWake(b *testing.B) {
	dir := b.TempDir()
	w := files.New(nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	defer func() { cancel(); <-done }()
	s := w.Subscribe([]string{dir})
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		b.StopTimer()
		calm(s)
		b.StartTimer()
		if _, err := f.WriteString("x\n"); err != nil {
			b.Fatal(err)
		}
		<-s.C()
	}
}

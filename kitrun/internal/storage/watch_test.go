package storage_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"drawbridge/kitrun/internal/storage"
)

// Proves worker 17.15 and 17.16 for the inspection: the first violation is told
// once, within a few inspections, and nothing is told after it.
func TestWatch(t *testing.T) {
	dir := tree(t)
	b := roomy
	b.MaxBytes = 100
	told, seen := make(chan string, 2), make(chan storage.Observation, 1000)
	done := make(chan error, 1)
	w := storage.Watcher{
		Roots: []string{dir}, Budget: b, Every: time.Millisecond,
		Seen: func(o storage.Observation) {
			select {
			case seen <- o:
			default:
			}
		},
		Violated: func(reason string) { told <- reason },
	}
	go func() { done <- w.Run(t.Context()) }()
	if o := <-seen; !o.Allowed || o.ObservedBytes != 100 {
		t.Errorf("first observation: %+v", o)
	}
	write(t, dir, "more", 1)
	if got := <-told; got != storage.OverBytes {
		t.Errorf("got %q", got)
	}
	if err := <-done; err != nil || len(told) != 0 {
		t.Errorf("ended with %v, %d more violations", err, len(told))
	}
}

func TestWatch_CannotLook(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	told, done := make(chan string, 1), make(chan error, 1)
	go func() {
		done <- storage.Watcher{Roots: []string{dir}, Budget: roomy, Every: time.Millisecond, Violated: func(reason string) { told <- reason }}.Run(t.Context())
	}()
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got := <-told; got != storage.InspectionFailed {
		t.Errorf("got %q", got)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWatch_Stops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- storage.Watcher{Roots: []string{tree(t)}, Budget: roomy, Violated: func(reason string) { t.Errorf("violated: %s", reason) }}.Run(ctx)
	}()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package control_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
)

// collect is what a client saw of a log.
func (w *world) collect(id string, follow bool) (string, error) {
	var b strings.Builder
	err := w.Client.Logs(w.t.Context(), id, 0, follow, func(o control.Output) error {
		b.WriteString(o.Stream + ":" + o.Text + "|")
		return nil
	})
	return b.String(), err
}

// A log is an event stream that says when it is whole, whatever the text holds.
func TestLogs(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	number, following := int64(0), false
	w.manager.logs = func(_ context.Context, _ string, n int64, follow bool, emit func(string, []byte) error) error {
		number, following = n, follow
		for _, text := range []string{"a\n\nevent: end\ndata: {}\n\n", "é\r\x00\xff", "last"} {
			if err := emit("stdout", []byte(text)); err != nil {
				return err
			}
		}
		return emit("", []byte("[gap]"))
	}
	got, err := w.collect(id, true)
	if want := "stdout:a\n\nevent: end\ndata: {}\n\n|stdout:é\r\x00\uFFFD|stdout:last|:[gap]|"; err != nil || got != want || number != 0 || !following {
		t.Errorf("got %q, %v, attempt %d", got, err, number)
	}
	w.manager.logs = func(context.Context, string, int64, bool, func(string, []byte) error) error { return nil }
	if got, err := w.collect(id, false); got != "" || err != nil {
		t.Errorf("an empty one: %q, %v", got, err)
	}
	w.manager.logs = func(context.Context, string, int64, bool, func(string, []byte) error) error {
		return fault.New(fault.NotFound, "nothing is kept")
	}
	_, err = w.collect(id, false)
	wantCode(t, err, fault.NotFound)
}

// A stream that breaks off is told from one that ended: when reading fails, and when
// stationd stops.
func TestLogs_Broken(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	w.manager.logs = func(_ context.Context, _ string, _ int64, _ bool, emit func(string, []byte) error) error {
		return errors.Join(emit("stdout", []byte("begun")), errors.New("the disk"))
	}
	got, err := w.collect(id, true)
	wantCode(t, err, fault.StationdUnavailable)
	if got != "stdout:begun|" {
		t.Errorf("got %q", got)
	}
	w.manager.logs = func(ctx context.Context, _ string, _ int64, _ bool, emit func(string, []byte) error) error {
		err := emit("stdout", []byte("begun"))
		<-ctx.Done()
		return err
	}
	seen := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- w.Client.Logs(t.Context(), id, 0, true, func(control.Output) error { close(seen); return nil })
	}()
	<-seen
	w.stop()
	wantCode(t, <-ended, fault.StationdUnavailable)
}

// Whoever loses the role that shows a log does not read on.
func TestLogs_RoleEnds(t *testing.T) {
	w := newWorld(t)
	id := w.theirs(store.RoleManager)
	w.manager.logs = func(ctx context.Context, _ string, _ int64, _ bool, emit func(string, []byte) error) error {
		err := emit("stdout", []byte("begun"))
		<-ctx.Done()
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := w.Client.Logs(ctx, id, 0, true, func(control.Output) error {
		return w.Store.GrantRole(ctx, w.lease, id, w.me.ID, store.RoleViewer)
	})
	wantCode(t, err, fault.StationdUnavailable)
	if ctx.Err() != nil {
		t.Error("the stream goes on")
	}
}

// A client that leaves ends the reading for it.
func TestLogs_ClientLeaves(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	left := make(chan struct{})
	w.manager.logs = func(ctx context.Context, _ string, _ int64, _ bool, emit func(string, []byte) error) error {
		defer close(left)
		err := emit("stdout", []byte("begun"))
		<-ctx.Done()
		return err
	}
	err := w.Client.Logs(t.Context(), id, 0, true, func(control.Output) error { return io.ErrClosedPipe })
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	testkit.Eventually(t, patience, func() bool {
		select {
		case <-left:
			return true
		default:
			return false
		}
	})
}

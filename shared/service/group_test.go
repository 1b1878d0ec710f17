package service_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/testkit"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// diary notes what happens in which order.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

func (d *diary) has(line string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.lines, line)
}

// until is an actor that ends when told, and notes both.
func (d *diary) until(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		d.note(name + " runs")
		<-ctx.Done()
		d.note(name + " told")
		time.Sleep(time.Millisecond) // so that a wrong order would show
		d.note(name + " ended")
		return ctx.Err()
	}
}

func (d *diary) order(t *testing.T, want ...string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	got := slices.DeleteFunc(slices.Clone(d.lines), func(l string) bool { return strings.HasSuffix(l, " runs") })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

var boom = fault.New(fault.LeaseLost, "boom")

// Whoever ends first, the others stop one after another in the order of Add.
func TestGroup_StagedStop(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ends  string
		err   error
		want  error
		order []string
	}{
		{"first ends", "a", nil, nil, []string{"stopping", "b told", "b ended", "c told", "c ended"}},
		{"middle fails", "b", boom, boom, []string{"stopping", "a told", "a ended", "c told", "c ended"}},
		{"last ends", "c", nil, nil, []string{"stopping", "a told", "a ended", "b told", "b ended"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var d diary
			g := service.Group{Stopping: func() { d.note("stopping") }}
			for _, name := range []string{"a", "b", "c"} {
				if name == tc.ends {
					g.Add(name, func(context.Context) error {
						for !allRun(&d, tc.ends) {
							time.Sleep(time.Millisecond)
						}
						return tc.err
					})
					continue
				}
				g.Add(name, d.until(name))
			}
			if err := g.Run(t.Context()); !errors.Is(err, tc.want) {
				t.Errorf("Run = %v, want %v", err, tc.want)
			}
			d.order(t, tc.order...)
		})
	}
}

func allRun(d *diary, but string) bool {
	for _, name := range []string{"a", "b", "c"} {
		if name != but && !d.has(name+" runs") {
			return false
		}
	}
	return true
}

// The context of an actor keeps the values of Run's and not its end: the stop
// stays staged when the caller's context is cancelled.
func TestGroup_CancelIsAStop(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
	var d diary
	var g service.Group
	g.Add("a", func(ctx context.Context) error {
		if ctx.Value(key{}) != "v" {
			t.Error("value is lost")
		}
		return d.until("a")(ctx)
	})
	g.Add("b", d.until("b"))
	go func() {
		for !d.has("a runs") || !d.has("b runs") {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	if err := g.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
	d.order(t, "a told", "a ended", "b told", "b ended")
}

func TestGroup_Signal(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			var d diary
			var g service.Group
			g.Add("a", func(ctx context.Context) error {
				raise(t, sig)
				return d.until("a")(ctx)
			})
			if err := g.Run(t.Context()); err != nil {
				t.Errorf("Run = %v", err)
			}
			d.order(t, "a told", "a ended")
		})
	}
}

func raise(t *testing.T, sig syscall.Signal) {
	if err := syscall.Kill(os.Getpid(), sig); err != nil {
		t.Error(err)
	}
}

// A sibling obeys its lifeline and SIGTERM; what a terminal sends is meant for
// its owner.
func TestGroup_Sibling(t *testing.T) {
	g := service.Group{Sibling: true}
	told := false
	g.Add("a", func(ctx context.Context) error {
		raise(t, syscall.SIGINT)
		raise(t, syscall.SIGHUP)
		select {
		case <-ctx.Done():
			told = true
			return nil
		case <-time.After(100 * time.Millisecond):
		}
		raise(t, syscall.SIGTERM)
		<-ctx.Done()
		return nil
	})
	if err := g.Run(t.Context()); err != nil || told {
		t.Errorf("Run = %v, stopped by SIGINT or SIGHUP: %v", err, told)
	}
}

// The second signal is the drain deadline, unless the program says otherwise.
func TestGroup_SecondSignal(t *testing.T) {
	for _, ignore := range []bool{false, true} {
		g := service.Group{Drain: time.Minute, IgnoreSecondSignal: ignore}
		g.Add("front", func(ctx context.Context) error {
			raise(t, syscall.SIGTERM)
			<-ctx.Done()
			raise(t, syscall.SIGTERM) // while front, told already, drains
			time.Sleep(100 * time.Millisecond)
			return nil
		})
		told := make(chan struct{})
		g.Add("back", func(ctx context.Context) error { <-ctx.Done(); close(told); return nil })
		err := g.Run(t.Context())
		if got := fault.Is(err, fault.DrainExpired); got == ignore {
			t.Errorf("ignore %v: Run = %v", ignore, err)
		}
		<-told
	}
}

// A signal that comes while the program stops for another reason is the first.
func TestGroup_FirstSignalWhileStopping(t *testing.T) {
	g := service.Group{Drain: time.Minute}
	g.Add("ends", func(context.Context) error { return nil })
	g.Add("drains", func(ctx context.Context) error {
		<-ctx.Done()
		raise(t, syscall.SIGTERM)
		time.Sleep(50 * time.Millisecond)
		return nil
	})
	if err := g.Run(t.Context()); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// At the drain deadline all contexts end; who returns then is waited for.
func TestGroup_DrainDeadline(t *testing.T) {
	g := service.Group{Drain: 50 * time.Millisecond}
	g.Add("ends", func(context.Context) error { return boom })
	g.Add("slow", func(ctx context.Context) error { <-ctx.Done(); time.Sleep(200 * time.Millisecond); return nil })
	late := make(chan struct{})
	g.Add("behind it", func(ctx context.Context) error { <-ctx.Done(); close(late); return nil })
	err := g.Run(t.Context())
	if fault.ExitCode(err) != 70 || !errors.Is(err, service.ErrDrain) || !errors.Is(err, boom) {
		t.Errorf("Run = %v, exit %d", err, fault.ExitCode(err))
	}
	<-late
}

// An actor that never ends is left behind, with the stacks for whoever asks why.
func TestGroup_Stuck(t *testing.T) {
	var stacks bytes.Buffer
	release, ended := make(chan struct{}), make(chan struct{})
	g := service.Group{Drain: 20 * time.Millisecond, Stacks: &stacks}
	g.Add("ends", func(context.Context) error { return nil })
	g.Add("stuck", func(context.Context) error { defer close(ended); <-release; return nil })
	begin := time.Now()
	err := g.Run(t.Context())
	if !errors.Is(err, service.ErrDrain) || fault.ExitCode(err) != 70 {
		t.Errorf("Run = %v", err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	if !strings.Contains(stacks.String(), "TestGroup_Stuck") {
		t.Errorf("the stacks do not show the stuck actor:\n%s", stacks.String())
	}
	close(release)
	<-ended
}

func TestGroup_Panic(t *testing.T) {
	var log bytes.Buffer
	var d diary
	g := service.Group{Log: slog.New(slog.NewTextHandler(&log, nil))}
	g.Add("a", d.until("a"))
	g.Add("b", func(context.Context) error { panic("out of luck") })
	err := g.Run(t.Context())
	if !fault.Is(err, fault.Internal) || strings.Contains(err.Error(), "luck") {
		t.Errorf("Run = %v", err)
	}
	if text := log.String(); !strings.Contains(text, "out of luck") || !strings.Contains(text, "TestGroup_Panic") || !strings.Contains(text, "actor=b") {
		t.Errorf("log without the panic, its actor or its stack:\n%s", text)
	}
}

func TestGroup_Empty(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := (&service.Group{}).Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
}

// After Run the program's signals are its own again.
func TestGroup_RestoresSignals(t *testing.T) {
	var g service.Group
	g.Add("ends", func(context.Context) error { return nil })
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGTERM)
	defer signal.Stop(caught)
	raise(t, syscall.SIGTERM)
	<-caught
}

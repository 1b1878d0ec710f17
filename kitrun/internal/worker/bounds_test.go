package worker_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
)

// still is an engine in memory, so that a test's clock may run on its own: it
// waits nowhere but for what the test holds back.
type still struct {
	worker.Engine // nil: what is not needed here
	image         string

	create, start, kill bool // the call is not answered

	mu   sync.Mutex
	spec worker.Spec
	made bool
	run  bool
	exit chan worker.Exit
	in   *io.PipeReader
}

func (s *still) Host() string { return "unix:///nonexistent/s" }

func (s *still) Info(context.Context) (worker.EngineInfo, error) {
	return worker.EngineInfo{OSType: "linux", Runtime: "runc", SwapLimit: true, CPUs: 2, SecurityOptions: []string{"name=seccomp,profile=default"}}, nil
}

func (s *still) Image(context.Context, string) (string, error) { return s.image, nil }

// answer gives none when it is held back: the caller gives up.
func answer(ctx context.Context, heldBack bool) error {
	if !heldBack {
		return nil
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (s *still) Create(ctx context.Context, spec worker.Spec) (string, error) {
	if err := answer(ctx, s.create); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spec, s.made, s.exit = spec, true, make(chan worker.Exit, 1)
	return strings.Repeat("c", 64), nil
}

func (s *still) Inspect(context.Context, string) (worker.Observed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.made {
		return worker.Observed{}, worker.ErrNoContainer
	}
	p := s.spec
	o := worker.Observed{
		Image: p.Image, Entrypoint: p.Entrypoint, Command: p.Command, Env: p.Env, User: p.User, WorkingDir: p.WorkingDir, Labels: p.Labels, OpenStdin: p.Stdin,
		Memory: p.Memory, MemorySwap: p.Memory, NanoCPUs: p.NanoCPUs, Pids: p.Pids, Ulimits: p.Ulimits, Tmpfs: p.Tmpfs, Network: p.Network,
		ExtraHosts: p.ExtraHosts, DNS: p.DNS, ReadOnlyRoot: true, CapDrop: []string{"ALL"}, SecurityOptions: []string{"no-new-privileges"}, IpcMode: "private",
		LogDriver: "none", Runtime: "runc", Status: "created", Running: s.run, Started: s.run,
		MaskedPaths:   []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"},
		ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
	}
	for _, m := range p.Mounts {
		m.Type, m.Propagation = "bind", "rprivate"
		o.Mounts = append(o.Mounts, m)
	}
	return o, nil
}

func (s *still) Attach(context.Context, string) (worker.Streams, error) {
	in, stdin := io.Pipe()
	out, stdout := io.Pipe()
	s.in = in
	return &silent{stdin, out, stdout}, nil
}

func (s *still) Wait(context.Context, string) (<-chan worker.Exit, error) { return s.exit, nil }

func (s *still) Start(ctx context.Context, _ string) error {
	if err := answer(ctx, s.start); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = true
	go io.Copy(io.Discard, s.in)
	return nil
}

func (s *still) Kill(ctx context.Context, _ string) error {
	if err := answer(ctx, s.kill); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run = false
	select {
	case s.exit <- worker.Exit{Status: 137}:
	default:
	}
	return nil
}

func (s *still) Remove(context.Context, string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = false
	return nil
}

func (s *still) List(context.Context, ...string) ([]worker.Found, error) { return nil, nil }

// silent are streams on which nothing comes out.
type silent struct {
	stdin       *io.PipeWriter
	out, stdout io.Closer
}

func (s *silent) Stdin() io.Writer  { return s.stdin }
func (s *silent) CloseWrite() error { return s.stdin.Close() }

func (s *silent) Split(io.Writer, io.Writer) error {
	_, err := io.Copy(io.Discard, s.out.(io.Reader))
	return err
}

func (s *silent) Close() error { return errors.Join(s.stdout.Close(), s.stdin.Close()) }

// onStill runs a worker on a clock of the test's own and gives how long it took.
func onStill(t *testing.T, s *still, timeout time.Duration) (receipt worker.Receipt, took time.Duration, err error) {
	r := newRig(t)
	s.image = r.opts.Image
	r.deps.Engine, r.opts.Timeout = s, timeout
	r.opts.Storage = &worker.StorageBudget{Budget: budget()}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		receipt, err = worker.Run(t.Context(), r.opts, r.deps)
		took = time.Since(begun)
	})
	return receipt, took, err
}

// An engine that does not answer a call of the start holds nobody up for more than
// its minute, whatever time the run has.
func TestRun_CallsAreBounded(t *testing.T) {
	for _, tc := range []struct {
		name string
		s    *still
	}{
		{"create", &still{create: true}},
		{"start", &still{start: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, took, err := onStill(t, tc.s, time.Hour)
			wantCode(t, err, fault.WorkerNotStarted)
			if took < time.Minute || took > 61*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A turn ends at its deadline, however long that is, and waits two seconds for output
// that does not end with the container.
func TestRun_LongDeadline(t *testing.T) {
	for _, timeout := range []time.Duration{time.Minute, 5 * time.Minute} {
		receipt, took, err := onStill(t, &still{}, timeout)
		if err != nil {
			t.Fatal(err)
		}
		if !receipt.Terminal.Timeout || receipt.Completed || took < timeout || took > timeout+3*time.Second {
			t.Errorf("%v: after %v %+v", timeout, took, receipt.Terminal)
		}
	}
}

// A kill that the engine does not take is tried for five seconds; then the container
// is removed all the same.
func TestRun_KillIsBounded(t *testing.T) {
	receipt, took, err := onStill(t, &still{kill: true}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if !receipt.ContainerRemoved || receipt.Terminal.Status != nil || took < 65*time.Second || took > 75*time.Second {
		t.Errorf("after %v %+v", took, receipt.Terminal)
	}
}

package siblings_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"drawbridge/bridge/internal/siblings"
	"drawbridge/shared/sibling"
)

// role makes a re-executed test binary a sibling, or a bridge.
const role = "DRAWBRIDGE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		goleak.VerifyTestMain(m)
	case "bridge":
		runBridge()
	default:
		runSibling(os.Getenv(role))
	}
}

// mark appends one line to the file that the test reads.
func mark(format string, args ...any) {
	f, err := os.OpenFile(os.Getenv("MARKS"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		os.Exit(9)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", args...)
}

func runSibling(kind string) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // stderr may break when bridge dies
	mark("start %s pgid=%t fd=%s", kind, syscall.Getpgrp() == os.Getpid(), os.Getenv("DRAWBRIDGE_LIFELINE_FD"))
	switch kind {
	case "crash":
		if _, err := os.Stat(os.Getenv("REPAIRED")); err != nil {
			os.Exit(3)
		}
	case "held":
		if _, err := os.Stat(os.Getenv("REPAIRED")); err != nil {
			os.Exit(75)
		}
	case "environ":
		for _, e := range os.Environ() {
			mark("env %s", e)
		}
	case "chatty":
		fmt.Fprintf(os.Stderr, "level=ERROR broken \x1b[31mpipe\n%s\n", strings.Repeat("x", 10_000))
		fmt.Println("on stdout")
		for i := range 1000 {
			fmt.Fprintf(os.Stderr, "line %d\n", i)
		}
	}
	status := "active"
	if kind == "standby" {
		status = "standby"
	}
	if kind != "mute" {
		if _, err := daemon.SdNotify(false, "READY=1\nSTATUS="+status); err != nil {
			mark("notify %v", err)
		}
	}
	fd, _ := strconv.Atoi(os.Getenv("DRAWBRIDGE_LIFELINE_FD"))
	_, _ = io.Copy(io.Discard, os.NewFile(uintptr(fd), "lifeline"))
	mark("cut")
	if kind == "slow" {
		for i := range 10 {
			time.Sleep(100 * time.Millisecond)
			fmt.Fprintln(os.Stderr, "draining")
			mark("drain %d", i)
		}
	}
	mark("end")
	os.Exit(0)
}

// runBridge holds one slow sibling until it is killed.
func runBridge() {
	s := siblings.New(siblings.Options{
		Programs: []sibling.Program{program("slow", os.Getenv("MARKS"))},
		Log:      slog.New(slog.DiscardHandler),
	})
	_ = s.Run(context.Background())
}

func program(kind, marks string, extra ...string) sibling.Program {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return sibling.Program{
		Name: kind, Path: exe, Args: []string{"serve"},
		Env: append([]string{role + "=" + kind, "MARKS=" + marks}, extra...),
	}
}

// sink collects log lines.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// rig runs Siblings until the test ends.
type rig struct {
	*siblings.Siblings
	log   *sink
	marks string
	stop  context.CancelFunc
	done  chan error
}

func run(t *testing.T, timing siblings.Timing, programs func(marks string) []sibling.Program) *rig {
	t.Helper()
	r := &rig{log: &sink{}, marks: filepath.Join(t.TempDir(), "marks"), done: make(chan error, 1)}
	r.Siblings = siblings.New(siblings.Options{
		Programs: programs(r.marks),
		Log:      slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Timing:   timing,
	})
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() { r.done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-r.done:
			r.done <- err
		case <-time.After(10 * time.Second):
			t.Error("Run does not return")
		}
	})
	return r
}

func (r *rig) read() string {
	data, _ := os.ReadFile(r.marks)
	return string(data)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not in time", what)
}

// quick makes restarts fast enough for a test.
var quick = siblings.Timing{FirstPause: time.Millisecond, MostPause: 8 * time.Millisecond, FailedPause: 50 * time.Millisecond}

func TestSiblings_Run_StatesAndCleanStop(t *testing.T) {
	r := run(t, siblings.Timing{}, func(marks string) []sibling.Program {
		return []sibling.Program{program("steady", marks), program("standby", marks)}
	})
	want := map[string]string{"steady": "up", "standby": "standby"}
	eventually(t, "ready", func() bool {
		return cmp.Equal(want, r.States()) && strings.Count(r.log.String(), "state=") == 2
	})
	for _, line := range []string{"start steady pgid=true fd=3", "start standby pgid=true fd=3"} {
		if !strings.Contains(r.read(), line) {
			t.Errorf("marks lack %q:\n%s", line, r.read())
		}
	}
	r.stop()
	if err := <-r.done; err != nil {
		t.Fatalf("Run: %v", err)
	}
	r.done <- nil
	if got := strings.Count(r.read(), "end\n"); got != 2 {
		t.Errorf("%d siblings ended in order, want 2:\n%s", got, r.read())
	}
}

// Proves core 19.61: five crashes in a minute mark the sibling failed, and one
// that is repaired is up again by itself.
func TestSiblings_Run_CrashingSiblingFailsAndRecovers(t *testing.T) {
	repaired := filepath.Join(t.TempDir(), "repaired")
	r := run(t, quick, func(marks string) []sibling.Program {
		return []sibling.Program{program("crash", marks, "REPAIRED="+repaired)}
	})
	eventually(t, "failed", func() bool { return r.States()["crash"] == "failed" })
	if got := strings.Count(r.log.String(), "exit status 3"); got < 5 {
		t.Errorf("marked failed after %d exits, want 5:\n%s", got, r.log)
	}
	before := strings.Count(r.read(), "start crash")
	eventually(t, "tried again", func() bool { return strings.Count(r.read(), "start crash") > before })
	if err := os.WriteFile(repaired, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "up again", func() bool { return r.States()["crash"] == "up" })
}

// One whose lease another process holds is a stand-by, never failed, and takes
// over when it can.
func TestSiblings_Run_LeaseHeld(t *testing.T) {
	free := filepath.Join(t.TempDir(), "free")
	r := run(t, quick, func(marks string) []sibling.Program {
		return []sibling.Program{program("held", marks, "REPAIRED="+free)}
	})
	eventually(t, "tried again and again", func() bool {
		if got := r.States()["held"]; got != "standby" {
			t.Fatalf("state %q", got)
		}
		return strings.Count(r.read(), "start held") > 6
	})
	if log := r.log.String(); strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("it counts as a failure:\n%s", log)
	}
	if err := os.WriteFile(free, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "up", func() bool { return r.States()["held"] == "up" })
}

// The restarts wait 1, 2, 4 … times the first pause.
func TestSiblings_Run_BackOff(t *testing.T) {
	timing := siblings.Timing{FirstPause: 40 * time.Millisecond, MostPause: time.Second, Exits: 4, FailedPause: time.Hour}
	r := run(t, timing, func(marks string) []sibling.Program {
		return []sibling.Program{program("crash", marks, "REPAIRED="+marks+".never")}
	})
	begun := time.Now()
	eventually(t, "failed", func() bool { return r.States()["crash"] == "failed" })
	if took := time.Since(begun); took < (40+80+160)*time.Millisecond {
		t.Errorf("four exits took %v, want at least the three pauses 40+80+160 ms", took)
	}
}

// Proves core 19.63: a sibling that cannot start is a line on the log and a state.
func TestSiblings_Run_MissingProgram(t *testing.T) {
	r := run(t, quick, func(string) []sibling.Program {
		return []sibling.Program{{Name: "watchd", Path: filepath.Join(t.TempDir(), "watchd")}}
	})
	eventually(t, "failed", func() bool { return r.States()["watchd"] == "failed" })
	if !strings.Contains(r.log.String(), "cannot start") {
		t.Errorf("log has no line about the start:\n%s", r.log)
	}
}

// Nothing is started before the Host was served.
func TestSiblings_Run_WaitsForStart(t *testing.T) {
	marks := filepath.Join(t.TempDir(), "marks")
	start := make(chan struct{})
	s := siblings.New(siblings.Options{
		Programs: []sibling.Program{program("steady", marks)},
		Log:      slog.New(slog.DiscardHandler),
	})
	s.Follow(start, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	time.Sleep(50 * time.Millisecond) // long enough for a wrong start to show
	if _, err := os.Stat(marks); err == nil {
		t.Error("the sibling was started before Start")
	}
	close(start)
	eventually(t, "started", func() bool { return s.States()["steady"] == "up" })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A sibling with more to finish than the drain has goes on alone.
func TestSiblings_Stop_LeavesSlowSibling(t *testing.T) {
	r := run(t, siblings.Timing{Stop: 150 * time.Millisecond}, func(marks string) []sibling.Program {
		return []sibling.Program{program("slow", marks)}
	})
	eventually(t, "up", func() bool { return r.States()["slow"] == "up" })
	r.stop()
	if err := <-r.done; err != nil {
		t.Fatalf("Run: %v", err)
	}
	r.done <- nil
	if strings.Contains(r.read(), "end\n") {
		t.Fatalf("Run waited for the slow sibling:\n%s", r.read())
	}
	eventually(t, "end of the drain", func() bool { return strings.Contains(r.read(), "drain 9\nend\n") })
}

// Proves core 19.59: a kill of the bridge's whole process group leaves siblings to
// their drain.
func TestSiblings_KilledBridge(t *testing.T) {
	marks := filepath.Join(t.TempDir(), "marks")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bridge := exec.Command(exe)
	bridge.Env = []string{role + "=bridge", "MARKS=" + marks}
	bridge.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := bridge.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() string { data, _ := os.ReadFile(marks); return string(data) }
	eventually(t, "sibling started", func() bool { return strings.Contains(read(), "start slow") })
	if err := syscall.Kill(-bridge.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = bridge.Wait()
	eventually(t, "lifeline cut", func() bool { return strings.Contains(read(), "cut\n") })
	eventually(t, "end of the drain", func() bool { return strings.Contains(read(), "drain 9\nend\n") })
}

func TestSiblings_Output(t *testing.T) {
	r := run(t, siblings.Timing{}, func(marks string) []sibling.Program {
		return []sibling.Program{program("chatty", marks)}
	})
	eventually(t, "up", func() bool { return r.States()["chatty"] == "up" })
	r.stop()
	<-r.done
	r.done <- nil
	log := r.log.String()
	for _, want := range []string{"level=ERROR msg=\"level=ERROR broken  [31mpipe\"", "on stdout", "lines of a sibling were dropped", "lines=803"} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %q", want)
		}
	}
	for line := range strings.SplitSeq(log, "\n") {
		if len(line) > 4096+200 {
			t.Errorf("log line of %d bytes", len(line))
		}
	}
}

// The child sees what it was given and nothing of the bridge's own environment.
func TestSiblings_ChildEnvironment(t *testing.T) {
	t.Setenv("CANARY_TOKEN", "canary")
	r := run(t, siblings.Timing{}, func(marks string) []sibling.Program {
		return []sibling.Program{program("environ", marks)}
	})
	eventually(t, "up", func() bool { return r.States()["environ"] == "up" })
	got := r.read()
	if strings.Contains(got, "canary") {
		t.Error("the child sees a variable of the bridge")
	}
	if !strings.Contains(got, "env NOTIFY_SOCKET=@drawbridge-bridge-") {
		t.Errorf("no notify socket:\n%s", got)
	}
}

// Somebody else's word about a sibling counts for nothing.
func TestSiblings_Notify_ForeignSender(t *testing.T) {
	r := run(t, siblings.Timing{}, func(marks string) []sibling.Program {
		return []sibling.Program{program("environ", marks), program("mute", marks)}
	})
	eventually(t, "up", func() bool { return r.States()["environ"] == "up" })
	for line := range strings.SplitSeq(r.read(), "\n") {
		if name, ok := strings.CutPrefix(line, "env NOTIFY_SOCKET="); ok {
			t.Setenv("NOTIFY_SOCKET", name)
		}
	}
	if sent, err := daemon.SdNotify(false, "READY=1"); !sent || err != nil {
		t.Fatalf("notify: %v %v", sent, err)
	}
	if got := r.States()["mute"]; got != "standby" {
		t.Errorf("state of a sibling that said nothing is %q", got)
	}
}

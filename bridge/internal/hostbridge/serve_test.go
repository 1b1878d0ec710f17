package hostbridge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

const patience = 30 * time.Second

// The test binary is also the siblings, by the name it is started under,
// and a Host that dies, by a variable.
func TestMain(m *testing.M) {
	switch name := filepath.Base(os.Args[0]); {
	case name == "watchd" || name == "outboxd" || name == "brokerd" || name == "stationd":
		runSibling(name)
	case os.Getenv("DRAWBRIDGE_TEST_HOST") != "":
		runMortalHost()
	default:
		testkit.Leak(m)
	}
}

// runSibling behaves as its file in the folder of marks says: "crash" exits,
// "slow" drains for a second.
func runSibling(name string) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	signal.Ignore(syscall.SIGINT)
	dir := filepath.Dir(os.Args[slices.Index(os.Args, "-store-dir")+1])
	behave, _ := os.ReadFile(filepath.Join(dir, name))
	mark := func(format string, args ...any) {
		f, err := os.OpenFile(filepath.Join(dir, "marks"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			os.Exit(9)
		}
		defer f.Close()
		fmt.Fprintf(f, name+" "+format+"\n", args...)
	}
	mark("start %s", strings.Join(os.Args[1:], " "))
	for _, e := range os.Environ() {
		mark("env %s", e)
	}
	if string(behave) == "crash" {
		os.Exit(3)
	}
	fmt.Fprintln(os.Stdout, "a word on standard output")
	_, _ = daemon.SdNotify(false, "READY=1")
	fd, _ := strconv.Atoi(os.Getenv("DRAWBRIDGE_LIFELINE_FD"))
	_, _ = io.Copy(io.Discard, os.NewFile(uintptr(fd), "lifeline"))
	if string(behave) == "slow" {
		for i := range 10 {
			time.Sleep(100 * time.Millisecond)
			mark("drain %d", i)
			fmt.Fprintln(os.Stderr, "draining")
		}
	}
	mark("end")
	os.Exit(0)
}

// runMortalHost starts the bridge and dies as soon as it is told to.
func runMortalHost() {
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		os.Exit(9)
	}
	for {
		if _, err := os.Stat(os.Getenv("DRAWBRIDGE_TEST_HOST")); err == nil {
			os.Exit(0)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// world is a folder with a bridge and its siblings, and one running bridge.
type world struct {
	t      *testing.T
	dir    string
	args   []string
	cmd    *exec.Cmd
	in     *os.File
	out    *bufio.Reader
	stderr *bytes.Buffer
	exit   chan error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{t: t, dir: testkit.RuntimeDir(t)}
	program, err := os.ReadFile(testkit.BuildProgram(t, "bridge"))
	if err != nil {
		t.Fatal(err)
	}
	// A copy: the bridge looks for its siblings beside the real file.
	if err := os.WriteFile(w.path("bridge"), program, 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.path("marksdir"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"watchd", "outboxd", "brokerd", "stationd"} {
		if err := os.Symlink(exe, w.path(name)); err != nil {
			t.Fatal(err)
		}
	}
	w.args = []string{
		w.path("bridge"), "host-bridge", "--profile", writeProfile(t, nil), "--host", "my-agent", "--host-version", "1.8.0",
		"--store-dir", w.path("marksdir/store"), "--runtime-dir", w.path("run"), "--tmux-socket", w.path("no-tmux"),
	}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// behave tells a sibling what to do.
func (w *world) behave(name, how string) {
	w.t.Helper()
	if err := os.WriteFile(w.path("marksdir/"+name), []byte(how), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) marks() string {
	data, _ := os.ReadFile(w.path("marksdir/marks"))
	return string(data)
}

// start runs argv, which is the bridge or something that starts it.
func (w *world) start(argv []string, env ...string) {
	w.t.Helper()
	theirs, in, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	w.stderr = &bytes.Buffer{}
	w.cmd = exec.Command(argv[0], argv[1:]...)
	w.cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir, "LANG=C.UTF-8", "OPENAI_API_KEY=CANARY-key", "CODEX_HOME=/CANARY",
		"MY_AGENT_SESSION_ID=" + sessionValue, "MY_AGENT_TOKEN=" + tokenValue,
	}, env...)
	w.cmd.Stdin, w.cmd.Stderr = theirs, w.stderr
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w.cmd.WaitDelay = patience
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	w.out, w.in = bufio.NewReaderSize(out, 1<<20), in
	if err := w.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	theirs.Close()
	w.t.Cleanup(func() {
		in.Close()
		_ = syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL)
		if w.exit == nil {
			_ = w.cmd.Wait()
		}
	})
}

func (w *world) send(line string) {
	w.t.Helper()
	if _, err := fmt.Fprintln(w.in, line); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) line() string {
	w.t.Helper()
	line, err := w.out.ReadString('\n')
	if err != nil {
		w.t.Fatalf("no line from the bridge: %v; stderr:\n%s", err, w.stderr)
	}
	return line
}

func (w *world) initialize() {
	w.t.Helper()
	w.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	if line := w.line(); !strings.Contains(line, `"name":"drawbridge-host-bridge"`) {
		w.t.Fatalf("initialize: %s", line)
	}
}

// list gives the structured result of list.
func (w *world) list() map[string]any {
	w.t.Helper()
	w.send(`{"jsonrpc":"2.0","id":"list","method":"tools/call","params":{"name":"agent_knock_knock_list"}}`)
	var answer struct {
		Result struct {
			StructuredContent map[string]any `json:"structuredContent"`
		} `json:"result"`
	}
	line := w.line()
	if err := json.Unmarshal([]byte(line), &answer); err != nil || answer.Result.StructuredContent == nil {
		w.t.Fatalf("list: %s", line)
	}
	return answer.Result.StructuredContent
}

func (w *world) siblings() map[string]any {
	w.t.Helper()
	states, _ := w.list()["siblings"].(map[string]any)
	return states
}

// wait gives what the bridge's end was like.
func (w *world) wait() error {
	w.t.Helper()
	w.exit = make(chan error, 1)
	go func() { w.exit <- w.cmd.Wait() }()
	select {
	case err := <-w.exit:
		return err
	case <-time.After(patience):
		w.t.Fatalf("the bridge does not end; stderr:\n%s", w.stderr)
		return nil
	}
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, ok, what)
}

var bothUp = map[string]any{"watchd": "up", "outboxd": "up"}

// Proves core 19.59: stdin end, SIGTERM, SIGINT and several at once end the bridge
// with 0, with no lease held and no sibling left.
func TestServe_Stops(t *testing.T) {
	t.Parallel()
	signals := func(list ...syscall.Signal) func(*world) {
		return func(w *world) {
			for _, s := range list {
				_ = w.cmd.Process.Signal(s)
			}
		}
	}
	tests := map[string]func(*world){
		"stdin end":          func(w *world) { w.in.Close() },
		"SIGTERM":            signals(syscall.SIGTERM),
		"SIGINT":             signals(syscall.SIGINT),
		"SIGINT and SIGTERM": signals(syscall.SIGINT, syscall.SIGTERM),
		"everything":         func(w *world) { w.in.Close(); signals(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)(w) },
	}
	for name, stop := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start(w.args)
			w.initialize()
			w.eventually("siblings up", func() bool { return cmp.Equal(w.siblings(), bothUp) })
			stop(w)
			if rest, _ := io.ReadAll(w.out); len(rest) > 0 {
				t.Errorf("more on stdout: %s", rest)
			}
			if err := w.wait(); err != nil {
				t.Fatalf("ended with %v; stderr:\n%s", err, w.stderr)
			}
			if got := w.marks(); strings.Count(got, " end\n") != 2 {
				t.Errorf("not both siblings ended in order:\n%s", got)
			}
			db, err := store.Open(context.Background(), store.Options{Dir: w.path("marksdir/store"), Program: "test"})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			rows, err := db.Leases(context.Background(), "")
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range rows {
				if r.Holder != "" {
					t.Errorf("lease %s is held by %s", r.Name, r.Holder)
				}
			}
		})
	}
}

// Proves core 19.59: SIGKILL of the bridge's process group leaves siblings to their
// drain; a second bridge can start on the same Store at once.
func TestServe_Killed(t *testing.T) {
	w := newWorld(t)
	w.behave("outboxd", "slow")
	w.start(w.args)
	w.initialize()
	w.eventually("siblings up", func() bool { return cmp.Equal(w.siblings(), bothUp) })
	if err := syscall.Kill(-w.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = w.cmd.Wait()
	w.start(w.args)
	w.initialize()
	w.eventually("the old outboxd ends its drain", func() bool { return strings.Contains(w.marks(), "outboxd drain 9\noutboxd end\n") })
	w.eventually("new siblings up", func() bool { return cmp.Equal(w.siblings(), bothUp) })
	w.behave("outboxd", "")
	w.in.Close()
	if err := w.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// Proves core 19.63: initialize is answered before any sibling exists, and one that
// cannot start is a line on stderr and a state, never a dead bridge.
func TestServe_SiblingsAfterInitialize(t *testing.T) {
	w := newWorld(t)
	if err := os.Remove(w.path("outboxd")); err != nil {
		t.Fatal(err)
	}
	w.start(w.args)
	time.Sleep(300 * time.Millisecond) // long enough for a wrong start to show
	if got := w.marks(); got != "" {
		t.Errorf("a sibling exists before initialize:\n%s", got)
	}
	w.initialize()
	w.eventually("watchd up", func() bool { return w.siblings()["watchd"] == "up" })
	w.in.Close()
	if err := w.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
	if !strings.Contains(w.stderr.String(), `"sibling":"outboxd"`) || !strings.Contains(w.stderr.String(), "cannot start") {
		t.Errorf("stderr:\n%s", w.stderr)
	}
}

// Proves core 19.61 with the real times: outboxd crashes, is restarted after 1, 2,
// 4 and 8 s, is marked failed, and is up again by itself once repaired. The
// bridge lives on.
func TestServe_CrashingSibling(t *testing.T) {
	if testing.Short() {
		t.Skip("long: takes a minute")
	}
	w := newWorld(t)
	w.behave("outboxd", "crash")
	w.start(w.args)
	w.initialize()
	w.eventually("outboxd failed", func() bool { return w.siblings()["outboxd"] == "failed" })
	if got := strings.Count(w.marks(), "outboxd start"); got != 5 {
		t.Errorf("%d starts before it was marked failed, want 5", got)
	}
	if got := w.siblings()["watchd"]; got != "up" {
		t.Errorf("watchd is %v", got)
	}
	w.behave("outboxd", "")
	testkit.Eventually(t, 35*time.Second, func() bool { return w.siblings()["outboxd"] == "up" }, "up again")
	w.in.Close()
	if err := w.wait(); err != nil {
		t.Errorf("ended with %v", err)
	}
}

// Siblings see what they are meant to see (design, override 11), and no secret
// is an argument or a line on stderr.
func TestServe_SiblingEnvironment(t *testing.T) {
	w := newWorld(t)
	w.start(w.args, "LC_ALL=C", "XDG_STATE_HOME="+w.dir)
	w.initialize()
	w.eventually("siblings up", func() bool { return cmp.Equal(w.siblings(), bothUp) })
	w.in.Close()
	if err := w.wait(); err != nil {
		t.Fatalf("ended with %v", err)
	}
	names := map[string][]string{}
	for line := range strings.SplitSeq(w.marks(), "\n") {
		name, rest, _ := strings.Cut(line, " ")
		if entry, ok := strings.CutPrefix(rest, "env "); ok {
			variable, _, _ := strings.Cut(entry, "=")
			names[name] = append(names[name], variable)
		}
		if args, ok := strings.CutPrefix(rest, "start "); ok && strings.Contains(args, "CANARY") {
			t.Errorf("a secret in the arguments of %s: %s", name, args)
		}
	}
	base := []string{
		"AKK_HOST_PROFILE_FINGERPRINT", "AKK_HOST_PROFILE_HOST", "AKK_HOST_PROFILE_HOST_VERSION", "AKK_HOST_PROFILE_SELECTION",
		"AKK_HOST_PROFILE_SOURCE", "DRAWBRIDGE_LIFELINE_FD", "HOME", "LANG", "LC_ALL", "MY_AGENT_SESSION_ID",
	}
	want := map[string][]string{
		"watchd":  append(slices.Clone(base), "NOTIFY_SOCKET", "PATH", "XDG_STATE_HOME"),
		"outboxd": append(slices.Clone(base), "MY_AGENT_TOKEN", "NOTIFY_SOCKET", "PATH", "XDG_STATE_HOME"),
	}
	for _, list := range names {
		slices.Sort(list)
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	if strings.Contains(w.stderr.String(), "CANARY") {
		t.Errorf("a secret on stderr:\n%s", w.stderr)
	}
	if !strings.Contains(w.stderr.String(), "a word on standard output") {
		t.Errorf("what siblings write is not on stderr:\n%s", w.stderr)
	}
}

// A brokerd or a stationd beside the bridge is kept like the others, and learns
// nothing of the Host's session; a brokerd learns which engine there is (broker §1,
// station §15).
func TestServe_With(t *testing.T) {
	for name, tc := range map[string]struct {
		args string
		env  []string // besides what every sibling has
	}{
		"brokerd":  {"", []string{"DOCKER_HOST"}},
		"stationd": {" -on-exit stop", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.start(append(w.args, "--with", name+","+name), "DOCKER_HOST=unix:///run/engine.sock", "BROKERD_LISTEN=all", "STATIOND_ON_EXIT=keep")
			w.initialize()
			all := map[string]any{"watchd": "up", "outboxd": "up", name: "up"}
			w.eventually("siblings up", func() bool { return cmp.Equal(w.siblings(), all) })
			w.in.Close()
			if err := w.wait(); err != nil {
				t.Fatalf("ended with %v", err)
			}
			var env []string
			for line := range strings.SplitSeq(w.marks(), "\n") {
				if entry, ok := strings.CutPrefix(line, name+" env "); ok {
					env = append(env, entry[:strings.Index(entry, "=")])
				}
			}
			slices.Sort(env)
			want := append(tc.env, "DRAWBRIDGE_LIFELINE_FD", "HOME", "LANG", "NOTIFY_SOCKET", "PATH")
			if diff := cmp.Diff(want, env); diff != "" {
				t.Error(diff)
			}
			start := name + " start serve -store-dir " + w.path("marksdir/store") + " -runtime-dir " + w.path("run") + " -log-level info -log-format json" + tc.args + "\n"
			if got := w.marks(); strings.Count(got, name+" start") != 1 || !strings.Contains(got, start) || !strings.Contains(got, name+" end\n") {
				t.Errorf("marks:\n%s", got)
			}
		})
	}
}

// Proves core 19.58 in part: a restarted bridge knows no offer of its session, and
// those of others stay.
func TestServe_ForgetsOffers(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	open := func() *store.Store {
		db, err := store.Open(ctx, store.Options{Dir: w.path("marksdir/store"), Program: "test"})
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open()
	mint := func(owner string) store.OfferKey {
		key := store.OfferKey{OwnerSession: owner, Kind: "approval", TargetType: "turn", TargetID: "turn-1"}
		err := db.MintOffer(ctx, store.NewOffer{Key: key, Payload: []byte(`{}`), Life: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	ours, theirs := mint(sessionValue), mint("another session")
	db.Close()
	w.start(w.args)
	w.initialize()
	db = open()
	defer db.Close()
	if _, err := db.ConsumeOffer(ctx, ours); err == nil {
		t.Error("an offer of the session outlived the restart")
	}
	if _, err := db.ConsumeOffer(ctx, theirs); err != nil {
		t.Errorf("an offer of another session is gone: %v", err)
	}
}

// A Host that dies is noticed although somebody else holds stdin open.
func TestServe_OwnerGone(t *testing.T) {
	w := newWorld(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	die := w.path("die")
	w.start(append([]string{exe}, w.args...), "DRAWBRIDGE_TEST_HOST="+die)
	w.initialize()
	w.eventually("siblings up", func() bool { return cmp.Equal(w.siblings(), bothUp) })
	if err := os.WriteFile(die, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.eventually("siblings ended", func() bool { return strings.Count(w.marks(), " end\n") == 2 })
	if _, err := w.out.ReadByte(); err != io.EOF { // the bridge held the other end
		t.Errorf("stdout: %v", err)
	}
	_ = w.wait()
	if !strings.Contains(w.stderr.String(), "the Host is gone") {
		t.Errorf("stderr:\n%s", w.stderr)
	}
}

package lender_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drawbridge/kitrun/internal/lender"
	"drawbridge/shared/fault"
	"drawbridge/shared/sibling"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

const patience = 30 * time.Second

func TestMain(m *testing.M) {
	switch how := os.Getenv(behave); how {
	case "":
		goleak.VerifyTestMain(m)
	case "kitrun":
		os.Exit(mortalKitrun(os.Args[1]))
	default:
		os.Exit(fakeBrokerd(how, os.Args[1]))
	}
}

// world is a Store with a creator and, after run, a Lender.
type world struct {
	t       *testing.T
	dir     string
	s       *store.Store
	creator *store.Lease
	auth    string
	l       *lender.Lender
	stop    func()
	log     *lines
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), log: &lines{}}
	var err error
	if w.s, err = store.Open(t.Context(), store.Options{Dir: w.store(), Program: "kitrun"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.s.Close() })
	if w.creator, err = w.s.Acquire(t.Context(), "kitrun/one", time.Minute); err != nil {
		t.Fatal(err)
	}
	w.auth = filepath.Join(w.dir, "auth.json")
	if err := os.WriteFile(w.auth, []byte(`{"OPENAI_API_KEY":"test-CANARY-credential"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) store() string { return filepath.Join(w.dir, "store") }

func program(t testing.TB, how, storeDir string) sibling.Program {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return sibling.Program{Name: "brokerd", Path: exe, Args: []string{storeDir}, Env: []string{behave + "=" + how}}
}

// run starts a Lender whose brokerd behaves as how says.
func (w *world) run(how string, change ...func(*lender.Options)) *world {
	w.t.Helper()
	o := lender.Options{
		Store: w.s, Creator: w.creator, Program: program(w.t, how, w.store()),
		Log: slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Poll: 5 * time.Millisecond,
		Wait: patience, CloseWait: patience, Stop: patience,
	}
	for _, f := range change {
		f(&o)
	}
	w.l = lender.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.l.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		if err := w.s.Release(context.Background(), w.creator); err != nil {
			w.t.Error(err)
		}
		cancel()
		<-done
	})
	w.t.Cleanup(func() {
		w.stop()
		if w.t.Failed() {
			w.t.Logf("marks:\n%s\nlog:\n%s", w.marks(), w.log)
		}
	})
	return w
}

func (w *world) marks() string {
	data, _ := os.ReadFile(filepath.Join(w.dir, "marks"))
	return string(data)
}

// brokerd gives the pid of the nth brokerd that got the lease.
func (w *world) brokerd(n int) int {
	w.t.Helper()
	pid := 0
	testkit.Eventually(w.t, patience, func() bool {
		found := 0
		for line := range strings.SplitSeq(w.marks(), "\n") {
			if text, ok := strings.CutPrefix(line, "serve "); ok {
				if found++; found == n {
					pid, _ = strconv.Atoi(text)
				}
			}
		}
		return pid != 0
	}, "brokerd", n)
	return pid
}

func (w *world) lend() *lender.Loan {
	w.t.Helper()
	loan, err := w.l.Lend(w.t.Context(), w.ask())
	if err != nil {
		w.t.Fatal(err)
	}
	return loan
}

func (w *world) ask() lender.Ask {
	return lender.Ask{AuthFile: w.auth, Model: "m", ReasoningEffort: "low", RunID: "r1", OwnerID: "o1", Life: time.Minute}
}

func (w *world) becomes(id, state string) store.Grant {
	w.t.Helper()
	var g store.Grant
	testkit.Eventually(w.t, patience, func() bool {
		var err error
		if g, err = w.s.Grant(w.t.Context(), id); err != nil {
			w.t.Fatal(err)
		}
		return g.State == state
	}, id, "is", state)
	return g
}

// A grant from nothing: brokerd is started, serves it, and is gone at the end.
func TestLender(t *testing.T) {
	w := newWorld(t).run("serve")
	if w.marks() != "" {
		t.Error("brokerd was started before anything was lent")
	}
	loan := w.lend()
	if loan.BaseURL != "http://host.docker.internal:1" || len(loan.Capability.Reveal()) != 64 || loan.Bind != "127.0.0.1" || loan.Transport != "mocked-test-only" {
		t.Errorf("got %+v", loan)
	}
	g, err := loan.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if g.Creator != "kitrun/one" || g.RunID != "r1" || g.OwnerID != "o1" || g.Request.Model != "m" || g.Request.ReasoningEffort != "low" ||
		g.CredentialRef != w.auth || g.ExpiresAt-g.CreatedAt != time.Minute.Milliseconds() {
		t.Errorf("got %+v", g)
	}
	if err := loan.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if g := w.becomes(loan.ID, store.GrantClosed); g.CloseReason != lender.ReasonEnded {
		t.Errorf("closed for %q", g.CloseReason)
	}
	if err := loan.Close(t.Context()); err != nil {
		t.Errorf("closed again: %v", err)
	}
	w.stop()
	if got := w.marks(); strings.Count(got, "start") != 1 || !strings.Contains(got, "end ") {
		t.Errorf("marks:\n%s", got)
	}
}

// A brokerd that lives on the Store is used and left alone.
func TestLender_UsesALivingBrokerd(t *testing.T) {
	w := newWorld(t)
	c, err := program(t, "serve", w.store()).Start(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.CutLifeline(); c.Wait(context.Background()); c.Release() }()
	w.brokerd(1)
	w.run("broken")
	if err := w.lend().Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.stop()
	if got := w.marks(); strings.Count(got, "start") != 1 || strings.Contains(got, "end") {
		t.Errorf("marks:\n%s", got)
	}
}

// Several at once start several brokerd: one serves all, the others go.
func TestLender_SeveralAtOnce(t *testing.T) {
	w := newWorld(t).run("serve")
	other := &world{t: t, dir: w.dir, s: w.s, auth: w.auth, log: w.log}
	var err error
	if other.creator, err = w.s.Acquire(t.Context(), "kitrun/two", time.Minute); err != nil {
		t.Fatal(err)
	}
	other.run("serve")
	var all sync.WaitGroup
	for _, who := range []*world{w, other, w, other} {
		all.Go(func() {
			loan, err := who.l.Lend(t.Context(), who.ask())
			if err != nil {
				t.Error(err)
				return
			}
			if err := loan.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := strings.Count(w.marks(), "serve "); n != 1 {
		t.Errorf("%d brokerd served", n)
	}
}

func TestLender_Lend_Fails(t *testing.T) {
	for _, tc := range []struct {
		name   string
		how    string
		change func(*lender.Options)
		code   fault.Code
		text   string
	}{
		{"refused", "refuse", nil, fault.CredentialExpired, "auth.json: take out grant bg_"},
		{"ends at once", "broken", nil, fault.BrokerUnavailable, "exit status 69: the address is taken, password=[redacted]"},
		{"missing", "", func(o *lender.Options) { o.Program.Path = "/no/such/brokerd" }, fault.BrokerUnavailable, "no such file"},
		{"says nothing", "mute", func(o *lender.Options) { o.Wait = 50 * time.Millisecond }, fault.BrokerUnavailable, "no brokerd took it up in 50ms"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			if tc.change == nil {
				tc.change = func(*lender.Options) {}
			}
			w.run(tc.how, tc.change)
			began := time.Now()
			loan, err := w.l.Lend(t.Context(), w.ask())
			if loan != nil || !fault.Is(err, tc.code) || !strings.Contains(err.Error(), tc.text) {
				t.Fatalf("got %v, %v", loan, err)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("it took %v", took)
			}
			if f, _ := fault.As(err); f.Hint == "" || tc.how == "broken" && f.Hint != "take another" {
				t.Errorf("hint %q", f.Hint)
			}
			grants, err := w.s.GrantsOfRun(t.Context(), "r1")
			if err != nil || len(grants) != 1 {
				t.Fatalf("%d grants, %v", len(grants), err)
			}
			if g := grants[0]; g.Open() && g.CloseRequestedAt == 0 {
				t.Errorf("the grant is not taken back: %+v", g)
			}
		})
	}
}

func TestLender_Lend_Cancelled(t *testing.T) {
	w := newWorld(t).run("mute")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := fmt.Errorf("the person left")
	go func() {
		w.brokerd(1)
		cancel(why)
	}()
	if _, err := w.l.Lend(ctx, w.ask()); err != why {
		t.Errorf("got %v", err)
	}
}

func TestLender_Lend_NoCredentialDirectory(t *testing.T) {
	w := newWorld(t).run("serve")
	a := w.ask()
	a.AuthFile = filepath.Join(w.dir, "none", "auth.json")
	if _, err := w.l.Lend(t.Context(), a); !fault.Is(err, fault.CredentialUnavailable) || !strings.HasPrefix(err.Error(), a.AuthFile+": ") {
		t.Errorf("got %v", err)
	}
	if w.marks() != "" {
		t.Error("brokerd was started")
	}
}

// The directory of a credential file is resolved, the file itself is not: a link
// is refused before a brokerd is started.
func TestLender_Lend_Link(t *testing.T) {
	w := newWorld(t).run("serve")
	if err := os.Symlink(w.dir, filepath.Join(w.dir, "dir")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("auth.json", filepath.Join(w.dir, "link")); err != nil {
		t.Fatal(err)
	}
	a := w.ask()
	a.AuthFile = filepath.Join(w.dir, "dir", "link")
	if _, err := w.l.Lend(t.Context(), a); !fault.Is(err, fault.CredentialPermissions) || !strings.HasPrefix(err.Error(), a.AuthFile+": ") || w.marks() != "" {
		t.Errorf("got %v", err)
	}
	a.AuthFile = filepath.Join(w.dir, "dir", "auth.json")
	loan, err := w.l.Lend(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if g, _ := loan.Look(t.Context()); g.CredentialRef != w.auth {
		t.Errorf("brokerd is told %s", g.CredentialRef)
	}
}

// A brokerd that does not confirm leaves the capability closed all the same.
func TestLoan_Close_Unconfirmed(t *testing.T) {
	w := newWorld(t).run("stuck", func(o *lender.Options) { o.CloseWait, o.Stop = 50*time.Millisecond, 50*time.Millisecond })
	loan := w.lend()
	pid := w.brokerd(1)
	defer syscall.Kill(pid, syscall.SIGKILL)
	if err := loan.Close(t.Context()); !fault.Is(err, fault.BrokerCloseUnconfirmed) {
		t.Errorf("got %v", err)
	}
	g, err := w.s.Grant(t.Context(), loan.ID)
	if err != nil || g.Authorises(g.CreatedAt) {
		t.Errorf("it still authorises: %+v, %v", g, err)
	}
}

// Killed while a grant is out, brokerd is started again and serves it on; killed
// while the grant is closed, the next one closes it.
func TestLender_BrokerdKilled(t *testing.T) {
	w := newWorld(t).run("serve")
	loan := w.lend()
	for n := 1; n <= 3; n++ {
		if err := syscall.Kill(w.brokerd(n), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	w.brokerd(4)
	if g := w.becomes(loan.ID, store.GrantActive); g.CloseRequestedAt != 0 {
		t.Errorf("got %+v", g)
	}
	if err := syscall.Kill(w.brokerd(4), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := loan.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// mortalKitrun takes out a grant and waits to be killed.
func mortalKitrun(dir string) int {
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Dir: filepath.Join(dir, "store"), Program: "kitrun"})
	if err != nil {
		return 7
	}
	creator, err := s.Acquire(ctx, "kitrun/mortal", time.Minute)
	if err != nil {
		return 6
	}
	exe, err := os.Executable()
	if err != nil {
		return 5
	}
	l := lender.New(lender.Options{Store: s, Creator: creator, Program: sibling.Program{
		Name: "brokerd", Path: exe, Args: []string{filepath.Join(dir, "store")}, Env: []string{behave + "=serve"},
	}})
	go l.Run(ctx)
	loan, err := l.Lend(ctx, lender.Ask{AuthFile: filepath.Join(dir, "auth.json"), Model: "m", RunID: "mortal", Life: time.Hour})
	if err != nil {
		return 4
	}
	fmt.Println(loan.ID)
	select {}
}

// SIGKILL of the creator while a grant is out: its brokerd closes it and goes,
// and serves what another one was lent to its end.
func TestLender_CreatorKilled(t *testing.T) {
	w := newWorld(t)
	cmd := exec.Command(os.Args[0], w.dir)
	cmd.Env = append(os.Environ(), behave+"=kitrun")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id string
	if _, err := fmt.Fscanln(out, &id); err != nil {
		t.Fatal(err)
	}
	w.run("broken") // the other one's is used
	loan := w.lend()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if g := w.becomes(id, store.GrantClosed); g.CloseReason != "creator_gone" {
		t.Errorf("closed for %q", g.CloseReason)
	}
	if g := w.becomes(loan.ID, store.GrantActive); g.CloseRequestedAt != 0 {
		t.Errorf("the other grant: %+v", g)
	}
	if err := loan.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, patience, func() bool { return strings.Contains(w.marks(), "end ") }, "its brokerd ends")
}

// What is lent never stands in a row, a log line or an argument.
func TestLender_KeepsSecrets(t *testing.T) {
	w := newWorld(t).run("serve")
	loan := w.lend()
	secret := loan.Capability.Reveal()
	for _, name := range []string{"store.db", "store.db-wal"} {
		data, err := os.ReadFile(filepath.Join(w.store(), name))
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{secret, "CANARY"} {
			if strings.Contains(string(data), s) {
				t.Errorf("%s holds a secret", name)
			}
		}
	}
	if text := w.log.String() + fmt.Sprintf("%v %+v", loan, *loan); strings.Contains(text, secret) || strings.Contains(text, "CANARY") {
		t.Errorf("a secret is shown: %s", text)
	}
}

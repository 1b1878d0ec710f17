package sibling_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/goleak"

	"drawbridge/shared/sibling"
	"drawbridge/shared/testkit"
)

// role makes a re-executed test binary a sibling.
const role = "DRAWBRIDGE_TEST_ROLE"

func TestMain(m *testing.M) {
	if kind := os.Getenv(role); kind != "" {
		os.Exit(runSibling(kind))
	}
	goleak.VerifyTestMain(m)
}

// runSibling says how it is, and lives as long as its lifeline.
func runSibling(kind string) int {
	if kind == "broken" {
		return 3
	}
	fmt.Println("on stdout")
	fmt.Fprintln(os.Stderr, `{"level":"WARN","msg":"on stderr","environ":`+strconv.Itoa(len(os.Environ()))+`}`)
	if _, err := daemon.SdNotify(false, "READY=1\nSTATUS=standby"); err != nil {
		return 4
	}
	fd, err := strconv.Atoi(os.Getenv("DRAWBRIDGE_LIFELINE_FD"))
	if err != nil {
		return 5
	}
	_, _ = io.Copy(io.Discard, os.NewFile(uintptr(fd), "lifeline"))
	if kind == "slow" {
		select {} // until the test ends it
	}
	return 0
}

// lines collects a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func program(t *testing.T, kind string) sibling.Program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return sibling.Program{Name: "sample", Path: exe, Env: []string{role + "=" + kind}}
}

func TestProgram_Start(t *testing.T) {
	notify, err := sibling.OpenNotify("test")
	if err != nil {
		t.Fatal(err)
	}
	type said struct {
		pid int
		m   sibling.Message
	}
	heard, listening := make(chan said, 1), make(chan struct{})
	go func() {
		defer close(listening)
		notify.Listen(func(pid int, m sibling.Message) { heard <- said{pid, m} })
	}()
	log := &lines{}
	c, err := program(t, "steady").Start(slog.New(slog.NewJSONHandler(log, nil)), notify)
	if err != nil {
		t.Fatal(err)
	}
	want := said{c.PID(), sibling.Message{Ready: true, Standby: true, Status: "standby"}}
	if got := <-heard; got != want {
		t.Errorf("heard %+v, want %+v", got, want)
	}
	soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if how, ended := c.Wait(soon); ended {
		t.Errorf("ended by itself: %s", how)
	}
	c.CutLifeline()
	c.CutLifeline()
	if how, ended := c.Wait(t.Context()); !ended || how != "exit status 0" {
		t.Errorf("ended %t: %s", ended, how)
	}
	c.Release()
	notify.Close()
	<-listening
	// Its own environment is the role, the lifeline and the socket, and no more.
	for _, want := range []string{`"msg":"on stdout","sibling":"sample"`, `"level":"WARN","msg":"on stderr","environ":3,"sibling":"sample"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
}

func TestProgram_Start_Ends(t *testing.T) {
	c, err := program(t, "broken").Start(slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Release()
	for range 2 {
		if how, ended := c.Wait(t.Context()); !ended || how != "exit status 3" {
			t.Errorf("ended %t: %s", ended, how)
		}
	}
}

func TestProgram_Start_Missing(t *testing.T) {
	p := sibling.Program{Name: "sample", Path: filepath.Join(t.TempDir(), "none")}
	if c, err := p.Start(slog.New(slog.DiscardHandler), nil); err == nil {
		c.Release()
		t.Error("a program that is not there was started")
	}
}

// One that has more to finish is left alone, and Release does not wait.
func TestChild_Release_LeavesIt(t *testing.T) {
	log := &lines{}
	c, err := program(t, "slow").Start(slog.New(slog.NewTextHandler(log, nil)), nil)
	if err != nil {
		t.Fatal(err)
	}
	pid := c.PID()
	testkit.Eventually(t, 10*time.Second, func() bool { return strings.Contains(log.String(), "on stderr") })
	c.Release()
	p, err := os.FindProcess(pid)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(os.Kill); err != nil {
		t.Errorf("it was ended: %v", err)
	}
	_, _ = p.Wait()
}

package service_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/testkit"
)

// gate is a writer that blocks until opened, like a pipe that nobody reads.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	buf  bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.Write(p)
}

func (g *gate) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.buf.String()
}

func openLog(t *testing.T, w io.Writer, opts service.LogOptions) *service.Log {
	t.Helper()
	opts.Program, opts.Stderr = "sample", w
	log, err := service.OpenLog(opts)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestLog_JSON(t *testing.T) {
	t.Setenv("HOME", "/home/joe")
	t.Setenv("XDG_STATE_HOME", "")
	var buf bytes.Buffer
	log := openLog(t, &buf, service.LogOptions{})
	log.Debug("not shown")
	log.With("actor", "sweep").Warn("look\nhere", "err", fmt.Errorf("outer: %w", fault.New(fault.LeaseLost, "inner")), "n", 3,
		"dir", "/home/joe/.local/state/drawbridge/store", "file", "/home/joe/x", "header", "Authorization: Bearer x")
	log.Close()
	log.Info("after the end")
	var got map[string]any
	if err := json.Unmarshal(buf.Bytes(), &got); err != nil {
		t.Fatalf("%v in %q", err, buf.String())
	}
	delete(got, "time")
	want := map[string]any{"level": "WARN", "msg": "look here", "bin": "sample", "pid": float64(os.Getpid()), "actor": "sweep",
		"err": "outer: inner", "n": float64(3), "code": "lease_lost",
		"dir": "<state>/store", "file": "<home>/x", "header": "Authorization: [redacted]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("line (-want +got):\n%s", diff)
	}
}

func TestLog_Formats(t *testing.T) {
	for format, prefix := range map[string]string{"text": "time=", "json": `{"time":`, "auto": `{"time":`} {
		var buf bytes.Buffer
		log := openLog(t, &buf, service.LogOptions{Format: format, Level: "debug"})
		log.Debug("hello")
		log.Close()
		if !strings.HasPrefix(buf.String(), prefix) || strings.Count(buf.String(), "\n") != 1 {
			t.Errorf("%s: %q", format, buf.String())
		}
	}
	if _, err := service.OpenLog(service.LogOptions{Stderr: io.Discard, Level: "loud"}); !fault.Is(err, fault.Usage) {
		t.Errorf("level loud: %v", err)
	}
}

// Logging never waits for stderr; what does not fit is counted.
func TestLog_NeverBlocks(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	log := openLog(t, g, service.LogOptions{})
	text := strings.Repeat("x", 1000)
	begin := time.Now()
	const n = 3000 // some 3 MiB, three times what may wait
	for range n {
		log.Info(text)
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	close(g.open)
	testkit.Eventually(t, 10*time.Second, func() bool {
		return strings.Count(g.text(), "\n") > 500
	})
	testkit.Eventually(t, 10*time.Second, func() bool {
		log.Info("once more")
		return strings.Contains(g.text(), `"msg":"log lines dropped","lines":`)
	})
	log.Close()
	if lines := strings.Count(g.text(), text); lines < 500 || lines >= n {
		t.Errorf("%d of %d lines written", lines, n)
	}
}

// A full pipe does not keep a program from ending.
func TestLog_CloseIsBounded(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	log := openLog(t, g, service.LogOptions{})
	log.Info("stuck")
	begin := time.Now()
	log.Close()
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("Close took %v", took)
	}
	close(g.open)
	testkit.Eventually(t, 5*time.Second, func() bool { return strings.Contains(g.text(), "stuck") })
}

func TestLog_FailingWriter(t *testing.T) {
	read, write := io.Pipe()
	read.CloseWithError(errors.New("gone"))
	log := openLog(t, write, service.LogOptions{})
	log.Info("lost")
	log.Close()
}

func TestLog_Daily(t *testing.T) {
	clock := testkit.NewClock() // 2026-01-02
	dir := filepath.Join(testkit.StoreDir(t), "log")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"runtime-2025-12-18.ndjson", "runtime-2025-12-19.ndjson", "runtime-2025-12-20.ndjson", "runtime-2025-12-18.ndjson.keep", "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("old\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var stderr bytes.Buffer
	log := openLog(t, &stderr, service.LogOptions{Format: "text", Now: clock.Now})
	if err := log.Daily(dir); err != nil {
		t.Fatal(err)
	}
	read := func(day string) string {
		data, _ := os.ReadFile(filepath.Join(dir, "runtime-"+day+".ndjson"))
		return string(data)
	}
	log.Info("first")
	testkit.Eventually(t, 5*time.Second, func() bool { return strings.Contains(read("2026-01-02"), `"msg":"first","bin":"sample"`) })
	clock.Advance(24 * time.Hour)
	log.Info("second")
	log.Close()
	if got := read("2026-01-03"); !strings.Contains(got, `"msg":"second"`) || strings.Contains(got, "first") {
		t.Errorf("second day: %q", got)
	}
	if text := stderr.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, "msg=second") {
		t.Errorf("stderr: %q", text)
	}
	fi, err := os.Stat(filepath.Join(dir, "runtime-2026-01-02.ndjson"))
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	var names []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	want := []string{"other", "runtime-2025-12-18.ndjson.keep", "runtime-2025-12-20.ndjson", "runtime-2026-01-02.ndjson", "runtime-2026-01-03.ndjson"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestLog_DailyRefusesSymlink(t *testing.T) {
	clock := testkit.NewClock()
	dir := testkit.StoreDir(t)
	if err := os.Symlink("/dev/null", filepath.Join(dir, "runtime-2026-01-02.ndjson")); err != nil {
		t.Fatal(err)
	}
	log := openLog(t, io.Discard, service.LogOptions{Now: clock.Now})
	defer log.Close()
	if err := log.Daily(dir); err == nil {
		t.Error("a symlink was followed")
	}
	if err := log.Daily(filepath.Join(dir, "runtime-2026-01-02.ndjson")); !fault.Is(err, fault.RuntimeDirUnsafe) {
		t.Errorf("directory is a symlink: %v", err)
	}
}

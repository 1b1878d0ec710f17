package terminal_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/terminal"
)

const someKey = "60e92b09be050b1982513c5fddc5f42e51ef476a9a182f094b7bff19b88dfb24"

var someRecord = terminal.Record{StoreID: "store-1", Kind: "dispatch", RefID: "msg-1", Status: "prepared"}

func runtimeDir(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "run")
}

func lockFile(dir, key string) string {
	return filepath.Join(dir, "terminals", fmt.Sprintf("%x.lock", sha256.Sum256([]byte(key))))
}

func mustLock(t *testing.T, dir string) *terminal.Locked {
	t.Helper()
	l, err := terminal.Lock(context.Background(), dir, someKey, patient)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Unlock)
	return l
}

// A holder is another process with the lock.
type holder struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	child int // its child, when it was asked for one
}

func startHolder(t *testing.T, dir string, withChild bool) *holder {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{cmd: exec.Command(exe)}
	h.cmd.Env = append(os.Environ(), roleVar+"=hold", fileVar+"="+dir+"|"+someKey)
	if withChild {
		h.cmd.Env = append(h.cmd.Env, textVar+"=child")
	}
	if h.stdin, err = h.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
		if h.child != 0 {
			_ = syscall.Kill(h.child, syscall.SIGKILL)
		}
	})
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if lines.Text() == "held" {
			return h
		}
		if _, err := fmt.Sscanf(lines.Text(), "child %d", &h.child); err != nil {
			t.Fatalf("holder says %q", lines.Text())
		}
	}
	t.Fatal("the holder ended without the lock")
	return nil
}

func (h *holder) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := h.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

func busy(t *testing.T, dir string) bool {
	t.Helper()
	l, err := terminal.Lock(context.Background(), dir, someKey, 100*time.Millisecond)
	if err == nil {
		l.Unlock()
		return false
	}
	e, ok := fault.As(err)
	if !ok || e.Code != fault.TerminalBusy || e.Hint == "" || !e.Retry {
		t.Fatalf("got %v, want terminal_busy", err)
	}
	return true
}

// A stopped holder keeps the lock, a killed one loses it at once.
//
// Proves core 19.6.
func TestLock_StoppedAndKilledHolder(t *testing.T) {
	dir := runtimeDir(t)
	h := startHolder(t, dir, false)
	if !busy(t, dir) {
		t.Fatal("two processes hold the lock")
	}
	h.signal(t, syscall.SIGSTOP)
	eventually(t, "the holder is stopped", func() bool {
		info, err := process.Stat(h.cmd.Process.Pid)
		return err == nil && info.State == 'T'
	})
	if !busy(t, dir) {
		t.Fatal("a stopped holder lost the lock")
	}

	type result struct {
		lock *terminal.Locked
		err  error
	}
	got := make(chan result, 1)
	go func() {
		l, err := terminal.Lock(context.Background(), dir, someKey, patient)
		got <- result{l, err}
	}()
	begin := time.Now()
	h.signal(t, syscall.SIGKILL)
	r := <-got
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.lock.Unlock()
	if d := time.Since(begin); d > time.Second {
		t.Errorf("the next holder waited %s after the kill, want at most 1s", d)
	}
}

// A child that the holder started does not keep the lock.
//
// Proves core 19.7.
func TestLock_ChildDoesNotInherit(t *testing.T) {
	dir := runtimeDir(t)
	h := startHolder(t, dir, true)
	if !busy(t, dir) {
		t.Fatal("the lock is not held")
	}
	h.signal(t, syscall.SIGKILL)
	_ = h.cmd.Wait()
	if err := syscall.Kill(h.child, 0); err != nil {
		t.Fatalf("the child is not there any more: %v", err)
	}
	if busy(t, dir) {
		t.Error("the child keeps the lock")
	}
}

func TestLock_WithinOneProcess(t *testing.T) {
	dir := runtimeDir(t)
	first := mustLock(t, dir)
	if !busy(t, dir) {
		t.Fatal("one process got the lock twice")
	}
	other, err := terminal.Lock(context.Background(), dir, someKey+"x", 0)
	if err != nil {
		t.Fatalf("another terminal: %v", err)
	}
	other.Unlock()

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := terminal.Lock(ctx, dir, someKey, patient)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}

	first.Unlock()
	first.Unlock()
	if busy(t, dir) {
		t.Error("the lock is still held after Unlock")
	}
	if err := first.Write(someRecord); err == nil {
		t.Error("Write without the lock")
	}
	if _, torn := first.Record(); !torn {
		t.Error("Record without the lock reads something")
	}
}

// Many at once: never two holders, and everyone gets a turn.
func TestLock_Contention(t *testing.T) {
	dir := runtimeDir(t)
	var inside, turns atomic.Int32 // the lock excludes, but the race detector does not know it
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			for range 5 {
				l, err := terminal.Lock(context.Background(), dir, someKey, patient)
				if err != nil {
					errs <- err
					return
				}
				if inside.Add(1) != 1 {
					errs <- errors.New("two holders")
					return
				}
				turns.Add(1)
				inside.Add(-1)
				l.Unlock()
			}
			errs <- nil
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if n := turns.Load(); n != 8*5 {
		t.Errorf("%d turns, want %d", n, 8*5)
	}
}

func TestRecord(t *testing.T) {
	dir := runtimeDir(t)
	l := mustLock(t, dir)
	check := func(step string, want terminal.Record, wantTorn bool) {
		t.Helper()
		if got, torn := l.Record(); got != want || torn != wantTorn {
			t.Errorf("%s: got %+v, torn %v, want %+v, %v", step, got, torn, want, wantTorn)
		}
	}
	write := func(rec terminal.Record) {
		t.Helper()
		if err := l.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	check("new", terminal.Record{}, false)
	write(someRecord)
	check("written", someRecord, false)
	long := someRecord
	long.RefID = strings.Repeat("é\"\\", 100)
	write(long)
	check("longer", long, false)
	write(someRecord)
	check("shorter again", someRecord, false)

	// It outlives the lock.
	l.Unlock()
	l = mustLock(t, dir)
	check("next holder", someRecord, false)
	content, err := os.ReadFile(lockFile(dir, someKey))
	if want := `{"store_id":"store-1","kind":"dispatch","ref_id":"msg-1","status":"prepared"}` + "\n"; err != nil || string(content) != want {
		t.Errorf("file %q, %v, want %q", content, err, want)
	}
	if err := l.Clear(); err != nil {
		t.Fatal(err)
	}
	check("cleared", terminal.Record{}, false)

	for name, rec := range map[string]terminal.Record{
		"empty":     {},
		"no status": {StoreID: "s", Kind: "k", RefID: "r"},
		"too long":  {StoreID: "s", Kind: "k", RefID: strings.Repeat("x", 5000), Status: "s"},
	} {
		if err := l.Write(rec); err == nil {
			t.Errorf("%s record was written", name)
		}
	}
	check("after refused writes", terminal.Record{}, false)
}

// Every prefix of a write, and a shorter record over a longer one, is told from
// a whole record.
func TestRecord_Torn(t *testing.T) {
	whole := `{"store_id":"store-1","kind":"dispatch","ref_id":"msg-1","status":"prepared"}` + "\n"
	for n := 1; n < len(whole); n++ {
		if rec, torn := terminal.ParseRecord([]byte(whole[:n])); !torn || rec != (terminal.Record{}) {
			t.Errorf("prefix of %d bytes: got %+v, torn %v", n, rec, torn)
		}
	}
	for name, content := range map[string]string{
		"over a longer one": whole + "ed\"}\n",
		"two":               whole + whole,
		"zeros":             strings.Repeat("\x00", len(whole)),
		"hole":              strings.Repeat("\x00", 10) + whole[10:],
		"extra member":      `{"store_id":"s","kind":"k","ref_id":"r","status":"s","x":1}` + "\n",
		"missing member":    `{"store_id":"s","kind":"k","ref_id":"r"}` + "\n",
		"other case":        `{"Store_id":"s","kind":"k","ref_id":"r","status":"s"}` + "\n",
		"twice":             `{"store_id":"s","store_id":"s","kind":"k","ref_id":"r","status":"s"}` + "\n",
		"null":              "null\n",
		"blank":             "\n",
		"huge":              whole[:len(whole)-1] + strings.Repeat(" ", 5000) + "\n",
	} {
		if rec, torn := terminal.ParseRecord([]byte(content)); !torn || rec != (terminal.Record{}) {
			t.Errorf("%s: got %+v, torn %v", name, rec, torn)
		}
	}

	dir := runtimeDir(t)
	l := mustLock(t, dir)
	if err := os.WriteFile(lockFile(dir, someKey), []byte(whole[:20]), 0o600); err != nil {
		t.Fatal(err)
	}
	if rec, torn := l.Record(); !torn || rec != (terminal.Record{}) {
		t.Errorf("torn file: got %+v, torn %v", rec, torn)
	}
	if err := l.Write(someRecord); err != nil {
		t.Fatal(err)
	}
	if rec, torn := l.Record(); torn || rec != someRecord {
		t.Errorf("written over: got %+v, torn %v", rec, torn)
	}
}

func TestLock_Files(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := runtimeDir(t)
	l := mustLock(t, dir)
	for path, want := range map[string]fs.FileMode{
		dir:                             fs.ModeDir | 0o700,
		filepath.Join(dir, "terminals"): fs.ModeDir | 0o700,
		lockFile(dir, someKey):          0o600,
	} {
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	l.Unlock()
	if err := os.Chmod(lockFile(dir, someKey), 0o644); err != nil {
		t.Fatal(err)
	}
	mustLock(t, dir)
	if info, _ := os.Lstat(lockFile(dir, someKey)); info.Mode() != 0o600 {
		t.Errorf("mode %v was not put right", info.Mode())
	}
}

func TestLock_UnsafeDirectories(t *testing.T) {
	elsewhere := t.TempDir()
	tests := []struct {
		name string
		make func(t *testing.T, dir string) string
	}{
		{"relative", func(t *testing.T, dir string) string { return "run" }},
		{"readable by the group", func(t *testing.T, dir string) string {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Chmod(dir, 0o750))
			return dir
		}},
		{"a link", func(t *testing.T, dir string) string {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Symlink(dir, dir+"2"))
			return dir + "2"
		}},
		{"a file", func(t *testing.T, dir string) string {
			must(t, os.WriteFile(dir, nil, 0o600))
			return dir
		}},
		{"terminals is a link", func(t *testing.T, dir string) string {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Symlink(elsewhere, filepath.Join(dir, "terminals")))
			return dir
		}},
		{"terminals is open", func(t *testing.T, dir string) string {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Mkdir(filepath.Join(dir, "terminals"), 0o700))
			must(t, os.Chmod(filepath.Join(dir, "terminals"), 0o770))
			return dir
		}},
		{"the file is a link", func(t *testing.T, dir string) string {
			must(t, os.MkdirAll(filepath.Join(dir, "terminals"), 0o700))
			must(t, os.Symlink(filepath.Join(elsewhere, "target"), lockFile(dir, someKey)))
			return dir
		}},
		{"the file is a directory", func(t *testing.T, dir string) string {
			must(t, os.MkdirAll(lockFile(dir, someKey), 0o700))
			return dir
		}},
		{"the file is a pipe", func(t *testing.T, dir string) string {
			must(t, os.MkdirAll(filepath.Join(dir, "terminals"), 0o700))
			must(t, syscall.Mkfifo(lockFile(dir, someKey), 0o600))
			return dir
		}},
		{"the file has two names", func(t *testing.T, dir string) string {
			must(t, os.MkdirAll(filepath.Join(dir, "terminals"), 0o700))
			must(t, os.WriteFile(lockFile(dir, someKey), nil, 0o600))
			must(t, os.Link(lockFile(dir, someKey), filepath.Join(dir, "second")))
			return dir
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := terminal.Lock(context.Background(), tt.make(t, runtimeDir(t)), someKey, 0)
			if err == nil {
				l.Unlock()
			}
			if !fault.Is(err, fault.RuntimeDirUnsafe) {
				t.Errorf("got %v, want runtime_dir_unsafe", err)
			}
		})
	}
	if left, _ := os.ReadDir(elsewhere); len(left) > 0 {
		t.Errorf("something was made behind a link: %v", left)
	}
}

// A lock file that is removed and made anew while it is waited for excludes
// nobody; the one that stands there now is taken.
func TestLock_FileReplaced(t *testing.T) {
	dir := runtimeDir(t)
	first := mustLock(t, dir)
	got := make(chan *terminal.Locked, 1)
	go func() {
		l, err := terminal.Lock(context.Background(), dir, someKey, patient)
		if err != nil {
			t.Error(err)
		}
		got <- l
	}()
	eventually(t, "both have the file open", func() bool { return opened(lockFile(dir, someKey)) == 2 })
	must(t, os.Remove(lockFile(dir, someKey)))
	first.Unlock()
	l := <-got
	if l == nil {
		t.FailNow()
	}
	defer l.Unlock()
	if !busy(t, dir) {
		t.Error("the lock that was got excludes nobody")
	}
}

// opened counts this process's descriptors of the file.
func opened(path string) int {
	fds, _ := os.ReadDir("/proc/self/fd")
	n := 0
	for _, fd := range fds {
		if target, _ := os.Readlink("/proc/self/fd/" + fd.Name()); target == path {
			n++
		}
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"store_id":"store-1","kind":"dispatch","ref_id":"msg-1","status":"prepared"}` + "\n"))
	f.Add([]byte(`{"store_id":"store-1","kind":"dispatch"`))
	f.Add([]byte("\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		rec, torn := terminal.ParseRecord(data)
		empty := rec == terminal.Record{}
		if torn != (empty && len(data) > 0) {
			t.Errorf("%q: %+v, torn %v", data, rec, torn)
		}
	})
}

// A child between fork and exec has a copy of every descriptor: the lock is free
// at Unlock all the same, and not only when the child gets on.
func TestUnlock_WhileAChildIsBeingStarted(t *testing.T) {
	dir := runtimeDir(t)
	l := mustLock(t, dir)
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	copies := 0
	for _, name := range fds {
		if target, _ := os.Readlink(name); target != lockFile(dir, someKey) {
			continue
		}
		fd, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			t.Fatal(err)
		}
		dup, err := syscall.Dup(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(dup)
		copies++
		break
	}
	if copies != 1 {
		t.Fatalf("%d descriptors of the lock file", copies)
	}
	l.Unlock()
	again, err := terminal.Lock(context.Background(), dir, someKey, 0)
	if err != nil {
		t.Fatal(err)
	}
	again.Unlock()
}

package storage_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// roomy allows all that a test makes.
var roomy = storage.Budget{MaxBytes: math.MaxInt64, MaxEntries: math.MaxInt64, MaxFileBytes: math.MaxInt64}

func write(t *testing.T, dir, name string, size int64) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

func inspect(t *testing.T, b storage.Budget, roots ...string) storage.Observation {
	t.Helper()
	got, err := storage.Inspect(t.Context(), roots, b)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// tree holds three files of 60, 30 and 10 bytes and two directories.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "a", 60)
	write(t, dir, "d/b", 30)
	write(t, dir, "d/e/c", 10)
	return dir
}

// Proves worker 17.14: equality is allowed, one more has its own reason, and the
// order of the verdicts is that of worker §7.
func TestInspect_Budget(t *testing.T) {
	dir := tree(t)
	free := inspect(t, roomy, dir).FreeBytes
	if free <= 0 {
		t.Fatalf("free room %d", free)
	}
	exact := storage.Budget{MaxBytes: 100, MaxEntries: 5, MaxFileBytes: 60}
	for _, tc := range []struct {
		name   string
		change func(*storage.Budget)
		reason string
	}{
		{"exact", func(*storage.Budget) {}, ""},
		{"bytes", func(b *storage.Budget) { b.MaxBytes-- }, storage.OverBytes},
		{"entries", func(b *storage.Budget) { b.MaxEntries-- }, storage.OverEntries},
		{"file", func(b *storage.Budget) { b.MaxFileBytes-- }, storage.OverFile},
		{"free room", func(b *storage.Budget) { b.MinFreeBytes = math.MaxInt64 }, storage.FreeFloor},
		{"free room before all else", func(b *storage.Budget) { *b = storage.Budget{MinFreeBytes: math.MaxInt64} }, storage.FreeFloor},
		{"bytes before entries", func(b *storage.Budget) { *b = storage.Budget{MaxEntries: 5} }, storage.OverBytes},
		{"nothing", func(b *storage.Budget) { *b = storage.Budget{} }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := exact
			tc.change(&b)
			root := dir
			if tc.name == "nothing" {
				root = t.TempDir() // an empty directory is within any budget
			}
			got := inspect(t, b, root)
			if got.Reason != tc.reason || got.Allowed != (tc.reason == "") || got.Budget != b {
				t.Errorf("got %+v, want the reason %q", got, tc.reason)
			}
		})
	}
	want := storage.Observation{Allowed: true, ObservedBytes: 100, ObservedEntries: 5, LargestFileBytes: 60, Budget: exact}
	got := inspect(t, exact, dir)
	got.FreeBytes = 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Proves worker 17.13, first half: what is neither file nor directory is refused
// before any budget, wherever it stands.
func TestInspect_UnsupportedEntry(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"link to a file":      func(p string) error { return os.Symlink("a", p) },
		"link to a directory": func(p string) error { return os.Symlink("d", p) },
		"link to nothing":     func(p string) error { return os.Symlink("nowhere", p) },
		"FIFO":                func(p string) error { return unix.Mkfifo(p, 0o600) },
		"socket": func(p string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Bind(fd, &unix.SockaddrUnix{Name: p})
		},
	} {
		for _, at := range []string{".", "d", "d/e"} {
			t.Run(name+" in "+at, func(t *testing.T) {
				dir := tree(t)
				t.Chdir(dir) // a socket's path is short
				if err := make(filepath.Join(at, "x")); err != nil {
					t.Fatal(err)
				}
				if got := inspect(t, roomy, dir); got.Reason != storage.UnsupportedEntry || got.Allowed {
					t.Errorf("got %+v", got)
				}
			})
		}
	}
}

const nobody = 65534

// open lets everybody enter dir and what leads to it.
func open(t *testing.T, dir string) {
	t.Helper()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func TestInspect_UnsupportedDirectory(t *testing.T) {
	deep := func(t *testing.T, depth int) string {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, strings.Repeat("d/", depth)), 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	if got := inspect(t, roomy, deep(t, 128)); !got.Allowed || got.ObservedEntries != 128 {
		t.Errorf("128 deep: %+v", got)
	}
	if got := inspect(t, roomy, deep(t, 129)); got.Reason != storage.UnsupportedDirectory {
		t.Errorf("129 deep: %+v", got)
	}
	t.Run("closed", func(t *testing.T) {
		dir := tree(t)
		if err := os.Mkdir(filepath.Join(dir, "closed"), 0); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 { // root enters every directory; as somebody else this thread does not
			open(t, dir)
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if _, err := unix.SetfsuidRetUid(nobody); err != nil {
				t.Fatal(err)
			}
			defer unix.SetfsuidRetUid(0)
		}
		if got := inspect(t, roomy, dir); got.Reason != storage.UnsupportedDirectory {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("another device", func(t *testing.T) {
		// The root of a process's own files is a directory of another file system
		// than / in every environment that has /proc at all.
		if reason, err := storage.Below("/", "proc", 1); err != nil || reason != storage.UnsupportedDirectory {
			t.Errorf("got %q, %v", reason, err)
		}
	})
	t.Run("a link in the place of a directory", func(t *testing.T) {
		dir, outside := t.TempDir(), tree(t)
		if err := os.Symlink(outside, filepath.Join(dir, "x")); err != nil {
			t.Fatal(err)
		}
		if reason, err := storage.Below(dir, "x", 1); err != nil || reason != storage.UnsupportedDirectory {
			t.Errorf("got %q, %v", reason, err)
		}
		if reason, err := storage.Below(dir, "gone", 1); err != nil || reason != "" {
			t.Errorf("gone: got %q, %v", reason, err)
		}
	})
}

// Proves worker 17.13, second half: a directory that is exchanged with a link to
// the outside again and again never makes the walk leave the root.
func TestInspect_ExchangedDirectory(t *testing.T) {
	const outsideBytes = 1 << 30
	outside := t.TempDir()
	write(t, outside, "big", outsideBytes)
	write(t, outside, "sub/big", outsideBytes)
	dir := t.TempDir()
	write(t, dir, "m/a", 1)
	write(t, dir, "m/sub/b", 1)
	link := filepath.Join(t.TempDir(), "link") // beside the root, on the same file system
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for n := 0; err == nil; n++ {
			select {
			case <-stop:
				if n%2 == 1 { // the link is in the root: put it back for the cleaning
					err = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, filepath.Join(dir, "m"), unix.RENAME_EXCHANGE)
				}
				done <- err
				return
			default:
			}
			err = unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, filepath.Join(dir, "m"), unix.RENAME_EXCHANGE)
		}
		<-stop
		done <- err
	}()
	seen := map[string]int{}
	end := time.Now().Add(10 * time.Second)
	for walks := 0; time.Now().Before(end) && (walks < 2000 || seen[""] == 0 || seen[storage.UnsupportedEntry] == 0 || seen[storage.UnsupportedDirectory] == 0); walks++ {
		got := inspect(t, roomy, dir)
		seen[got.Reason]++
		if got.LargestFileBytes > 1 || got.ObservedBytes > 2 {
			t.Errorf("the walk left the root: %+v", got)
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatalf("exchange: %v", err)
	}
	t.Logf("verdicts: %v", seen)
	if seen[""] == 0 || seen[storage.UnsupportedEntry] == 0 {
		t.Errorf("the walks met only %v", seen)
	}
}

// What goes away while it is looked at is no finding.
func TestInspect_VanishingEntries(t *testing.T) {
	dir := t.TempDir()
	stop, done := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for n := 0; ; n++ {
			select {
			case <-stop:
				done <- err
				return
			default:
			}
			if e := os.MkdirAll(filepath.Join(dir, fmt.Sprint(n%7), "d"), 0o700); e != nil && !errors.Is(e, unix.ENOENT) {
				err = e
			}
			if e := os.RemoveAll(filepath.Join(dir, fmt.Sprint((n+3)%7))); e != nil {
				err = e
			}
		}
	}()
	for range 500 {
		if got := inspect(t, roomy, dir); !got.Allowed {
			t.Errorf("got %+v", got)
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestRoots(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"a/b/c", "ab"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "file", 1)
	if err := os.Symlink("a/b", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name     string
		in, want []string
	}{
		{"one", []string{"a"}, []string{"a"}},
		{"inside another", []string{"a/b/c", "a", "a/b"}, []string{"a"}},
		{"only a prefix of the name", []string{"a", "ab"}, []string{"a", "ab"}},
		{"twice", []string{"ab", "ab", "ab/."}, []string{"ab"}},
		{"link", []string{"link"}, []string{"a/b"}},
		{"link into another", []string{"link", "a"}, []string{"a"}},
		{"missing", []string{"a", "none"}, nil},
		{"file", []string{"file"}, nil},
		{"none", nil, nil},
		{"too many", make([]string, storage.MaxRoots+1), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var in, want []string
			for _, p := range tc.in {
				in = append(in, filepath.Join(dir, p))
			}
			for _, p := range tc.want {
				want = append(want, filepath.Join(dir, p))
			}
			got, err := storage.Roots(in)
			if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want != nil) {
				t.Errorf("%v %s", err, diff)
			}
			if err != nil && (!fault.Is(err, fault.StorageInspector) || strings.Contains(err.Error(), dir)) {
				t.Errorf("got %v", err)
			}
		})
	}
	if _, err := storage.Roots([]string{dir, dir + "/none"}); err == nil || !strings.Contains(err.Error(), "directory 2 of 2: ") {
		t.Errorf("which one? %v", err)
	}
	if _, err := storage.Roots([]string{"relative"}); !fault.Is(err, fault.StorageInspector) {
		t.Errorf("a relative path: %v", err)
	}
	if got, err := storage.Roots([]string{dir + "/a", "/"}); err != nil || !cmp.Equal(got, []string{"/"}) {
		t.Errorf("below /: %q, %v", got, err)
	}
}

func TestInspect_SeveralRoots(t *testing.T) {
	a, b := tree(t), tree(t)
	if got := inspect(t, roomy, a, b); got.ObservedBytes != 200 || got.ObservedEntries != 10 || got.LargestFileBytes != 60 {
		t.Errorf("got %+v", got)
	}
	half := roomy
	half.MaxBytes = 199
	if got := inspect(t, half, a, b); got.Reason != storage.OverBytes {
		t.Errorf("got %+v", got)
	}
}

// The walk ends where the verdict is known.
func TestInspect_EndsAtTheFirstReason(t *testing.T) {
	dir := t.TempDir()
	for i := range 1000 {
		write(t, dir, fmt.Sprint(i), 1)
	}
	b := roomy
	b.MaxEntries = 10
	if got := inspect(t, b, dir); got.ObservedEntries != 11 || got.Reason != storage.OverEntries {
		t.Errorf("got %+v", got)
	}
}

// Sparse files of the largest size do not wrap the sum around.
func TestAdd(t *testing.T) {
	for _, tc := range []struct{ a, b, want int64 }{
		{1, 2, 3}, {math.MaxInt64 - 1, 1, math.MaxInt64}, {math.MaxInt64, 1, math.MaxInt64}, {1 << 62, 1 << 62, math.MaxInt64},
	} {
		if got := storage.Add(tc.a, tc.b); got != tc.want {
			t.Errorf("%d and %d: %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}

func TestInspect_Impossible(t *testing.T) {
	dir := tree(t)
	for name, roots := range map[string][]string{
		"a root that is gone":   {filepath.Join(dir, "gone")},
		"a root that is a file": {filepath.Join(dir, "a")},
	} {
		_, err := storage.Inspect(t.Context(), roots, roomy)
		if !fault.Is(err, fault.StorageInspector) || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v", name, err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	if _, err := storage.Inspect(t.Context(), []string{link}, roomy); !fault.Is(err, fault.StorageInspector) {
		t.Errorf("a root that became a link: %v", err)
	}
	if _, err := storage.Inspect(t.Context(), []string{dir}, storage.Budget{MaxEntries: -1}); !fault.Is(err, fault.StorageInspector) {
		t.Errorf("a negative bound: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := storage.Inspect(ctx, []string{dir}, roomy); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestAdmit(t *testing.T) {
	dir := tree(t)
	if got, err := storage.Admit(t.Context(), []string{dir}, roomy); err != nil || !got.Allowed {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err := storage.Admit(t.Context(), []string{dir}, storage.Budget{MaxBytes: 99, MaxEntries: 5, MaxFileBytes: 60})
	f, ok := fault.As(err)
	if !ok || f.Code != fault.StorageRefused || f.Details["reason"] != storage.OverBytes || f.Hint == "" ||
		f.Message != "admit storage: writable_byte_budget" {
		t.Errorf("got %+v", err)
	}
}

func TestObservation_JSON(t *testing.T) {
	const want = `{"allowed":false,"reason":"writable_byte_budget","observed_bytes":1,"observed_entries":2,"largest_file_bytes":3,"free_bytes":4,` +
		`"budget":{"max_bytes":134217728,"max_entries":10000,"max_file_bytes":16777216,"min_free_bytes":4294967296}}`
	o := storage.Observation{
		Reason: storage.OverBytes, ObservedBytes: 1, ObservedEntries: 2, LargestFileBytes: 3, FreeBytes: 4, Budget: storage.DefaultBudget(),
	}
	got, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	var back storage.Observation
	if err := json.Unmarshal(got, &back); err != nil || back != o {
		t.Errorf("read back %+v, %v", back, err)
	}
	o.Allowed, o.Reason = true, ""
	if got, _ := json.Marshal(o); !strings.HasPrefix(string(got), `{"allowed":true,"reason":null,"observed_bytes":1,`) {
		t.Errorf("got %s", got)
	}
}

// A socket in the tree that somebody listens on is not connected to.
func TestInspect_TouchesNothing(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	l, err := net.Listen("unix", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := inspect(t, roomy, dir); got.Reason != storage.UnsupportedEntry {
		t.Errorf("got %+v", got)
	}
	_ = l.(*net.UnixListener).SetDeadline(time.Now().Add(10 * time.Millisecond))
	if c, err := l.Accept(); err == nil {
		c.Close()
		t.Error("somebody connected")
	}
}

package testkit

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// built remembers the programs of this test process by name and tags.
var built = struct {
	sync.Mutex
	paths map[string]string
}{paths: map[string]string{}}

// Root is the top of the repository's source tree.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Clean(filepath.Join(filepath.Dir(file), "..", ".."))
}

// BuildProgram gives the path of the program whose main package is in the folder
// name of the repository ("bridge", "scripts/cmd/modelserver"), built with tags,
// once in each test process. It lies below .cache/, so that an unchanged program
// is not linked again by the next test process.
func BuildProgram(tb testing.TB, name string, tags ...string) string {
	tb.Helper()
	return build(tb, "CGO_ENABLED=1", name, tags)
}

// BuildStatic is BuildProgram for a program that needs no library of the machine,
// as it is put into containers.
func BuildStatic(tb testing.TB, name string, tags ...string) string {
	tb.Helper()
	return build(tb, "CGO_ENABLED=0", name, tags)
}

func build(tb testing.TB, cgo, name string, tags []string) string {
	tb.Helper()
	built.Lock()
	defer built.Unlock()
	tags = slices.Sorted(slices.Values(tags))
	key := strings.Join(append([]string{name}, tags...), "\x00")
	if cgo != "CGO_ENABLED=1" {
		key += "\x00" + cgo
	}
	if path, ok := built.paths[key]; ok {
		return path
	}
	sum := sha256.Sum256([]byte(key))
	dir := filepath.Join(Root(), ".cache", "test-bin", hex.EncodeToString(sum[:6]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	defer lockFile(tb, filepath.Join(dir, "lock"))()

	path := filepath.Join(dir, filepath.Base(name))
	args := []string{"build", "-o", path}
	if len(tags) > 0 {
		args = append(args, "-tags", strings.Join(tags, ","))
	}
	cmd := exec.Command("go", append(args, ".")...)
	cmd.Dir = filepath.Join(Root(), filepath.FromSlash(name))
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build %s: %v\n%s", name, err, out)
	}
	built.paths[key] = path
	return path
}

// lockFile keeps other test processes from building into the same folder.
func lockFile(tb testing.TB, path string) (unlock func()) {
	tb.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		tb.Fatal(err)
	}
	return func() { f.Close() }
}

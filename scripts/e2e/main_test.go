package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"drawbridge/scripts/internal/rig"
)

// crashTag builds programs that end at a named step (package crashpoint).
const crashTag = "drawbridge_crashpoints"

var (
	root  string // of the repository
	built string // directory of this process's builds

	// Programs are built once for all tests, those with crash points when the
	// first test asks for them.
	programs      = sync.OnceValues(func() (string, error) { return build("bin") })
	crashPrograms = sync.OnceValues(func() (string, error) { return build("crash", "-tags", crashTag) })
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if root, err = rig.Root(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if built, err = os.MkdirTemp("", "drawbridge-e2e-"); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(built)
	if _, err := programs(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "e2e:", err)
			code = 1
		}
	}
	return code
}

// build compiles the programs and the callback executable into one directory.
func build(name string, flags ...string) (string, error) {
	out := filepath.Join(built, name)
	args := append([]string{"build", "-o", out + "/"}, flags...)
	args = append(args, "./bridge", "./watchd", "./outboxd", "./scripts/cmd/inbox")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the programs: %w\n%s", err, strings.TrimSpace(string(text)))
	}
	return out, nil
}

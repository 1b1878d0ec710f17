//go:build drawbridge_crashpoints

package crashpoint

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

var (
	at     = os.Getenv("DRAWBRIDGE_TEST_EXIT_AT")
	stopAt = os.Getenv("DRAWBRIDGE_TEST_STOP_AT")
	once   sync.Once
)

// At ends or stops the program when its environment names this step.
func At(name string) {
	switch name {
	case at:
		os.Exit(ExitCode)
	case stopAt:
		once.Do(stop)
	}
}

// stop returns when somebody sends SIGCONT. The signal goes to the calling thread,
// which takes it before it runs on.
func stop() { _ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) }

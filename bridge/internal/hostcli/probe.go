package hostcli

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/checkup"
	"drawbridge/shared/process"
)

const (
	probeTime   = 5 * time.Second
	probeOutput = 4096 // bytes of tmux -V
)

// The programs that the bridge starts beside itself. The optional ones are
// needed only when --with names them.
var (
	requiredSiblings = []string{"watchd", "outboxd"}
	optionalSiblings = []string{"stationd", "brokerd"}
)

// SiblingsProbe looks for the other programs in dir, where the bridge's own
// executable lies. With a Store it also tells which of them hold their lease
// now; none running is normal before a Host has started the bridge.
func SiblingsProbe(dir, storeDir string) checkup.Probe {
	return func(ctx context.Context) ([]checkup.Fact, error) {
		all := slices.Concat(requiredSiblings, optionalSiblings)
		found, missing := []string{}, []string(nil)
		for _, name := range all {
			if checkup.Executable(filepath.Join(dir, name)) {
				found = append(found, name)
			} else if slices.Contains(requiredSiblings, name) {
				missing = append(missing, name)
			}
		}
		facts := checkup.Facts("found", found, "running", checkup.Holders(ctx, "bridge", storeDir, all...))
		if missing != nil {
			facts = append(facts, checkup.Facts("missing", missing)...)
			return facts, fmt.Errorf("%s must lie beside the bridge program", strings.Join(missing, " and "))
		}
		return facts, nil
	}
}

// TerminalProbe runs tmux -V. An empty path means the tmux of PATH.
func TerminalProbe(path string) checkup.Probe {
	return func(ctx context.Context) ([]checkup.Fact, error) {
		if path == "" {
			found, err := exec.LookPath("tmux")
			if err != nil {
				return nil, errors.New("tmux is not in PATH")
			}
			path = found
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, errors.New("the path of tmux cannot be resolved")
		}
		res := process.Run(ctx, process.Spec{Path: abs, Args: []string{"-V"}, Timeout: probeTime, MaxStdout: probeOutput, MaxStderr: probeOutput})
		switch {
		case !res.Ran:
			return nil, errors.New("tmux cannot be started")
		case !res.OK():
			return nil, fmt.Errorf("tmux -V ended with status %d", res.Exit)
		}
		version := strings.TrimSpace(string(res.Stdout))
		if !strings.HasPrefix(version, "tmux ") {
			return nil, errors.New("tmux -V does not name a tmux")
		}
		return checkup.Facts("version", version), nil
	}
}

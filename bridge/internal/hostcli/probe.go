package hostcli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/process"
	"drawbridge/shared/store"
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

// StoreProbe looks at the Store in dir without writing. A directory that does
// not exist yet, or is empty, is ok: the first program that needs it makes it.
func StoreProbe(dir string) Probe {
	return func(ctx context.Context) ([]Fact, error) {
		entries, err := os.ReadDir(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return []Fact{{"state", "absent"}}, makeable(dir)
		case err != nil:
			return nil, errors.New("the Store directory cannot be read")
		case len(entries) == 0:
			return []Fact{{"state", "empty"}}, nil
		}
		s, err := store.Open(ctx, store.Options{Dir: dir, Program: "bridge", ReadOnly: true})
		if err != nil {
			return nil, err
		}
		defer s.Close()
		info, err := s.Info(ctx)
		if err != nil {
			return nil, err
		}
		facts := []Fact{
			{"state", "present"}, {"format_version", info.FormatVersion}, {"writer_protocol", info.WriterProtocol},
			{"schema", info.UserVersion}, {"wal_bytes", info.WALBytes},
		}
		switch {
		case info.WriterProtocol > store.WriterProtocol || info.UserVersion > store.SchemaVersion:
			return facts, errors.New("the Store is of a newer release: it can be read, not written")
		case info.WALBytes > store.WALComplaint:
			return facts, fmt.Errorf("the write-ahead log has %d MiB: a program keeps a reader open", info.WALBytes>>20)
		}
		return facts, nil
	}
}

// makeable reports whether the nearest directory that exists may be written.
func makeable(dir string) error {
	for at := filepath.Dir(dir); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
			continue
		}
		if err != nil || !info.IsDir() || unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS) != nil {
			return errors.New("the Store directory does not exist and cannot be made")
		}
		return nil
	}
}

// SiblingsProbe looks for the other programs in dir, where the bridge's own
// executable lies. With a Store it also tells which of them hold their lease
// now; none running is normal before a Host has started the bridge.
func SiblingsProbe(dir, storeDir string) Probe {
	return func(ctx context.Context) ([]Fact, error) {
		var found, missing []string
		for _, name := range slices.Concat(requiredSiblings, optionalSiblings) {
			path := filepath.Join(dir, name)
			info, err := os.Stat(path)
			if err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil {
				found = append(found, name)
			} else if name == requiredSiblings[0] || name == requiredSiblings[1] {
				missing = append(missing, name)
			}
		}
		facts := []Fact{{"found", nonNil(found)}, {"running", nonNil(running(ctx, storeDir))}}
		if missing != nil {
			facts = append(facts, Fact{"missing", missing})
			return facts, fmt.Errorf("%s must lie beside the bridge program", strings.Join(missing, " and "))
		}
		return facts, nil
	}
}

// running lists the siblings that hold a live lease in the Store, if there is one.
func running(ctx context.Context, storeDir string) []string {
	if entries, err := os.ReadDir(storeDir); err != nil || len(entries) == 0 {
		return nil
	}
	s, err := store.Open(ctx, store.Options{Dir: storeDir, Program: "bridge", ReadOnly: true})
	if err != nil {
		return nil // the store check says why
	}
	defer s.Close()
	var out []string
	for _, name := range slices.Concat(requiredSiblings, optionalSiblings) {
		rows, err := s.Leases(ctx, name+"/")
		if err != nil {
			continue
		}
		for _, r := range rows {
			if r.Live {
				out = append(out, name)
				break
			}
		}
	}
	return out
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// TerminalProbe runs tmux -V. An empty path means the tmux of PATH.
func TerminalProbe(path string) Probe {
	return func(ctx context.Context) ([]Fact, error) {
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
		return []Fact{{"version", version}}, nil
	}
}

package claude

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/process"
)

// Errors of looking a process up in the registry.
var (
	errAbsent  = errors.New("the process has not registered its session")
	errForeign = errors.New("the registry file is of another process")
	errGarbled = errors.New("the registry file cannot be read")
	errNobody  = errors.New("the registry file names no session")
)

// Rereading a file that its writer is just rewriting in place.
const (
	garbledTries = 8
	garbledWait  = 5 * time.Millisecond
	// settledAfter is how old a file's modification must be until its reading may be
	// kept: two writes may fall into one tick of the file system's clock.
	settledAfter = 2 * time.Second
)

// Statuses of a process (claude §1).
const (
	statusIdle    = "idle"
	statusBusy    = "busy"
	statusWaiting = "waiting"
	// waitingPanel is what a process waits for while a panel of its own is open: no
	// turn is running then.
	waitingPanel = "dialog open"
)

// entry is what the registry says of one process. Members that would give access
// to the process are not read.
type entry struct {
	PID       int
	Session   string // lower case
	Cwd       string
	ProcStart string
	Version   string
	Kind      string
	Tmux      string
	Status    string
	Waiting   string    // what for
	Since     time.Time // of the status; zero where unknown
}

type entryJSON struct {
	PID             number `json:"pid"`
	SessionID       text   `json:"sessionId"`
	Cwd             text   `json:"cwd"`
	ProcStart       text   `json:"procStart"`
	Version         text   `json:"version"`
	Kind            text   `json:"kind"`
	Tmux            text   `json:"tmux"`
	Status          text   `json:"status"`
	WaitingFor      text   `json:"waitingFor"`
	StatusUpdatedAt number `json:"statusUpdatedAt"`
	UpdatedAt       number `json:"updatedAt"`
}

// The lenient members: a value of another type counts as missing, so that a
// member that changes its shape in a later version spoils no more than itself.
type (
	text   string
	flag   bool
	number int64
)

func (t *text) UnmarshalJSON(b []byte) error {
	*t = ""
	if len(b) > 0 && b[0] == '"' {
		s, _ := jsontext.AppendUnquote(nil, b) // half a surrogate pair becomes U+FFFD
		*t = text(s)
	}
	return nil
}

func (f *flag) UnmarshalJSON(b []byte) error {
	*f = string(b) == "true"
	return nil
}

func (n *number) UnmarshalJSON(b []byte) error {
	i, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		i = 0
	}
	*n = number(i)
	return nil
}

// lenient accepts what JavaScript writes: half a surrogate pair where a text was
// cut, and a name twice.
var lenient = json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))

// sessionPattern is a session id; file names are made of it.
var sessionPattern = regexp.MustCompile(`^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

func sessionsDir(home string) string { return filepath.Join(home, "sessions") }

func registryFile(home string, pid int) string {
	return filepath.Join(sessionsDir(home), strconv.Itoa(pid)+".json")
}

// parseEntry reads the bytes of one registry file.
func parseEntry(data []byte) (entry, error) {
	var j entryJSON
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] != '{' {
		return entry{}, errGarbled
	}
	if err := json.Unmarshal(data, &j, lenient); err != nil {
		return entry{}, fmt.Errorf("%w: %w", errGarbled, err)
	}
	if j.PID <= 0 || j.ProcStart == "" || !sessionPattern.MatchString(string(j.SessionID)) {
		return entry{}, errNobody
	}
	e := entry{
		PID: int(j.PID), Session: strings.ToLower(string(j.SessionID)), Cwd: string(j.Cwd), ProcStart: string(j.ProcStart),
		Version: string(j.Version), Kind: string(j.Kind), Tmux: string(j.Tmux), Status: string(j.Status), Waiting: string(j.WaitingFor),
	}
	switch {
	case j.StatusUpdatedAt > 0:
		e.Since = time.UnixMilli(int64(j.StatusUpdatedAt))
	case j.UpdatedAt > 0:
		e.Since = time.UnixMilli(int64(j.UpdatedAt))
	}
	return e, nil
}

// readEntry reads one registry file. The writer rewrites it in place, so a reader
// may meet an empty or a half-written one: it is read again until it is whole, and
// is never taken as absent.
func readEntry(ctx context.Context, path string) (entry, error) {
	for try := 1; ; try++ {
		data, err := readSmall(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return entry{}, errAbsent
		case err != nil:
			return entry{}, err
		}
		e, err := parseEntry(data)
		if !errors.Is(err, errGarbled) || try == garbledTries {
			return e, err
		}
		select {
		case <-ctx.Done():
			return entry{}, ctx.Err()
		case <-time.After(garbledWait):
		}
	}
}

func readSmall(path string) ([]byte, error) {
	f, err := journal.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, registryLimit+1))
	if err == nil && len(data) > registryLimit {
		err = fmt.Errorf("%w: over %d bytes", errGarbled, registryLimit)
	}
	return data, err
}

// of reports whether the entry is of the process with this start time.
func (e entry) of(pid int, start uint64) bool {
	return e.PID == pid && e.ProcStart == strconv.FormatUint(start, 10)
}

// entry gives the registry entry of exactly this process, read now.
func (a *Adapter) entry(ctx context.Context, proc agent.Process) (entry, error) {
	return lookup(ctx, proc.Home, proc.Inc.PID, proc.Inc.Start)
}

func lookup(ctx context.Context, home string, pid int, start uint64) (entry, error) {
	e, err := readEntry(ctx, registryFile(home, pid))
	if errors.Is(err, errNobody) {
		return entry{}, errAbsent
	}
	if err != nil {
		return entry{}, err
	}
	if !e.of(pid, start) { // of an earlier process with this pid, which was killed
		return entry{}, errForeign
	}
	return e, nil
}

// pane gives the pane id in the entry's tmux member ("f:@9.%9"); "" without one.
func (e entry) pane() string {
	if i := strings.LastIndexByte(e.Tmux, '%'); i >= 0 {
		return e.Tmux[i:]
	}
	return ""
}

// cachedEntry is a reading of a file that had not changed for a while.
type cachedEntry struct {
	id       agent.FileID
	size     int64
	modified time.Time
	entry    entry
}

// live lists the entries of all living processes of one registry, or only those
// that have one session open. An entry that stays unreadable makes the whole answer
// unknown: it could be the second holder of a session.
func (a *Adapter) live(ctx context.Context, home, session string) ([]entry, error) {
	names, err := os.ReadDir(sessionsDir(home))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []entry
	for n, d := range names {
		if n >= maxRegistry {
			return nil, fmt.Errorf("the registry has over %d files", maxRegistry)
		}
		pid, err := strconv.Atoi(strings.TrimSuffix(d.Name(), ".json"))
		if err != nil || pid <= 0 || d.Name() != strconv.Itoa(pid)+".json" {
			continue // keys and whatever else: not read
		}
		path := filepath.Join(sessionsDir(home), d.Name())
		if session != "" {
			// Each pane asks this of all the others, so most of them cost one Lstat.
			if e, _, known := a.unchanged(path); known && e.Session != session {
				continue
			}
		}
		info, err := process.Stat(pid)
		if err != nil || info.Dead() {
			continue
		}
		e, err := a.cached(ctx, path)
		if errors.Is(err, errAbsent) || errors.Is(err, errNobody) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
		if e.of(pid, info.Start) && (session == "" || e.Session == session) {
			out = append(out, e)
		}
	}
	return out, nil
}

// unchanged gives the reading of a registry file that has not changed since; seen is
// nil where the file cannot be seen.
func (a *Adapter) unchanged(path string) (e entry, seen fs.FileInfo, known bool) {
	seen, err := os.Lstat(path)
	if err != nil {
		return entry{}, nil, false
	}
	a.mu.Lock()
	c, ok := a.entries[path]
	a.mu.Unlock()
	return c.entry, seen, ok && c.id == journal.ID(seen) && c.size == seen.Size() && c.modified.Equal(seen.ModTime())
}

// cached reads a registry file unless it is known and has not changed.
func (a *Adapter) cached(ctx context.Context, path string) (entry, error) {
	e, seen, known := a.unchanged(path)
	if known {
		return e, nil
	}
	e, err := readEntry(ctx, path)
	if err != nil || seen == nil || time.Since(seen.ModTime()) < settledAfter {
		return e, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.entries) >= maxCached {
		clear(a.entries)
	}
	a.entries[path] = cachedEntry{journal.ID(seen), seen.Size(), seen.ModTime(), e}
	return e, nil
}

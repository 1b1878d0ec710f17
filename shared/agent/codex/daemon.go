package codex

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/process"
)

// Where Codex's daemon keeps what belongs to it, below CODEX_HOME.
const (
	pidFile       = "app-server-daemon/daemon.pid"
	controlSocket = "app-server-control/app-server-control.sock"
	locksDir      = "thread-writer-locks"
)

// errNoDaemon means that the home has no living daemon.
var errNoDaemon = errors.New("no living daemon")

// daemonRecord is what daemon.pid says of the process.
type daemonRecord struct {
	pid    int
	bootID string
	start  uint64
}

// parseDaemon reads a daemon.pid.
func parseDaemon(data []byte) (daemonRecord, error) {
	var j struct {
		PID      int `json:"pid"`
		Identity struct {
			BootID string `json:"bootId"`
			Start  uint64 `json:"startTicks"`
		} `json:"processIdentity"`
	}
	if err := json.Unmarshal(data, &j); err != nil {
		return daemonRecord{}, fmt.Errorf("read daemon.pid: %w", err)
	}
	if j.PID <= 1 || j.Identity.BootID == "" || j.Identity.Start == 0 {
		return daemonRecord{}, errors.New("read daemon.pid: no process identity in it")
	}
	return daemonRecord{j.PID, j.Identity.BootID, j.Identity.Start}, nil
}

// readDaemon gives the living daemon of a home, proven by its own triple.
func readDaemon(home string) (process.Incarnation, error) {
	f, err := journal.OpenFile(filepath.Join(home, pidFile))
	if err != nil {
		return process.Incarnation{}, errNoDaemon
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, HeaderLimit))
	if err != nil {
		return process.Incarnation{}, fmt.Errorf("read daemon.pid: %w", err)
	}
	rec, err := parseDaemon(data)
	if err != nil {
		return process.Incarnation{}, err
	}
	inc, err := process.Of(rec.pid)
	if err != nil || inc.BootID != rec.bootID || inc.Start != rec.start || !inc.Alive() {
		return process.Incarnation{}, errNoDaemon
	}
	return inc, nil
}

// holding is what one process has open of a home.
type holding struct {
	locks    map[string]bool   // threads whose writer lock is open
	rollouts map[string]string // thread → path
}

// threadID is a thread's name: a uuid in lower case.
var threadID = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// rolloutName takes the thread from a rollout's file name.
func rolloutName(name string) (thread string, ok bool) {
	const tail = 36 + len(".jsonl")
	if !strings.HasPrefix(name, "rollout-") || !strings.HasSuffix(name, ".jsonl") || len(name) < len("rollout-")+1+tail {
		return "", false
	}
	at := len(name) - tail
	thread = strings.ToLower(name[at : at+36])
	return thread, name[at-1] == '-' && threadID.MatchString(thread)
}

// holdings lists the writer locks and rollouts that process pid has open.
func holdings(pid int, home string) (holding, error) {
	h := holding{locks: map[string]bool{}, rollouts: map[string]string{}}
	fds, err := process.Descriptors(pid)
	if err != nil {
		return h, err
	}
	locks, sessions := filepath.Join(home, locksDir)+"/", sessionsDir(home)+"/"
	for _, fd := range fds {
		if name, ok := strings.CutPrefix(fd.Target, locks); ok {
			name = strings.ToLower(strings.TrimSuffix(name, ".lock"))
			if threadID.MatchString(name) {
				h.locks[name] = true
			}
			continue
		}
		if strings.HasPrefix(fd.Target, sessions) {
			if thread, ok := rolloutName(filepath.Base(fd.Target)); ok {
				h.rollouts[thread] = fd.Target
			}
		}
	}
	return h, nil
}

// created reads the time in a thread's uuid (version 7).
func created(thread string) (time.Time, bool) {
	id, err := uuid.Parse(thread)
	if err != nil || id.Version() != 7 {
		return time.Time{}, false
	}
	sec, nsec := id.Time().UnixTime()
	return time.Unix(sec, nsec), true
}

// started gives the wall-clock time at which a process of this boot began.
func (a *Adapter) started(inc process.Incarnation) time.Time {
	const ticks = 100 // USER_HZ, fixed for /proc on every Linux architecture Go knows
	age := time.Duration(process.BootTime())*time.Millisecond - time.Duration(inc.Start)*time.Second/ticks
	return a.now().Add(-age)
}

// lockedBy gives the process that holds the writer lock of a thread, 0 for none.
// The lock is a flock, visible in /proc/locks by inode (codex §4).
func lockedBy(home, thread string) int {
	id, err := statID(filepath.Join(home, locksDir, thread+".lock"))
	if err != nil {
		return 0
	}
	data, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	return findLock(string(data), id)
}

func findLock(table string, id agent.FileID) int {
	for line := range strings.Lines(table) {
		// "1: FLOCK ADVISORY WRITE 19859 fe:01:1234 0 EOF"; waiters have "->" second.
		f := strings.Fields(line)
		if len(f) < 6 || f[1] == "->" {
			continue
		}
		var major, minor uint32
		var ino uint64
		if _, err := fmt.Sscanf(f[5], "%x:%x:%d", &major, &minor, &ino); err != nil || ino != id.Ino || unix.Mkdev(major, minor) != id.Dev {
			continue
		}
		if pid, err := strconv.Atoi(f[4]); err == nil {
			return pid
		}
	}
	return 0
}

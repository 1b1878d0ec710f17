package process

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// An Incarnation names one life of one process: a pid alone may be reused, its
// start time within one boot and one pid namespace may not.
type Incarnation struct {
	PID       int    `json:"pid"`
	BootID    string `json:"boot_id"`
	Start     uint64 `json:"start"`  // field 22 of /proc/PID/stat, clock ticks since boot
	Namespace uint64 `json:"pid_ns"` // inode of /proc/self/ns/pid of whoever looked
}

// Self gives the incarnation of this process; zero when /proc cannot be read.
var Self = sync.OnceValue(func() Incarnation {
	inc, err := Of(os.Getpid())
	if err != nil {
		return Incarnation{}
	}
	return inc
})

// BootID gives the kernel's random id of this boot, "" when it cannot be read.
var BootID = sync.OnceValue(func() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
})

// namespace gives the inode of our pid namespace, 0 when it cannot be read.
var namespace = sync.OnceValue(func() uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0
	}
	return st.Ino
})

// BootTime gives the milliseconds since boot on CLOCK_BOOTTIME: it counts through
// suspend and no step of the wall clock moves it.
func BootTime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		// Every Linux since 2.6.39 has the clock; without it no lease is safe.
		panic("process: read CLOCK_BOOTTIME: " + err.Error())
	}
	return ts.Nano() / 1e6
}

// Of gives the incarnation of pid as it is now. A zombie still has one.
func Of(pid int) (Incarnation, error) {
	info, err := Stat(pid)
	if err != nil {
		return Incarnation{}, err
	}
	inc := Incarnation{PID: pid, BootID: BootID(), Start: info.Start, Namespace: namespace()}
	if inc.BootID == "" || inc.Namespace == 0 {
		return Incarnation{}, fmt.Errorf("identify process %d: boot id or pid namespace unreadable", pid)
	}
	return inc, nil
}

// IsZero reports whether i names no process.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// Birth is the part beside the pid: "<boot id>:<pid namespace>:<start>".
func (i Incarnation) Birth() string {
	return i.BootID + ":" + strconv.FormatUint(i.Namespace, 10) + ":" + strconv.FormatUint(i.Start, 10)
}

// String gives "<pid>/<birth>", which ParseIncarnation reads.
func (i Incarnation) String() string { return strconv.Itoa(i.PID) + "/" + i.Birth() }

var incarnationText = regexp.MustCompile(`^([1-9][0-9]{0,9})/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}):([1-9][0-9]{0,19}):([0-9]{1,20})$`)

// ParseIncarnation reads the form of String, exactly.
func ParseIncarnation(text string) (Incarnation, error) {
	m := incarnationText.FindStringSubmatch(text)
	if m == nil {
		return Incarnation{}, errors.New("not a process incarnation")
	}
	pid, err1 := strconv.ParseInt(m[1], 10, 32)
	ns, err2 := strconv.ParseUint(m[3], 10, 64)
	start, err3 := strconv.ParseUint(m[4], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return Incarnation{}, errors.New("not a process incarnation")
	}
	inc := Incarnation{PID: int(pid), BootID: m[2], Start: start, Namespace: ns}
	if inc.String() != text {
		return Incarnation{}, errors.New("not a process incarnation")
	}
	return inc, nil
}

// Gone reports whether the process has ended. known false means that nothing is
// proven: it was seen in another pid namespace, or /proc hides it.
//
// Proofs of gone are: another boot, no such pid, a pid with another start time,
// and a zombie without living threads, which runs nothing and holds neither
// descriptor nor lock nor terminal.
//
// The start time is read relative to the reader's time namespace, so processes
// that share a Store must share that too; nothing here can check it.
func (i Incarnation) Gone() (gone, known bool) {
	if i.PID <= 0 || i.BootID == "" || i.Namespace == 0 || BootID() == "" {
		return false, false
	}
	if i.BootID != BootID() {
		return true, true
	}
	if i.Namespace != namespace() {
		return false, false
	}
	info, err := Stat(i.PID)
	if err != nil {
		// hidepid makes foreign processes look absent, so ask the kernel as well.
		return errors.Is(unix.Kill(i.PID, 0), unix.ESRCH), errors.Is(unix.Kill(i.PID, 0), unix.ESRCH)
	}
	return info.Start != i.Start || info.Dead(), true
}

// Alive reports whether the process is proven to run.
func (i Incarnation) Alive() bool {
	gone, known := i.Gone()
	return known && !gone
}

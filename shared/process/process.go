// Package process knows Linux processes: who one is beyond its pid, what it is
// made of, how to run a bounded child, and how to end processes that are proven
// to be the ones meant.
//
// A pid is never trusted alone. An Incarnation adds the boot, the pid namespace
// and the start time, and every function that signals checks it at the moment of
// use through a pidfd, which keeps naming the same process.
//
// Everything is read from /proc. What cannot be read is an error or "unknown",
// never a guess. Arguments and environments of other processes are returned to
// the caller and are not to be logged.
package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Bounds of what is read from /proc.
const (
	maxStat        = 4 << 10
	maxArguments   = 4 << 20 // twice what the kernel allows for argv by default
	maxDescriptors = 1 << 16
	maxTree        = 1 << 16
	maxTarget      = 4 << 10 // of a link; the kernel gives no more than a page
	firstRead      = 2 << 10
)

// Info is one line of /proc/PID/stat.
type Info struct {
	PID     int
	PPID    int
	PGRP    int
	Session int
	TTY     int    // device number of the controlling terminal, 0 for none
	TPGID   int    // foreground group of that terminal, -1 for none
	Start   uint64 // clock ticks since boot
	State   byte   // R, S, D, T, t, Z, X, I …
	Threads int
	Comm    string // at most 15 bytes, chosen by the process
}

// Dead reports whether the process has ended and only waits to be reaped: it
// runs nothing and holds no descriptor, lock or terminal. A leader that ended
// before its other threads shows Z too, and is not dead.
func (i Info) Dead() bool {
	return i.State == 'X' || i.State == 'x' || (i.State == 'Z' && i.Threads <= 1)
}

// Foreground reports whether the process is in the foreground group of its
// controlling terminal.
func (i Info) Foreground() bool { return i.TTY != 0 && i.TPGID > 0 && i.PGRP == i.TPGID }

// Device gives the device number of a terminal's path in the form of Info.TTY
// (proc_pid_stat(5)).
func Device(tty string) (int, error) {
	var st unix.Stat_t
	if err := unix.Stat(tty, &st); err != nil {
		return 0, err
	}
	major, minor := unix.Major(st.Rdev), unix.Minor(st.Rdev)
	return int(minor&0xff | major<<8 | (minor&^0xff)<<12), nil
}

// Stat reads /proc/PID/stat. A process that does not exist gives fs.ErrNotExist
// or ESRCH.
func Stat(pid int) (Info, error) {
	buf := statLines.Get().(*[maxStat]byte)
	defer statLines.Put(buf)
	data, err := readStat(pid, buf[:])
	if err != nil {
		return Info{}, fmt.Errorf("read state of process %d: %w", pid, err)
	}
	info, err := parseStat(data)
	if err != nil {
		return Info{}, fmt.Errorf("read state of process %d: %w", pid, err)
	}
	return info, nil
}

// statLines are buffers for state lines, by far the most that is read of /proc.
var statLines = sync.Pool{New: func() any { return new([maxStat]byte) }}

// readStat reads the state line into buf. The kernel gives it whole with the first
// read, so the end is not asked for.
func readStat(pid int, buf []byte) ([]byte, error) {
	if pid <= 0 {
		return nil, os.ErrNotExist
	}
	path := procPath(pid, "stat")
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	n, err := retry(func() (int, error) { return unix.Read(fd, buf) })
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return buf[:n], nil
}

// parseStat reads one stat line. The second field is the name in parentheses,
// which may itself hold parentheses and spaces, so fields count from the last ")".
func parseStat(data []byte) (Info, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 1 || end < open {
		return Info{}, fmt.Errorf("no name in the state line")
	}
	const last = 22 - 3 // field 22, counted from field 3
	var fields [last + 1][]byte
	n := 0
	for f := range bytes.FieldsSeq(data[end+1:]) {
		if fields[n] = f; n == last {
			break
		}
		n++
	}
	if n < last || len(fields[0]) != 1 {
		return Info{}, fmt.Errorf("state line with %d fields", n+2)
	}
	info := Info{State: fields[0][0], Comm: string(data[open+1 : end])}
	var bad error
	number := func(field int) int {
		n, err := strconv.Atoi(string(fields[field-3]))
		if err != nil {
			bad = fmt.Errorf("field %d of the state line is not a number", field)
		}
		return n
	}
	info.PPID, info.PGRP, info.Session = number(4), number(5), number(6)
	info.TTY, info.TPGID, info.Threads = number(7), number(8), number(20)
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data[:open])))
	if err != nil {
		return Info{}, fmt.Errorf("no pid in the state line")
	}
	info.PID = pid
	if info.Start, err = strconv.ParseUint(string(fields[last]), 10, 64); err != nil {
		return Info{}, fmt.Errorf("no start time in the state line")
	}
	return info, bad
}

// Descendants lists all living descendants of pid, parents before children.
// It is a picture taken while the world moves: a process forked during the walk
// may be missing, so a caller that ends a tree walks again until nothing is left.
func Descendants(pid int) ([]Info, error) {
	var out []Info
	err := Walk(pid, func(info Info) bool {
		if info.PID != pid {
			out = append(out, info)
		}
		return true
	})
	return out, err
}

// Walk visits pid and its living descendants, parents before children, but
// nothing below a process for which visit says false: an agent with many threads
// is expensive to look below.
func Walk(pid int, visit func(Info) (descend bool)) error {
	root, err := Stat(pid)
	if err != nil {
		return err
	}
	if !visit(root) {
		return nil
	}
	children := taskChildren
	if !childrenFiles() {
		table, err := allChildren()
		if err != nil {
			return err
		}
		children = func(pid int) []int { return table[pid] }
	}
	seen := map[int]bool{pid: true}
	for queue := []int{pid}; len(queue) > 0 && len(seen) <= maxTree; queue = queue[1:] {
		for _, child := range children(queue[0]) {
			if seen[child] {
				continue
			}
			seen[child] = true
			info, err := Stat(child)
			if err != nil {
				continue // ended since
			}
			if visit(info) {
				queue = append(queue, child)
			}
		}
	}
	return nil
}

// childrenFiles reports whether the kernel has CONFIG_PROC_CHILDREN.
var childrenFiles = sync.OnceValue(func() bool {
	self := os.Getpid()
	_, err := readProc(self, fmt.Sprintf("task/%d/children", self), maxStat)
	return err == nil
})

// taskChildren reads the children of every thread of pid.
func taskChildren(pid int) []int {
	tasks, err := os.ReadDir(procPath(pid, "task"))
	if err != nil {
		return nil
	}
	var out []int
	for _, task := range tasks {
		data, err := readProc(pid, "task/"+task.Name()+"/children", maxArguments)
		if err != nil {
			continue
		}
		for field := range strings.FieldsSeq(string(data)) {
			if child, err := strconv.Atoi(field); err == nil {
				out = append(out, child)
			}
		}
	}
	sort.Ints(out)
	return out
}

// allChildren reads the whole process table once.
func allChildren() (map[int][]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	table := map[int][]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if info, err := Stat(pid); err == nil {
			table[info.PPID] = append(table[info.PPID], pid)
		}
	}
	for _, list := range table {
		sort.Ints(list)
	}
	return table, nil
}

// Executable is the file that a process runs.
type Executable struct {
	Path    string // without the kernel's " (deleted)"
	Deleted bool   // the file at Path is gone or another one
	Dev     uint64
	Ino     uint64
	Size    int64
	MTime   time.Time
}

// Exe tells which file pid runs, also when that file was replaced since.
func Exe(pid int) (Executable, error) {
	link := procPath(pid, "exe")
	path, err := os.Readlink(link)
	if err != nil {
		return Executable{}, fmt.Errorf("read executable of process %d: %w", pid, err)
	}
	fi, err := os.Stat(link) // follows to the open file, not to the name
	if err != nil {
		return Executable{}, fmt.Errorf("read executable of process %d: %w", pid, err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	exe := Executable{Path: path, Dev: st.Dev, Ino: st.Ino, Size: fi.Size(), MTime: fi.ModTime()}
	if at, err := os.Stat(path); err != nil || !os.SameFile(fi, at) {
		exe.Deleted = true
		exe.Path = strings.TrimSuffix(path, " (deleted)")
	}
	return exe, nil
}

// Cmdline gives the arguments of pid, the program's name first; none for a
// kernel thread or a zombie. They may hold secrets: never log them.
func Cmdline(pid int) ([]string, error) {
	data, err := readProc(pid, "cmdline", maxArguments)
	if err != nil {
		return nil, fmt.Errorf("read arguments of process %d: %w", pid, err)
	}
	return splitNUL(data), nil
}

// Environ gives the environment that pid was started with; later changes of its
// own are not visible. Values are secrets: never log them.
func Environ(pid int) (map[string]string, error) {
	data, err := readProc(pid, "environ", maxArguments)
	if err != nil {
		return nil, fmt.Errorf("read environment of process %d: %w", pid, err)
	}
	out := map[string]string{}
	for _, entry := range splitNUL(data) {
		if name, value, ok := strings.Cut(entry, "="); ok {
			if _, twice := out[name]; !twice { // getenv takes the first
				out[name] = value
			}
		}
	}
	return out, nil
}

// Cwd gives the working directory of pid, with the kernel's " (deleted)" when it
// was removed.
func Cwd(pid int) (string, error) {
	dir, err := os.Readlink(procPath(pid, "cwd"))
	if err != nil {
		return "", fmt.Errorf("read working directory of process %d: %w", pid, err)
	}
	return dir, nil
}

// Descriptor is one open descriptor of a process.
type Descriptor struct {
	FD     int
	Target string // path, or "socket:[123]", "pipe:[123]", "anon_inode:[eventpoll]"
}

// Descriptors lists the open descriptors of pid in ascending order.
func Descriptors(pid int) ([]Descriptor, error) {
	dir, err := os.Open(procPath(pid, "fd"))
	if err != nil {
		return nil, fmt.Errorf("list descriptors of process %d: %w", pid, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxDescriptors)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("list descriptors of process %d: %w", pid, err)
	}
	out := make([]Descriptor, 0, len(names))
	at := int(dir.Fd())
	target := make([]byte, maxTarget)
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		n, err := unix.Readlinkat(at, name, target)
		if err != nil {
			continue // closed since
		}
		out = append(out, Descriptor{fd, string(target[:n])})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].FD < out[j].FD })
	return out, nil
}

func splitNUL(data []byte) []string {
	if len(data) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(data), "\x00"), "\x00")
}

func procPath(pid int, name string) string {
	return "/proc/" + strconv.Itoa(pid) + "/" + name
}

// readProc reads at most limit bytes of a file of /proc/PID. It asks the kernel
// itself: package os would register each file with the poller and read it in small
// steps, which doubles the system calls of a look at many processes.
func readProc(pid int, name string, limit int) ([]byte, error) {
	if pid <= 0 {
		return nil, os.ErrNotExist
	}
	path := procPath(pid, name)
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	buf := make([]byte, min(limit, firstRead))
	for at := 0; ; {
		n, err := retry(func() (int, error) { return unix.Read(fd, buf[at:]) })
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if at += n; n == 0 || at == limit {
			return buf[:at], nil
		}
		if at == len(buf) {
			buf = append(buf, make([]byte, min(len(buf), limit-len(buf)))...)
		}
	}
}

// retry repeats a call that a signal interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/wire"
)

// plan is what the stage does before it becomes the daemon.
type plan struct {
	Args     []string    `json:"args"`
	Env      []string    `json:"env"`
	Dir      string      `json:"dir"`
	User     *wire.User  `json:"user"`
	Limits   wire.Limits `json:"limits"`
	Artifact bool        `json:"artifact"` // execute descriptor 5
	Script   string      `json:"script"`   // or this path, a read-only mount of the same file
}

func stageCommand() *service.Command {
	return &service.Command{
		Name:  "exec",
		Short: "Give up every privilege and become the daemon",
		Long:  "init starts it; the plan stands on descriptor 3, and what went wrong goes to descriptor 4.",
		Run: func(context.Context, []string) error {
			if os.Getppid() != 1 {
				return fault.New(fault.Usage, "exec is started by init")
			}
			runtime.LockOSThread() // privileges belong to threads, and this one becomes the daemon
			verdict := os.NewFile(verdictFD, "verdict")
			if err := become(); err != nil {
				fmt.Fprint(verdict, fault.CleanLine(err.Error()))
			}
			return service.Status(signaled - 1)
		},
	}
}

// become returns only when it failed.
func become() error {
	if err := unix.CloseRange(planFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	var p plan
	f := os.NewFile(planFD, "plan")
	if err := json.NewDecoder(f).Decode(&p); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	if err := limit(p.Limits); err != nil {
		return err
	}
	if err := dropPrivileges(p.User); err != nil {
		return err
	}
	if err := os.Chdir(p.Dir); err != nil {
		return fmt.Errorf("enter the working directory: %w", err)
	}
	path := p.Args[0]
	switch {
	case p.Script != "":
		path = p.Script
	case p.Artifact:
		path = fmt.Sprintf("/proc/self/fd/%d", artifactFD)
	}
	resetSignals()
	if err := syscall.Exec(path, p.Args, p.Env); err != nil {
		return fmt.Errorf("execute the program: %w", err)
	}
	return nil
}

// limit sets the rlimits of station §6.6; none is raised.
func limit(l wire.Limits) error {
	if l.Files == 0 {
		l.Files = wire.DefaultFiles
	}
	if l.Processes == 0 {
		l.Processes = wire.DefaultProcesses
	}
	for _, r := range []struct {
		which int
		value uint64
	}{{unix.RLIMIT_NOFILE, l.Files}, {unix.RLIMIT_CORE, 0}, {unix.RLIMIT_NPROC, l.Processes}} {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(r.which, &now); err != nil {
			return fmt.Errorf("set limits: %w", err)
		}
		value := min(r.value, now.Max)
		if err := syscall.Setrlimit(r.which, &syscall.Rlimit{Cur: value, Max: value}); err != nil {
			return fmt.Errorf("set limits: %w", err)
		}
	}
	return nil
}

// dropPrivileges takes the user's ids, and every capability also from whatever is
// executed later.
func dropPrivileges(u *wire.User) error {
	for c := uintptr(0); ; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err == unix.EINVAL {
			break // past the last one
		} else if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("drop ambient capabilities: %w", err)
	}
	if u != nil && os.Getuid() == 0 {
		if err := syscall.Setgroups([]int{}); err != nil {
			return fmt.Errorf("clear supplementary groups: %w", err)
		}
		if err := syscall.Setresgid(u.GID, u.GID, u.GID); err != nil {
			return fmt.Errorf("take gid %d: %w", u.GID, err)
		}
		if err := syscall.Setresuid(u.UID, u.UID, u.UID); err != nil {
			return fmt.Errorf("take uid %d: %w", u.UID, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// resetSignals gives the daemon what a program expects: what the shim ignores is
// inherited. From here on nothing of this program may run but the exec.
func resetSignals() {
	var byDefault [4]uint64
	for sig := uintptr(1); sig <= 64; sig++ {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	}
	var empty unix.Sigset_t
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &empty, nil)
}

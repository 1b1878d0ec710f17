// Package namespace says how the station shim is born: as first process of new
// pid, network, mount, ipc and uts namespaces, and without root of a user namespace
// that knows only the user who starts it (station §2.1).
//
// A process is born inside; nothing is moved in later (station §8).
package namespace

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// capabilities are what a shim without root needs in its own user namespace: to
// mount, to raise lo, to look at and to end what runs there, and to take all that
// from the daemon.
var capabilities = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_SETPCAP, unix.CAP_KILL}

// Attributes start the shim: in its own session, without a controlling terminal.
func Attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}}
		attr.GidMappingsEnableSetgroups = false
		attr.AmbientCaps = capabilities
	}
	return attr
}

// ID is the inode of a process's namespace of a kind ("pid", "net"); of this
// process for "self".
func ID(pid, kind string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+pid+"/ns/"+kind, &st); err != nil {
		return 0, fmt.Errorf("read the %s namespace of process %s: %w", kind, pid, err)
	}
	return st.Ino, nil
}

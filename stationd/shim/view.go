package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"drawbridge/stationd/internal/wire"
)

// What is hidden on every machine: where sockets and other people's files are
// (station §6.7). /dev and /proc are made anew.
var hidden = []string{"/run", "/var/run", "/tmp", "/var/tmp", "/root", "/home"}

// kept is what no home directory may hide.
var kept = []string{"/bin", "/dev", "/etc", "/lib", "/lib64", "/opt", "/proc", "/sbin", "/sys", "/usr", "/var"}

// devices are the files of the daemon's /dev.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// settings are what uid 0 could change in /proc without any capability.
var settings = []string{"/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs"}

const (
	tmpfsOptions = "mode=755,size=1m"
	plain        = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	firstPerson  = 1000 // uid from which a passwd entry is a person's
	nobody       = 65534
)

// tree is a part of the file system that comes back after everything was hidden.
type tree struct {
	path string
	fd   int // a detached copy of the mount
}

// buildView replaces what this mount namespace shows by what the daemon may see.
// It returns with the runtime directory as a descriptor that still can be written
// to, although nothing in the view leads there.
func buildView(spec wire.Spec) (runtime int, err error) {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return -1, fmt.Errorf("make mounts private: %w", err)
	}
	hide, err := hides(spec)
	if err != nil {
		return -1, err
	}
	if runtime, err = clone(spec.Runtime); err != nil {
		return -1, err
	}
	back, err := trees(spec)
	if err != nil {
		return -1, err
	}
	dev := make([]tree, 0, len(devices))
	for _, name := range devices {
		fd, err := clone("/dev/" + name)
		if err != nil {
			return -1, err
		}
		dev = append(dev, tree{"/dev/" + name, fd})
	}

	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | plain}
	if err := unix.MountSetattr(unix.AT_FDCWD, "/", unix.AT_RECURSIVE, &attr); err != nil {
		return -1, fmt.Errorf("make the root read-only (Linux 5.12 or newer is needed): %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return -1, fmt.Errorf("mount a fresh /proc: %w", err)
	}
	for _, path := range settings {
		if err := protect(path); err != nil {
			return -1, err
		}
	}
	for _, dir := range append([]string{"/dev"}, hide...) {
		if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, tmpfsOptions); err != nil {
			return -1, fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	if err := fillDev(); err != nil {
		return -1, fmt.Errorf("make /dev: %w", err)
	}
	for _, t := range append(back, dev...) {
		if err := attach(t); err != nil {
			return -1, fmt.Errorf("bring %s back: %w", t.path, err)
		}
	}
	if err := os.MkdirAll(wire.CredentialDir, 0o755); err != nil {
		return -1, fmt.Errorf("make %s: %w", wire.CredentialDir, err)
	}
	if err := unix.Mount("tmpfs", wire.CredentialDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, tmpfsOptions); err != nil {
		return -1, fmt.Errorf("make %s: %w", wire.CredentialDir, err)
	}
	for _, dir := range append([]string{"/dev"}, hide...) {
		if err := readOnly(dir); err != nil {
			return -1, err
		}
	}
	return runtime, os.Chdir("/")
}

// protect makes a part of a mount read-only, where it exists.
func protect(path string) error {
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("protect %s: %w", path, err)
	}
	return readOnly(path)
}

// readOnly makes one mount read-only, but nothing that is mounted in it.
func readOnly(dir string) error {
	if err := unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make %s read-only: %w", dir, err)
	}
	return nil
}

// clone copies the mounts at path and below, detached from every place.
func clone(path string) (int, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("take %s: %w", path, err)
	}
	return fd, nil
}

// trees takes what comes back: the workspace, HOME and TMPDIR to be written to, the
// artifact to be read.
func trees(spec wire.Spec) ([]tree, error) {
	writable := []string{spec.Workspace, spec.Home, spec.Temp}
	slices.Sort(writable) // a directory before what is in it
	var out []tree
	for _, path := range slices.Compact(writable) {
		t, err := take(path, plain)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	if spec.Artifact != nil {
		t, err := take(spec.Artifact.Path, plain|unix.MOUNT_ATTR_RDONLY)
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

func take(path string, set uint64) (tree, error) {
	fd, err := clone(path)
	if err != nil {
		return tree{}, err
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: set}); err != nil {
		return tree{}, fmt.Errorf("take %s: %w", path, err)
	}
	return tree{path, fd}, nil
}

// attach puts a tree where it was. Where that is hidden now, its place is made.
func attach(t tree) error {
	defer unix.Close(t.fd)
	var st unix.Stat_t
	if err := unix.Fstat(t.fd, &st); err != nil {
		return err
	}
	if _, err := os.Lstat(t.path); err != nil {
		if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			err = os.Mkdir(t.path, 0o755)
		} else {
			err = os.WriteFile(t.path, nil, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return unix.MoveMount(t.fd, "", unix.AT_FDCWD, t.path, unix.MOVE_MOUNT_F_EMPTY_PATH)
}

// fillDev makes what in /dev is no device.
func fillDev() error {
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return err
		}
	}
	return os.Mkdir("/dev/shm", 0o755)
}

// hides lists the directories to cover, none inside another.
func hides(spec wire.Spec) ([]string, error) {
	homes, err := homeDirs(spec)
	if err != nil {
		return nil, err
	}
	for _, dir := range append(slices.Clone(spec.Hide), spec.Runtime) {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return nil, fmt.Errorf("hide %q: want an absolute directory that is not the root", dir)
		}
		for _, shown := range []string{spec.Workspace, spec.Home, spec.Temp} {
			if within(dir, shown) {
				return nil, fmt.Errorf("hide %s: it lies in %s, which the daemon sees", dir, shown)
			}
		}
	}
	var all []string
	for _, dir := range slices.Concat(hidden, homes, spec.Hide, []string{spec.Runtime}, closed(spec)) {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue // not there
		}
		if fi, err := os.Stat(real); err == nil && fi.IsDir() {
			all = append(all, real)
		}
	}
	slices.Sort(all)
	var out []string
	for _, dir := range slices.Compact(all) {
		if !slices.ContainsFunc(out, func(above string) bool { return within(dir, above) }) {
			out = append(out, dir)
		}
	}
	return out, nil
}

// closed are the directories above what the daemon sees that its user may not enter,
// such as a service's private one: there the way is made anew.
func closed(spec wire.Spec) (out []string) {
	u := spec.RunAs
	if u == nil {
		return nil
	}
	for _, shown := range []string{spec.Workspace, spec.Home, spec.Temp} {
		for dir := filepath.Dir(shown); dir != "/"; dir = filepath.Dir(dir) {
			var st unix.Stat_t
			if err := unix.Stat(dir, &st); err != nil {
				continue // found out when it is taken
			}
			enter := uint32(unix.S_IXOTH)
			switch {
			case int(st.Uid) == u.UID:
				enter = unix.S_IXUSR
			case int(st.Gid) == u.GID:
				enter = unix.S_IXGRP
			}
			if st.Mode&enter == 0 {
				out = append(out, dir)
			}
		}
	}
	return out
}

// within reports whether path is dir or lies in it.
func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// homeDirs are the home directories of root, of people, and of the two users here.
func homeDirs(spec wire.Spec) ([]string, error) {
	f, err := os.Open("/etc/passwd")
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find home directories: %w", err)
	}
	defer f.Close()
	uids := []int{os.Getuid(), spec.UID}
	if spec.RunAs != nil {
		uids = append(uids, spec.RunAs.UID)
	}
	return parseHomes(f, uids)
}

func parseHomes(passwd io.Reader, uids []int) ([]string, error) {
	var out []string
	s := bufio.NewScanner(passwd)
	for s.Scan() {
		f := strings.Split(s.Text(), ":")
		if len(f) < 7 || !filepath.IsAbs(f[5]) {
			continue
		}
		uid, err := strconv.Atoi(f[2])
		if err != nil || uid != 0 && (uid < firstPerson || uid == nobody) && !slices.Contains(uids, uid) {
			continue
		}
		home := filepath.Clean(f[5])
		if !slices.ContainsFunc(kept, func(dir string) bool { return within(dir, home) }) {
			out = append(out, home)
		}
	}
	return out, s.Err()
}

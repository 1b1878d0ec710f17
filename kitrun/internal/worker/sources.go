package worker

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
)

// source is what stood at the source of a mount when it was checked.
type source struct {
	at, destination string
	id              inode
}

// realSources refuses a mount whose source is not at its real place any more, and
// notes what stands there. What was checked may have been exchanged since, by a
// preparation or by another worker that may write above it, and the engine would
// follow a link.
func realSources(mounts []Mount) ([]source, error) {
	var out []source
	for _, m := range mounts {
		s := source{at: m.Source, destination: m.Destination}
		var err error
		if s.id, err = realInode(m.Source); err != nil {
			return nil, s.exchanged()
		}
		out = append(out, s)
	}
	return out, nil
}

// realInode gives what stands at a path that no link leads to.
func realInode(path string) (inode, error) {
	if real, err := filepath.EvalSymlinks(path); err != nil || real != path {
		return inode{}, fmt.Errorf("%s is not its real path", path)
	}
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	return inode{uint64(st.Dev), st.Ino}, err //nolint:unconvert // Dev is of another type elsewhere
}

func (s source) exchanged() error {
	return fault.New(fault.MountUnsafe, "check mount %s: its source was exchanged after it was checked", s.destination).
		WithHint("the container was removed, and no prompt was given to it; nothing may move or link the directories of a worker while it is made")
}

// sameSources looks at the mounts of the container that has just been started: the
// engine resolved their sources after they were checked. What is in the container
// decides; where that cannot be seen (an engine elsewhere, a container that is gone
// already) what stands at the sources now does.
func (r *run) sameSources(ctx context.Context) error {
	root := -1
	if o, err := r.Engine.Inspect(ctx, r.container); err == nil && r.id.native {
		root = rootOf(o.PID, r.container)
	}
	if root >= 0 {
		defer unix.Close(root)
	}
	for _, s := range r.sources {
		id, err := inodeBelow(root, s.destination)
		if err != nil {
			id, err = realInode(s.at)
		}
		if err != nil || id != s.id {
			return s.exchanged()
		}
	}
	return nil
}

// rootOf opens the root directory of a container's first process, -1 when it cannot
// be seen. The process counts only in a control group of the container's name: of an
// engine that counts its processes apart the number would be somebody else's.
func rootOf(pid int, container string) int {
	if pid <= 0 {
		return -1
	}
	proc := fmt.Sprintf("/proc/%d", pid)
	root, err := unix.Open(proc+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if groups, err := os.ReadFile(proc + "/cgroup"); err != nil || !bytes.Contains(groups, []byte(container)) {
		unix.Close(root)
		return -1
	}
	return root
}

// inodeBelow gives what stands at a path inside a root, links resolved there.
func inodeBelow(root int, path string) (id inode, err error) {
	fd, err := unix.Openat2(root, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return id, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	return inode{uint64(st.Dev), st.Ino}, err //nolint:unconvert // Dev is of another type elsewhere
}

package supervise

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// groupPrefix begins the names of the cgroups that stationd makes.
const groupPrefix = "drawbridge-"

// CgroupParent is this process's own directory in the cgroup2 hierarchy, where
// cgroups of attempts can be made; "" when there is none or it cannot be written
// to. Only new, empty groups are made there, and nothing is moved (station §8 rule 3).
func CgroupParent() string {
	mount := cgroupMount()
	if mount == "" {
		return ""
	}
	own, err := ownGroup("self")
	if err != nil {
		return ""
	}
	parent := filepath.Join(mount, own)
	probe := filepath.Join(parent, fmt.Sprintf("%sprobe-%d", groupPrefix, os.Getpid()))
	if err := os.Mkdir(probe, 0o755); err != nil {
		return ""
	}
	defer os.Remove(probe)
	if f, err := os.OpenFile(filepath.Join(probe, "cgroup.kill"), os.O_WRONLY, 0); err != nil {
		return ""
	} else {
		f.Close()
	}
	return parent
}

// cgroupMount is where cgroup2 is mounted.
func cgroupMount() string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		left, right, ok := strings.Cut(s.Text(), " - ")
		fields := strings.Fields(left)
		if ok && strings.HasPrefix(right, "cgroup2 ") && len(fields) > 4 && !strings.Contains(fields[4], `\`) && fields[3] == "/" {
			return fields[4]
		}
	}
	return ""
}

// ownGroup is a process's path in the cgroup2 hierarchy.
func ownGroup(pid string) (string, error) {
	data, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok && filepath.IsAbs(path) {
			return path, nil
		}
	}
	return "", errors.New("not in a cgroup2 hierarchy")
}

// groupName is the same for every stationd that finds the runtime directory.
func groupName(runtime string) string {
	sum := sha256.Sum256([]byte(runtime))
	return hex.EncodeToString(sum[:8])
}

// makeCgroup makes an attempt's group and opens it, for a child to be born in.
func makeCgroup(parent, name string) (*os.File, error) {
	path := filepath.Join(parent, groupPrefix+name)
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		_ = os.Remove(path)
	}
	return f, err
}

// findCgroup is the group that makeCgroup made for a running shim.
func findCgroup(pid int, name string) (string, bool) {
	own, err := ownGroup(fmt.Sprint(pid))
	mount := cgroupMount()
	if err != nil || mount == "" || filepath.Base(own) != groupPrefix+name {
		return "", false
	}
	return filepath.Join(mount, own), true
}

// Sweep removes the cgroup of a runtime directory's shim that a stationd made before it
// ended, if it is empty: nobody else would, when the shim never said who it is.
func Sweep(o Options, runtime string) {
	if o.Cgroup != "" {
		_ = os.Remove(filepath.Join(o.Cgroup, groupPrefix+groupName(runtime))) // there is none, mostly
	}
}

// dropCgroup removes the attempt's group, once it is empty.
func (p *Process) dropCgroup() {
	if p.cgroup != "" {
		_ = os.Remove(p.cgroup) // the kernel refuses while somebody lives there
	}
}

// cgroupPopulated reports whether a group has living members; one that is gone has
// none.
func cgroupPopulated(path string) (bool, error) {
	data, err := os.ReadFile(filepath.Join(path, "cgroup.events"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the attempt's cgroup: %w", err)
	}
	return strings.Contains(string(data), "populated 1"), nil
}

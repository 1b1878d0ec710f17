package stationrig

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"drawbridge/shared/process"
)

// Namespace names the pid namespace of a process: all that a station's daemon starts
// is born in its own, and cannot leave it.
func Namespace(pid int) (string, error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	if err != nil {
		return "", fmt.Errorf("find the namespace of process %d: %w", pid, err)
	}
	return name, nil
}

// Members are the living processes of a pid namespace.
func Members(namespace string) (out []int) {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, link := range links {
		if name, err := os.Readlink(link); err != nil || name != namespace {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
		if err != nil {
			continue
		}
		if info, err := process.Stat(pid); err == nil && !info.Dead() {
			out = append(out, pid)
		}
	}
	return out
}

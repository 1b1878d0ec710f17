package worker

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/paths"
	"drawbridge/shared/fault"
)

// forbid refuses observed mounts that overlap a forbidden root (worker §8): by
// path, by the device and inode of every directory above, and by the place in the
// file system behind a bind mount, so that no alias of a directory gets by. What is
// mounted somewhere below a source comes along into the container, so it counts too.
func forbid(mounts []Mount, roots []ForbiddenRoot) error {
	if len(roots) == 0 {
		return nil
	}
	table, err := readMountTable()
	if err != nil {
		return fault.New(fault.ForbiddenMount, "check mounts against forbidden roots: read the table of mounts: %w", err).With("kind", roots[0].Kind)
	}
	for _, root := range roots {
		r, err := locate(root.Path, table)
		if err != nil {
			return fault.New(fault.ForbiddenMount, "check mounts against a %s root: %w", root.Kind, err).With("kind", root.Kind)
		}
		for _, m := range mounts {
			for _, source := range append([]string{m.Source}, below(m.Source, table)...) {
				s, err := locate(source, table)
				if err != nil {
					return fault.New(fault.ForbiddenMount, "check mount %s against a %s root: %w", m.Destination, root.Kind, err).With("kind", root.Kind)
				}
				what := ""
				switch {
				case s.inside(r):
					what = "worker mounted a forbidden root"
				case r.inside(s):
					what = "worker mounted an ancestor of a forbidden root"
				default:
					continue
				}
				return fault.New(fault.ForbiddenMount, "check mount %s: %s (%s, %.300q)", m.Destination, what, root.Kind, root.Path).
					With("kind", root.Kind).WithHint("the container was removed unstarted; give the worker a directory apart from it")
			}
		}
	}
	return nil
}

// below gives the places inside a directory at which something else is mounted.
func below(dir string, table []mounted) (places []string) {
	for _, m := range table {
		if m.at != dir && paths.Within(m.at, dir) {
			places = append(places, m.at)
		}
	}
	return places
}

// location is all that tells where a path is.
type location struct {
	path  string
	above []inode // its own, then that of each directory above
	fs    string  // file system, "" when not known
	real  string  // path inside the file system, beneath all bind mounts
}

type inode struct{ dev, ino uint64 }

func locate(path string, table []mounted) (location, error) {
	l := location{path: path}
	for dir := path; ; dir = filepath.Dir(dir) {
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil {
			return l, fmt.Errorf("look at a directory above it: %w", err)
		}
		l.above = append(l.above, inode{uint64(st.Dev), st.Ino}) //nolint:unconvert // Dev is of another type elsewhere
		if dir == "/" {
			break
		}
	}
	best := -1
	for i, m := range table { // of equal places the later one is on top
		if paths.Within(path, m.at) && (best < 0 || len(m.at) >= len(table[best].at)) {
			best = i
		}
	}
	if best >= 0 {
		m := table[best]
		l.fs, l.real = m.fs, filepath.Join(m.root, strings.TrimPrefix(path, strings.TrimSuffix(m.at, "/")))
	}
	return l, nil
}

// inside reports whether l is other or below it.
func (l location) inside(other location) bool {
	if paths.Within(l.path, other.path) {
		return true
	}
	for _, a := range l.above {
		if a == other.above[0] {
			return true
		}
	}
	return l.fs != "" && l.fs == other.fs && paths.Within(l.real, other.real)
}

// mounted is one line of the table of mounts.
type mounted struct {
	fs   string // major:minor
	root string // what of the file system is mounted
	at   string
}

// readMountTable reads the mounts of this process.
func readMountTable() ([]mounted, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountTable(data), nil
}

func parseMountTable(data []byte) []mounted {
	var out []mounted
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 5 {
			continue
		}
		out = append(out, mounted{f[2], unescape(f[3]), unescape(f[4])})
	}
	return out
}

// unescape resolves the octal escapes of the kernel's tables.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			n := 0
			for _, c := range s[i+1 : i+4] {
				n = n*8 + int(c-'0')
			}
			if n > 0 && n < 256 {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

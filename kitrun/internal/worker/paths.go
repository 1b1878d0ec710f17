package worker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/paths"
	"drawbridge/shared/fault"
)

// paths makes the paths real and keeps directories apart that must be.
func (j *job) paths(d Deps) error {
	for _, p := range []struct {
		option string
		path   *string
		writes bool // the worker or we write there
	}{{"workspace", &j.Workspace, !j.ReadOnlyWorkspace}, {"sourceRoot", &j.SourceRoot, false}, {"artifactRoot", &j.ArtifactRoot, true}} {
		real, err := realDir(*p.path)
		if err != nil {
			return invalid(p.option, "%w", named(*p.path, err))
		}
		if why := unsafeDir(real, p.writes, d); why != "" {
			return invalid(p.option, "%w", named(real, errors.New(why)))
		}
		*p.path = real
	}
	if paths.Within(j.ArtifactRoot, j.Workspace) || paths.Within(j.Workspace, j.ArtifactRoot) {
		return invalid("artifactRoot", "it and the workspace contain each other").
			WithHint("a worker could forge its own receipts: use directories beside each other")
	}
	st, err := os.Lstat(j.ArtifactRoot)
	if err != nil {
		return invalid("artifactRoot", "%w", bare(err))
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() {
		return invalid("artifactRoot", "it belongs to another user")
	}
	if st.Mode().Perm()&0o077 != 0 {
		return invalid("artifactRoot", "the mode of %.300q is %04o, which lets others in", j.ArtifactRoot, st.Mode().Perm()).WithHint("chmod 700 it")
	}
	return j.contextFile(d)
}

func (j *job) contextFile(d Deps) error {
	const option = "contextFile"
	if !filepath.IsAbs(j.ContextFile) {
		return invalid(option, "it is missing or not absolute")
	}
	st, err := os.Lstat(j.ContextFile)
	switch {
	case err != nil:
		return invalid(option, "%w", named(j.ContextFile, bare(err)))
	case !st.Mode().IsRegular():
		return invalid(option, "%w", named(j.ContextFile, errors.New("it is not a regular file")))
	case st.Size() > maxContext:
		return invalid(option, "it has more than %d bytes", maxContext)
	}
	real, err := filepath.EvalSymlinks(j.ContextFile)
	if err != nil {
		return invalid(option, "%w", bare(err))
	}
	if why := unsafeDir(filepath.Dir(real), false, d); why != "" {
		return invalid(option, "its directory %w", named(filepath.Dir(real), errors.New(why)))
	}
	j.ContextFile = real
	return nil
}

// named puts the path before what is wrong with it; an option that is not given
// has none.
func named(path string, err error) error {
	if path == "" {
		return err
	}
	return fmt.Errorf("%.300q: %w", path, err)
}

// realDir gives the real path of an existing directory.
func realDir(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", errors.New("it is missing or not absolute")
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", bare(err)
	}
	st, err := os.Stat(real)
	if err != nil {
		return "", bare(err)
	}
	if !st.IsDir() {
		return "", errors.New("it is not a directory")
	}
	return real, nil
}

// unsafeDir says why a real directory may not be used, "" when it may. Neither the
// Store nor the runtime directory nor the engine's socket may be inside it, by
// whatever way: a bind mount is another name of the same place.
func unsafeDir(dir string, writes bool, d Deps) string {
	table, err := readMountTable()
	if err != nil {
		return "the table of mounts cannot be read"
	}
	here, err := locate(dir, table)
	if err != nil {
		return "it cannot be looked at"
	}
	if here.above[0] == here.above[len(here.above)-1] {
		return "it is the root of the file system"
	}
	for _, sys := range systemDirs {
		if in, holds := here.relation(sys, table); in && (holds || writes) {
			return "it is a directory of the system"
		}
	}
	private := []struct{ what, path string }{{"runtime directory", d.RuntimeDir}}
	if d.Store != nil {
		private = append(private, struct{ what, path string }{"Store", d.Store.Dir()})
	}
	socket := ""
	if d.Engine != nil {
		socket = socketDir(d.Engine.Host())
	}
	places := []location{here}
	for _, at := range below(dir, table) { // it comes along into the container
		if l, err := locate(at, table); err == nil {
			places = append(places, l)
		}
	}
	for _, place := range places {
		for _, p := range private {
			if in, holds := place.relation(p.path, table); in || holds {
				return fmt.Sprintf("it overlaps a private directory of drawbridge, the %s %.300q", p.what, p.path)
			}
		}
		if _, holds := place.relation(socket, table); holds {
			return fmt.Sprintf("it holds the socket of the container engine, in %.300q", socket)
		}
	}
	return ""
}

// relation compares a place with a path, under every name that the path has: is the
// place in it, does it hold it. A path that is "" or not there has only its name.
func (l location) relation(path string, table []mounted) (in, holds bool) {
	for _, name := range spellings(path) {
		in, holds = in || paths.Within(l.path, name), holds || paths.Within(name, l.path)
		if other, err := locate(name, table); err == nil {
			in, holds = in || l.inside(other), holds || other.inside(l)
		}
	}
	return in, holds
}

// spellings gives a path as it is and as it really is; nothing for "".
func spellings(path string) []string {
	if path == "" {
		return nil
	}
	out := []string{filepath.Clean(path)}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != out[0] {
		out = append(out, real)
	}
	return out
}

// ownedBy refuses a workspace of another user than the container's: git and a
// process without capabilities could not work in it.
func (j *job) ownedBy() error {
	var st unix.Stat_t
	if err := unix.Stat(j.Workspace, &st); err != nil {
		return invalid("workspace", "%w", err)
	}
	if int(st.Uid) != j.uid {
		return fault.New(fault.WorkspaceOwner, "check the workspace: it belongs to uid %d, and the container would run as %d", st.Uid, j.uid).
			WithHint("chown the workspace, or run as its owner")
	}
	return nil
}

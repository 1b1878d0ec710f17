package execution

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"drawbridge/shared/fault"
)

// controllerRoot makes and checks the private directory of a run, and gives its
// real path (kit §6). apart are real paths that it may neither hold nor lie in;
// outside are those that it may not lie in.
func controllerRoot(path string, apart, outside []string) (string, error) {
	refuse := func(format string, args ...any) (string, error) {
		f := fault.New(fault.KitController, format, args...)
		f.Message = "use the controller root " + path + ": " + f.Message
		return "", f.WithHint("give a private directory of its own, apart from the workspace and the kit; nothing was run")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return refuse("%w", err)
	}
	root, missing, err := resolve(abs)
	if err != nil {
		return refuse("%w", err)
	}
	for _, dir := range apart {
		if within(root, dir) || within(dir, root) {
			return refuse("it overlaps %s", dir)
		}
	}
	for _, dir := range outside {
		if within(root, dir) {
			return refuse("it lies in %s", dir)
		}
	}
	if missing {
		if err := os.MkdirAll(root, 0o700); err != nil {
			return refuse("%w", err)
		}
	}
	info, err := os.Lstat(root)
	if err != nil {
		return refuse("%w", err)
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.IsDir():
		return refuse("it is no directory")
	case int(owner) != os.Geteuid():
		return refuse("it belongs to uid %d", owner)
	case info.Mode().Perm()&0o077 != 0:
		return refuse("others may enter it (mode %04o)", info.Mode().Perm())
	}
	return root, nil
}

// authFile checks where a credential lies and gives its path (kit §6). Its content
// is brokerd's.
func authFile(path string, outside []string) (string, error) {
	refuse := func(code fault.Code, format string, args ...any) (string, error) {
		f := fault.New(code, format, args...)
		f.Message = "use the auth file: " + f.Message
		return "", f.WithHint("it is a private file like Codex's own auth.json; nothing was run")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return refuse(fault.CredentialUnavailable, "%w", err)
	}
	info, err := os.Lstat(abs)
	if err != nil {
		return refuse(fault.CredentialUnavailable, "there is no such file")
	}
	owner := info.Sys().(*syscall.Stat_t).Uid
	switch {
	case !info.Mode().IsRegular():
		return refuse(fault.CredentialPermissions, "it is no regular file")
	case owner != 0 && int(owner) != os.Geteuid():
		return refuse(fault.CredentialPermissions, "it belongs to uid %d", owner)
	case info.Mode().Perm()&0o077 != 0:
		return refuse(fault.CredentialPermissions, "others may read it (mode %04o)", info.Mode().Perm())
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return refuse(fault.CredentialUnavailable, "%w", err)
	}
	for _, out := range outside {
		if within(dir, out) {
			return refuse(fault.CredentialPermissions, "it lies in %s, which the kit or its workers see", out)
		}
	}
	return filepath.Join(dir, filepath.Base(abs)), nil
}

// resolve gives the real path of what is there, and of what is not its real
// parents' with the rest behind.
func resolve(abs string) (real string, missing bool, err error) {
	rest := ""
	for at := abs; ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		switch {
		case err == nil:
			return filepath.Join(real, rest), rest != "", nil
		case !errors.Is(err, fs.ErrNotExist) || at == "/":
			return "", false, err
		}
		if _, err := os.Lstat(at); err == nil {
			return "", false, errors.New(at + " is a link that leads nowhere")
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// within reports whether path is dir or lies in it, by components.
func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

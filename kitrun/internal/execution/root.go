package execution

import (
	"os"
	"path/filepath"
	"syscall"

	"drawbridge/kitrun/internal/paths"
	"drawbridge/shared/fault"
	"drawbridge/shared/secretfile"
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
	root, missing, err := paths.Real(abs)
	if err != nil {
		return refuse("%w", err)
	}
	for _, dir := range apart {
		if paths.Within(root, dir) || paths.Within(dir, root) {
			return refuse("it overlaps %s", dir)
		}
	}
	for _, dir := range outside {
		if paths.Within(root, dir) {
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
	if _, err := secretfile.Look("auth file", abs); err != nil {
		return "", err
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return refuse(fault.CredentialUnavailable, "%w", err)
	}
	for _, out := range outside {
		if paths.Within(dir, out) {
			return refuse(fault.CredentialPermissions, "it lies in %s, which the kit or its workers see", out)
		}
	}
	return filepath.Join(dir, filepath.Base(abs)), nil
}

package profile

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
)

const shebangBytes = 256 // of the executable's first line that are looked at

// shells are the base names that a callback may not have, in lower case.
var shells = map[string]bool{
	"bash": true, "cmd": true, "cmd.exe": true, "csh": true, "dash": true, "env": true, "fish": true, "ksh": true,
	"powershell": true, "powershell.exe": true, "pwsh": true, "sh": true, "tcsh": true, "zsh": true,
}

var envShebang = regexp.MustCompile(`^#!\s*/usr/bin/env(?:\s|$)`)

// unsafeExecutable is the static rule of host-profile §5.1; "" when it holds.
func unsafeExecutable(name string) string {
	switch {
	case strings.ContainsFunc(name, isControl):
		return "must not contain control characters"
	case !strings.HasPrefix(name, "/"):
		return "must be an absolute path"
	case name == "/" || path.Clean(name) != name:
		return "must be a normalised path of a file"
	case strings.Contains(name, "${"):
		return "must not contain ${"
	case shells[strings.ToLower(path.Base(name))]:
		return "must not be a shell or env"
	}
	return ""
}

// Ready reports whether the callback executable can be run here: links
// resolved, no shell behind them, a regular file that this user may execute, and
// PATH allowed where its first line asks env for an interpreter. Nothing is run.
func (p Profile) Ready() error {
	why, cause := p.notReady()
	if why == "" {
		return nil
	}
	e := refuse(fault.CallbackExecutable, "callback.executable", "%s", why)
	e.Err = cause
	return e
}

func (p Profile) notReady() (why string, cause error) {
	if why := unsafeExecutable(p.doc.executable); why != "" {
		return why, nil
	}
	target, err := filepath.EvalSymlinks(p.doc.executable)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return "does not exist", err
		}
		return "cannot be resolved", err
	}
	if why := unsafeExecutable(target); why != "" {
		return "the program behind the link " + why, nil
	}
	info, err := os.Stat(target)
	if err != nil {
		return "cannot be inspected", err
	}
	if !info.Mode().IsRegular() {
		return "is not a regular file", nil
	}
	if err := unix.Faccessat(unix.AT_FDCWD, target, unix.X_OK, unix.AT_EACCESS); err != nil {
		return "is not executable by this user", err
	}
	if envShebang.Match(firstLine(target)) && !slices.Contains(p.doc.allow, "PATH") {
		return "its interpreter is found by /usr/bin/env, so PATH must be in callback.environment.allow", nil
	}
	return "", nil
}

// firstLine gives nothing for a file that may be executed but not read: such a
// file is no script, since its interpreter could not read it either.
func firstLine(name string) []byte {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	head := make([]byte, shebangBytes)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	head = head[:n]
	if i := bytes.IndexAny(head, "\r\n"); i >= 0 {
		head = head[:i]
	}
	return head
}

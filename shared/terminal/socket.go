package terminal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	defaultSocket = "default"
	maxSocketPath = 107 // sun_path less its NUL
)

// SocketProblem classifies why a configured socket gave no panes.
type SocketProblem string

// The problems.
const (
	SocketInvalid    SocketProblem = "invalid"    // not a usable name or path
	SocketMissing    SocketProblem = "missing"    // no such file: no server was started there
	SocketStale      SocketProblem = "stale"      // the file stands, its server is gone
	SocketForeign    SocketProblem = "foreign"    // not a socket, or another user's
	SocketUnreadable SocketProblem = "unreadable" // the server did not give a whole answer
)

// SocketError is a configured socket whose panes could not be listed.
type SocketError struct {
	Socket  string        `json:"socket"` // as configured
	Problem SocketProblem `json:"problem"`
	Reason  string        `json:"reason"` // one line
}

func (e SocketError) Error() string {
	return fmt.Sprintf("listing tmux socket %s: %s", e.Socket, e.Reason)
}

// resolve gives the canonical path of a configured socket. Only the path's
// owner and kind are judged, not whether a server answers.
func resolve(socket string) (string, *SocketError) {
	bad := func(p SocketProblem, format string, args ...any) (string, *SocketError) {
		return "", &SocketError{Socket: socket, Problem: p, Reason: fmt.Sprintf(format, args...)}
	}
	path := socket
	switch {
	case socket == "" || socket == "." || socket == ".." || strings.ContainsRune(socket, 0):
		return bad(SocketInvalid, "not a socket name")
	case filepath.IsAbs(socket):
	case strings.Contains(socket, "/"):
		return bad(SocketInvalid, "a path must be absolute")
	default:
		dir := "/tmp/tmux-" + strconv.Itoa(os.Getuid())
		// The directory's name is known to all; only its owner makes it ours.
		info, err := os.Lstat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return bad(SocketMissing, "no tmux server was started there")
		} else if err != nil {
			return bad(SocketUnreadable, "%v", errors.Unwrap(err))
		}
		if !info.IsDir() || !ours(info) || info.Mode().Perm()&0o007 != 0 {
			return bad(SocketForeign, "the tmux directory is not a private directory of this user")
		}
		path = filepath.Join(dir, socket)
	}
	canonical, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return bad(SocketMissing, "no tmux server was started there")
	} else if err != nil {
		return bad(SocketUnreadable, "%v", errors.Unwrap(err))
	}
	if len(canonical) > maxSocketPath {
		return bad(SocketInvalid, "the path is longer than %d bytes", maxSocketPath)
	}
	info, err := os.Stat(canonical)
	if err != nil {
		return bad(SocketUnreadable, "%v", errors.Unwrap(err))
	}
	if info.Mode().Type() != fs.ModeSocket {
		return bad(SocketForeign, "not a socket")
	}
	if !ours(info) {
		return bad(SocketForeign, "the socket belongs to another user")
	}
	return canonical, nil
}

func ours(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Geteuid()
}

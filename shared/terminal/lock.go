package terminal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

const (
	lockDir     = "terminals"
	maxRecord   = 4096 // bytes
	firstRetry  = 2 * time.Millisecond
	lastRetry   = 50 * time.Millisecond
	maxReopened = 100 // times that the lock file was replaced under us
)

// Record is what a lock file says about input that may be unresolved: which
// Store knows about it, and under which id. It outlives the process that wrote
// it, and is what keeps another Store from typing into the pane.
type Record struct {
	StoreID string `json:"store_id"`
	Kind    string `json:"kind"`   // dispatch, transition
	RefID   string `json:"ref_id"` // message id, transition id
	Status  string `json:"status"`
}

// Locked is one held terminal lock. The kernel frees it when the process ends,
// in whatever way, and not while it is only stopped; a child does not inherit
// it. Its methods are for one goroutine, but for Unlock.
type Locked struct {
	file *os.File
}

// Lock waits for the exclusive lock of the terminal with this terminal_key
// (Pane.Key), at most wait long. It is a flock on
// <runtimeDir>/terminals/<sha256 of key>.lock, so it excludes every program and
// Store of the user that uses the same runtime directory, and every other Lock
// in this process. terminal_busy means that the wait was in vain;
// runtime_dir_unsafe that the directory is not private. Missing directories are
// made, the file is never removed.
func Lock(ctx context.Context, runtimeDir, key string, wait time.Duration) (*Locked, error) {
	dir, err := openPrivate(runtimeDir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()

	sum := sha256.Sum256([]byte(key))
	name := hex.EncodeToString(sum[:]) + ".lock"
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	pause := firstRetry
	for reopened := 0; ; {
		file, err := openLock(dir, name)
		if err != nil {
			return nil, err
		}
		for {
			err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
			if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
				break
			}
			select {
			case <-ctx.Done():
				file.Close()
				return nil, fmt.Errorf("waiting for the terminal lock: %w", context.Cause(ctx))
			case <-deadline.C:
				file.Close()
				return nil, fault.New(fault.TerminalBusy, "waiting for the terminal lock: another call held it for %s", wait).
					WithHint("wait for that call to end and try again").Safe()
			case <-time.After(pause):
			}
			pause = min(2*pause, lastRetry)
		}
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("locking the terminal's file: %w", err)
		}
		// Someone may have removed the file while we waited for it: then others
		// lock a new one, and ours excludes nobody.
		if stillThere(dir, name, file) {
			return &Locked{file: file}, nil
		}
		file.Close()
		if reopened++; reopened > maxReopened {
			return nil, fault.New(fault.RuntimeDirUnsafe, "locking the terminal's file: it is being replaced all the time")
		}
	}
}

// Records reads the records of all terminals without taking a lock. They are a
// hint for a cleaner, who takes the lock and reads again; what is being written or
// is torn is left out. A directory that is not there yet holds none.
func Records(runtimeDir string) ([]Record, error) {
	names, err := filepath.Glob(filepath.Join(runtimeDir, lockDir, "*.lock"))
	if err != nil {
		return nil, fmt.Errorf("listing terminal locks: %w", err)
	}
	var all []Record
	for _, name := range names {
		file, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		rec, torn := (&Locked{file: file}).Record()
		file.Close()
		if !torn && rec != (Record{}) {
			all = append(all, rec)
		}
	}
	return all, nil
}

// Record reads the file. Empty gives the zero Record and false. torn is true
// where something stands there that is not one whole record: the writer died in
// the middle of Write, or the file cannot be read.
func (l *Locked) Record() (rec Record, torn bool) {
	data := make([]byte, maxRecord+1)
	n, err := l.file.ReadAt(data, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return Record{}, true
	}
	return parseRecord(data[:n])
}

// Write replaces the record and syncs it to the disk. The new one is written
// over the old one before the length is set, so that a death in the middle
// leaves the old record or a torn one, never an empty file.
func (l *Locked) Write(rec Record) error {
	if rec.StoreID == "" || rec.Kind == "" || rec.RefID == "" || rec.Status == "" {
		return fault.New(fault.Internal, "writing the terminal's lock record: a member is empty")
	}
	data, err := json.Marshal(rec)
	if err == nil && len(data) >= maxRecord {
		err = fmt.Errorf("%d bytes are too many", len(data))
	}
	if err != nil {
		return fmt.Errorf("writing the terminal's lock record: %w", err)
	}
	data = append(data, '\n')
	if _, err := l.file.WriteAt(data, 0); err != nil {
		return fmt.Errorf("writing the terminal's lock record: %w", err)
	}
	return l.truncate(int64(len(data)))
}

// Clear empties the file: no input of this terminal is unresolved.
func (l *Locked) Clear() error { return l.truncate(0) }

func (l *Locked) truncate(size int64) error {
	if err := l.file.Truncate(size); err != nil {
		return fmt.Errorf("writing the terminal's lock record: %w", err)
	}
	if err := l.file.Sync(); err != nil {
		return fmt.Errorf("writing the terminal's lock record: %w", err)
	}
	return nil
}

// Unlock frees the lock. Every later method fails; a second Unlock does nothing.
//
// It unlocks before it closes: a child that is being started at this moment has
// a copy of the descriptor until it executes, which would hold the lock.
func (l *Locked) Unlock() {
	if conn, err := l.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _ = unix.Flock(int(fd), unix.LOCK_UN) })
	}
	_ = l.file.Close()
}

// parseRecord reads the content of a lock file.
func parseRecord(data []byte) (rec Record, torn bool) {
	if len(data) == 0 {
		return Record{}, false
	}
	if len(data) > maxRecord || data[len(data)-1] != '\n' {
		return Record{}, true
	}
	err := strictjson.Decode(data, &rec, strictjson.Limits{MaxBytes: maxRecord, MaxDepth: 2})
	if err != nil || rec.StoreID == "" || rec.Kind == "" || rec.RefID == "" || rec.Status == "" {
		return Record{}, true
	}
	return rec, false
}

// openPrivate opens <runtimeDir>/terminals, making what is missing. Both
// directories must be this user's alone, or another user could put a file of
// their own in the lock's place.
func openPrivate(runtimeDir string) (*os.File, error) {
	if !filepath.IsAbs(runtimeDir) {
		return nil, fault.New(fault.RuntimeDirUnsafe, "opening the runtime directory: its path is not absolute")
	}
	if err := os.MkdirAll(runtimeDir, 0o700); err != nil {
		return nil, fault.New(fault.RuntimeDirUnsafe, "making the runtime directory: %w", err)
	}
	run, err := openDir(unix.AT_FDCWD, runtimeDir)
	if err != nil {
		return nil, err
	}
	defer run.Close()
	if err := unix.Mkdirat(int(run.Fd()), lockDir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fault.New(fault.RuntimeDirUnsafe, "making the directory of terminal locks: %w", err)
	}
	return openDir(int(run.Fd()), lockDir)
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fault.New(fault.RuntimeDirUnsafe, "opening the runtime directory: %w", err)
	}
	dir := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		dir.Close()
		return nil, fault.New(fault.RuntimeDirUnsafe, "opening the runtime directory: %w", err)
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		dir.Close()
		return nil, fault.New(fault.RuntimeDirUnsafe, "opening the runtime directory: it belongs to uid %d with mode %04o", st.Uid, st.Mode&0o7777).
			WithHint("it must be this user's with mode 0700")
	}
	return dir, nil
}

func openLock(dir *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fault.New(fault.RuntimeDirUnsafe, "opening the terminal's lock file: %w", err)
	}
	file := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid()) {
		err = errors.New("not a regular file of this user")
	}
	if err == nil && st.Mode&0o7777 != 0o600 {
		err = unix.Fchmod(fd, 0o600)
	}
	if err != nil {
		file.Close()
		return nil, fault.New(fault.RuntimeDirUnsafe, "opening the terminal's lock file: %w", err)
	}
	return file, nil
}

// stillThere reports whether name still is file, under no second name.
func stillThere(dir *os.File, name string, file *os.File) bool {
	var held, named unix.Stat_t
	if unix.Fstat(int(file.Fd()), &held) != nil {
		return false
	}
	if unix.Fstatat(int(dir.Fd()), name, &named, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return false
	}
	return held.Dev == named.Dev && held.Ino == named.Ino && held.Nlink == 1
}

package profile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
)

// Kinds of Source.
const (
	SourceBuiltIn = "built_in"
	SourceFile    = "file"
)

// A Source says where a Profile came from.
type Source struct {
	Kind      string // SourceBuiltIn or SourceFile
	Selection string // built-in id, or canonical path
}

// Load finds and parses the Profile that selection names: a built-in id first,
// else a path, resolved against the working directory and through links.
func Load(selection string, reg Registry) (Profile, Source, error) {
	if why := clean(selection, maxExecutable); why != "" {
		return Profile{}, Source{}, refuse(fault.ProfilePathInvalid, "", "the selection %s", why)
	}
	if p, ok := reg.Lookup(selection); ok {
		return p, Source{SourceBuiltIn, selection}, nil
	}
	name, err := canonicalPath(selection)
	if err != nil {
		return Profile{}, Source{}, err
	}
	data, err := readFile(name, nil)
	if err != nil {
		return Profile{}, Source{}, err
	}
	p, err := parse(data, reg, false)
	if err != nil {
		return Profile{}, Source{}, err
	}
	return p, Source{SourceFile, name}, nil
}

func canonicalPath(selection string) (string, error) {
	abs, err := filepath.Abs(selection)
	if err == nil {
		abs, err = filepath.EvalSymlinks(abs)
	}
	if err != nil {
		return "", &ProfileError{Class: fault.ProfilePathInvalid, Detail: "resolve " + selection + ": " + reason(err), Err: err}
	}
	if !strings.EqualFold(filepath.Ext(abs), ".json") {
		return "", refuse(fault.ProfilePathInvalid, "", "%s does not end in .json", abs)
	}
	return abs, nil
}

// readFile reads the canonical path name. Size and kind are judged on the open
// descriptor; afterStat is for tests of a file that changes in between.
func readFile(name string, afterStat func()) ([]byte, error) {
	// O_NONBLOCK: opening a FIFO must not wait for its writer.
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, unreadable(name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, unreadable(name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, refuse(fault.ProfilePathInvalid, "", "%s is not a regular file", name)
	}
	if info.Size() > MaxFile {
		return nil, refuse(fault.ProfileTooLarge, "", "%s has more than %d bytes", name, MaxFile)
	}
	if afterStat != nil {
		afterStat()
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, unreadable(name, err)
	}
	if len(data) > MaxFile {
		return nil, refuse(fault.ProfileTooLarge, "", "%s has more than %d bytes", name, MaxFile)
	}
	if int64(len(data)) != info.Size() {
		return nil, refuse(fault.ProfileUnreadable, "", "%s changed while it was read", name)
	}
	return data, nil
}

func unreadable(name string, err error) error {
	return &ProfileError{Class: fault.ProfileUnreadable, Detail: "read " + name + ": " + reason(err), Err: err}
}

// reason cuts the operation and path that os puts before a cause.
func reason(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

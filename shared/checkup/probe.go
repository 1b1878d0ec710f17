package checkup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"drawbridge/shared/store"
)

// Store looks at the Store in dir for a program, without writing. A directory that
// does not exist yet, or is empty, is ok: the first program that needs it makes it.
func Store(program, dir string) Probe {
	return func(ctx context.Context) ([]Fact, error) {
		entries, err := os.ReadDir(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			facts := []Fact{{"state", "absent"}}
			if !Makeable(dir) {
				return facts, errors.New("the Store directory does not exist and cannot be made")
			}
			return facts, nil
		case err != nil:
			return nil, errors.New("the Store directory cannot be read")
		case len(entries) == 0:
			return []Fact{{"state", "empty"}}, nil
		}
		s, err := store.Open(ctx, store.Options{Dir: dir, Program: program, ReadOnly: true})
		if err != nil {
			return nil, err
		}
		defer s.Close()
		info, err := s.Info(ctx)
		if err != nil {
			return nil, err
		}
		facts := []Fact{
			{"state", "present"}, {"format_version", info.FormatVersion}, {"writer_protocol", info.WriterProtocol},
			{"schema", info.UserVersion}, {"wal_bytes", info.WALBytes},
		}
		switch {
		case info.WriterProtocol > store.WriterProtocol || info.UserVersion > store.SchemaVersion:
			return facts, errors.New("the Store is of a newer release: it can be read, not written")
		case info.WALBytes > store.WALComplaint:
			return facts, fmt.Errorf("the write-ahead log has %d MiB: a program keeps a reader open", info.WALBytes>>20)
		}
		return facts, nil
	}
}

// Holders lists those of the programs that hold a live lease in the Store of dir.
// Without a Store it is none; why a Store cannot be read is for Store to say.
func Holders(ctx context.Context, program, dir string, names ...string) []string {
	out := []string{}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		return out
	}
	s, err := store.Open(ctx, store.Options{Dir: dir, Program: program, ReadOnly: true})
	if err != nil {
		return out
	}
	defer s.Close()
	for _, name := range names {
		rows, err := s.Leases(ctx, name+"/")
		if err != nil {
			continue
		}
		for _, r := range rows {
			if r.Live {
				out = append(out, name)
				break
			}
		}
	}
	return out
}

// Executable reports whether path is a regular file that this user may run.
func Executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && unix.Access(path, unix.X_OK) == nil
}

// Makeable reports whether a directory that is not there could be made: whether the
// nearest one above it may be written.
func Makeable(dir string) bool {
	at := Nearest(filepath.Dir(dir))
	info, err := os.Stat(at)
	return err == nil && info.IsDir() && unix.Faccessat(unix.AT_FDCWD, at, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}

// Nearest is path, or what is there of it above.
func Nearest(path string) string {
	for at := path; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			return at
		}
	}
}

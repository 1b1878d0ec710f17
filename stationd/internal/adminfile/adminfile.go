// Package adminfile reads files that only an administrator may change: egress
// profiles, station profiles, providers (station §15). Whoever else could write
// one could widen what every station may do, so such a file is not read at all.
//
// The checks are on the open file, not on its name.
package adminfile

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// Read gives the content of a regular file that belongs to root or to the user of
// this process, that neither group nor others may write, and that has at most most
// bytes.
func Read(path string, most int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a FIFO does not hold it up
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", path)
	case owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%s belongs to uid %d, not to root or to who runs this", path, owner.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("group or others may write %s; chmod go-w it", path)
	}
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return data, err
}

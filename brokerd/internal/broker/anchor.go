package broker

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

// maxAnchor bounds the ledger file.
const maxAnchor = 4096

// anchor is the ledger file of a registered run's budget: it counts nothing, it
// makes the loss or the exchange of the Store visible (broker §10).
type anchor struct {
	path string
	want []byte // its whole content
}

// anchorOf gives the anchor that belongs to a budget of this Store.
func anchorOf(storeID string, b store.Budget) (anchor, error) {
	var effort any
	if b.ReasoningEffort != "" {
		effort = b.ReasoningEffort
	}
	binding, err := strictjson.Object{
		{Name: "version", Value: 1},
		{Name: "request_binding_digest", Value: b.RequestBindingDigest},
		{Name: "model", Value: b.Model},
		{Name: "reasoning_effort", Value: effort},
		{Name: "upstream_origin", Value: b.UpstreamOrigin},
		{Name: "max_requests", Value: b.MaxRequests},
	}.JSON()
	if err != nil {
		return anchor{}, err
	}
	digest := sha256.Sum256(binding)
	content, err := strictjson.Object{
		{Name: "version", Value: 1},
		{Name: "binding_digest", Value: hex.EncodeToString(digest[:])},
		{Name: "store_id", Value: storeID},
		{Name: "budget_id", Value: b.ID},
	}.JSON()
	return anchor{b.AnchorPath, append(content, '\n')}, err
}

// exists reports whether anything stands at the path.
func (a anchor) exists() bool {
	var st unix.Stat_t
	return !errors.Is(unix.Lstat(a.path, &st), unix.ENOENT)
}

// possible reports why the file could not be made, without making it.
func (a anchor) possible() error {
	dir, err := a.directory()
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Faccessat(int(dir.Fd()), ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return a.broken("it cannot be made: %s", errnoText(err))
	}
	return nil
}

// write makes the file, which must not exist, durable together with its name.
func (a anchor) write() error {
	dir, err := a.directory()
	if err != nil {
		return err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(a.path), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return a.broken("it cannot be made: %s", errnoText(err))
	}
	f := os.NewFile(uintptr(fd), "anchor")
	_, err = f.Write(a.want)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return a.broken("it cannot be written")
	}
	if err := dir.Sync(); err != nil {
		return a.broken("its directory cannot be written")
	}
	crashpoint.At("anchor_written")
	return nil
}

// check compares the file with what it must be; nil is the only good answer.
func (a anchor) check() error {
	dir, err := a.directory()
	if err != nil {
		return err
	}
	defer dir.Close()
	fd, err := unix.Openat(int(dir.Fd()), filepath.Base(a.path), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return a.broken("it cannot be opened: %s", errnoText(err))
	}
	f := os.NewFile(uintptr(fd), "anchor")
	defer f.Close()
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG:
		return a.broken("it is no regular file")
	case int(st.Uid) != os.Geteuid() || st.Mode&0o777 != 0o600:
		return a.broken("it is not private to this user")
	}
	got, err := io.ReadAll(io.LimitReader(f, maxAnchor))
	if err != nil || !bytes.Equal(got, a.want) {
		return a.broken("its content is not that of this budget in this Store")
	}
	return nil
}

// directory opens the private directory that holds the file.
func (a anchor) directory() (*os.File, error) {
	fd, err := unix.Open(filepath.Dir(a.path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, a.broken("its directory cannot be opened: %s", errnoText(err))
	}
	dir := os.NewFile(uintptr(fd), "directory")
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o777 != 0o700 {
		dir.Close()
		return nil, a.broken("its directory is not private to this user")
	}
	return dir, nil
}

func (a anchor) broken(format string, args ...any) error {
	return fault.New(fault.BudgetIntegrity, "check the ledger file of the budget: "+format, args...).
		WithHint("nothing is forwarded on this budget; find out who changed the file before you start a new run")
}

// Package paths answers what several packages ask of two paths: does one lie in the
// other, and where does one really lead that may not be there yet.
package paths

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Within reports whether path is dir or lies below it. Both are clean and absolute;
// links are the caller's business.
func Within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Real gives the real path of what is there; of what is not, the real path of its
// nearest parent with the rest behind. A link that leads nowhere is an error: where
// it would lead is not known.
func Real(path string) (real string, missing bool, err error) {
	rest := ""
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		real, err := filepath.EvalSymlinks(at)
		switch {
		case err == nil:
			return filepath.Join(real, rest), rest != "", nil
		case !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at):
			return "", false, fmt.Errorf("resolve %s: %w", at, bare(err))
		}
		if _, err := os.Lstat(at); err == nil {
			return "", false, errors.New(at + " is a link that leads nowhere")
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// bare takes the path out of an error that has one.
func bare(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

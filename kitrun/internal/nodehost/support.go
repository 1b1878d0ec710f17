package nodehost

import (
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed support/*.mjs
var support embed.FS

// WriteSupport makes the directory dir, mode 0700, with the files that run before
// a kit, mode 0400. Remove it with os.RemoveAll.
func WriteSupport(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("write the support files of kits: %w", err)
	}
	names, err := fs.Glob(support, "support/*.mjs")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for _, name := range names {
		data, err := support.ReadFile(name)
		if err != nil {
			panic(err) // embedded
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o400); err != nil {
			return fmt.Errorf("write the support files of kits: %w", err)
		}
	}
	return nil
}

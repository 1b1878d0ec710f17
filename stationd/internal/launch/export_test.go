package launch

import "os"

// CopyFile copies one file of a directory that was a regular file when it was looked
// at; it fails before it writes anything when there is none.
func CopyFile(dir, name string) error {
	from, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer from.Close()
	return (&copier{}).open(from, name)
}

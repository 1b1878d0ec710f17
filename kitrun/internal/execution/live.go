package execution

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"drawbridge/shared/store"
)

// UpdateWait is how long an update of a kit waits for its runs to end (kit §13).
const UpdateWait = 30 * time.Second

// storeFile is what a directory of a Store holds.
const storeFile = "store.db"

// Live gives a function that reports whether a run of a kit in a destination is
// under way on the Store in dir. A Store that is not there has no runs, and is not
// made.
func Live(dir string) func(ctx context.Context, dest, id string) (bool, error) {
	return func(ctx context.Context, dest, id string) (bool, error) {
		if _, err := os.Stat(filepath.Join(dir, storeFile)); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		db, err := store.Open(ctx, store.Options{Dir: dir, Program: "kitrun", ReadOnly: true})
		if err != nil {
			return false, err
		}
		defer db.Close()
		rows, err := db.OpenKitRuns(ctx)
		for _, row := range rows {
			if !row.Orphan && row.KitID == id && samePlace(row.Dest, dest) {
				return true, err
			}
		}
		return false, err
	}
}

// samePlace reports whether two paths name one directory.
func samePlace(a, b string) bool {
	if a == b {
		return true
	}
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

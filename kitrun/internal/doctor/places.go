package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
)

// leastRoom is what the Store and a receipt need at the least, in bytes.
const leastRoom = 64 << 20

// directoriesProbe looks whether the private directories are private.
func (d *doctor) directoriesProbe(context.Context) ([]checkup.Fact, error) {
	var facts []checkup.Fact
	var errs error
	for _, dir := range []struct{ name, path string }{{"store", d.store}, {"runtime", d.runtime}} {
		state := "private"
		err := service.CheckPrivateDir(dir.path)
		if errors.Is(err, fs.ErrNotExist) {
			state, err = "absent", nil
			if !checkup.Makeable(dir.path) {
				err = fault.New(fault.RuntimeDirUnsafe, "use directory %s: it does not exist and cannot be made", dir.path)
			}
		}
		if err != nil {
			state = "unsafe"
		}
		facts = append(facts, checkup.Facts(dir.name, state)...)
		errs = errors.Join(errs, err)
	}
	return facts, errs
}

// leftoversProbe counts what runs left that were killed.
func (d *doctor) leftoversProbe(ctx context.Context) ([]checkup.Fact, error) {
	if entries, err := os.ReadDir(d.store); err != nil || len(entries) == 0 {
		return checkup.Facts("workers", 0, "kit_runs", 0), nil
	}
	db, err := store.OpenExisting(ctx, store.Options{Dir: d.store, Program: "kitrun", ReadOnly: true})
	if err != nil {
		return nil, checkup.Warn(errors.New("not known without the Store"))
	}
	defer db.Close()
	workers, err := d.orphans(ctx, db)
	if err != nil {
		return nil, err
	}
	runs, err := db.OpenKitRuns(ctx)
	if err != nil {
		return nil, err
	}
	lost := 0
	for _, r := range runs {
		if r.Orphan {
			lost++
		}
	}
	facts := checkup.Facts("workers", workers, "kit_runs", lost)
	if workers+lost > 0 {
		return facts, checkup.Warn(fault.New(fault.RemovalUnverified, "runs that were killed left something: %d workers, %d runs of kits", workers, lost).
			WithHint("kitrun worker sweep removes the workers; the next kitrun run settles the runs of kits"))
	}
	return facts, nil
}

// orphans counts the workers that nobody looks after; without an engine, those that
// the Store knows.
func (d *doctor) orphans(ctx context.Context, db *store.Store) (n int, err error) {
	if d.engine == nil {
		rows, err := db.OpenWorkers(ctx)
		for _, r := range rows {
			if r.Orphan {
				n++
			}
		}
		return n, err
	}
	all, err := worker.List(ctx, worker.Deps{Engine: d.engine, Store: db}, "")
	for _, w := range all {
		if w.Orphan {
			n++
		}
	}
	return n, err
}

// diskProbe looks at the room where a run writes.
func (d *doctor) diskProbe(context.Context) ([]checkup.Fact, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var facts []checkup.Fact
	least := int64(-1)
	for _, dir := range []struct{ name, path string }{
		{"store", d.store}, {"runtime", d.runtime}, {"temporary", os.TempDir()}, {"working", here},
	} {
		var st unix.Statfs_t
		if err := unix.Statfs(checkup.Nearest(dir.path), &st); err != nil {
			return facts, fault.New(fault.StorageInspector, "look at the room of the %s directory: %w", dir.name, err)
		}
		free := int64(st.Bavail) * st.Bsize
		facts = append(facts, checkup.Facts(dir.name+"_free_bytes", free)...)
		if least < 0 || free < least {
			least = free
		}
	}
	floor := storage.DefaultBudget().MinFreeBytes
	full := fault.New(fault.StorageRefused, "a file system has %d MiB left", least>>20)
	switch {
	case least < leastRoom:
		return facts, full.WithHint("free the disk: neither the Store nor a receipt can be relied upon")
	case least < floor:
		return facts, checkup.Warn(full.WithHint("a worker is refused where its budget leaves less than min_free_bytes, %d MiB unless you say otherwise", floor>>20))
	}
	return facts, nil
}

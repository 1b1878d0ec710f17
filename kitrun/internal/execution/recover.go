package execution

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
)

const (
	// reasonLost is why grants of a lost run are closed.
	reasonLost = "run_lost"
	// killTries and killPoll bound the end of what is left of a process group.
	killTries = 200
	killPoll  = 10 * time.Millisecond
)

// Recover ends what killed kitruns left on this Store: the process group of a run,
// its containers, its grants. Rows whose holder may live are left alone.
func (h *Host) Recover(ctx context.Context) error { return h.withDefaults().recover(ctx) }

func (h *Host) recover(ctx context.Context) error {
	rows, err := h.Store.OpenKitRuns(ctx)
	if err != nil {
		return err
	}
	var errs error
	for _, row := range rows {
		if row.Orphan {
			errs = errors.Join(errs, h.lose(ctx, row))
		}
	}
	return errs
}

// lose settles one run whose kitrun is dead.
func (h *Host) lose(ctx context.Context, row store.KitRun) error {
	if err := endGroup(row); err != nil {
		return fmt.Errorf("end the process of run %s: %w", row.InvocationID, err)
	}
	grants, err := h.Store.GrantsOfRun(ctx, row.InvocationID)
	if err != nil {
		return err
	}
	for _, g := range grants {
		if g.Open() {
			if _, err := h.Store.RequestClose(ctx, g.ID, reasonLost); err != nil {
				return err
			}
		}
	}
	removed, err := h.removeWorkers(ctx, row)
	if err != nil {
		return err
	}
	_ = os.RemoveAll(filepath.Join(h.RuntimeDir, supportName, row.InvocationID)) // a few files of ours, of which nobody knows any more
	_, err = h.Store.EndKitRun(ctx, row.InvocationID, row.Holder, store.KitRunEnd{State: store.KitRunLost, ExitCode: 1, Removed: int64(removed)})
	if err == nil {
		h.Log.Warn("cleaned up after a run whose kitrun was killed", "run", row.InvocationID, "kit", row.KitID, "containers", removed)
	}
	return err
}

// removeWorkers removes the containers of a run's owner. Without an engine the row
// stays open for a kitrun that has one, unless no worker was begun.
func (h *Host) removeWorkers(ctx context.Context, row store.KitRun) (removed int, err error) {
	engine, err := worker.NewDocker(h.DockerHost)
	if err != nil {
		return 0, err
	}
	defer engine.Close()
	look, done := context.WithTimeout(ctx, lookWithin)
	found, err := engine.List(look, worker.LabelOwner+"="+row.OwnerID)
	done()
	if err != nil {
		begun, known := h.workersBegun(ctx, row.OwnerID)
		if known == nil && !begun {
			return 0, nil
		}
		return 0, fmt.Errorf("look for workers of run %s: %w", row.InvocationID, errors.Join(err, known))
	}
	if len(found) == 0 {
		return 0, nil
	}
	_, err = worker.Cancel(ctx, worker.Deps{Engine: engine}, worker.Selector{Owner: row.OwnerID})
	return len(found), err
}

// workersBegun reports whether the Store knows of workers of an owner that are not
// proven gone.
func (h *Host) workersBegun(ctx context.Context, owner string) (bool, error) {
	rows, err := h.Store.OpenWorkers(ctx)
	for _, w := range rows {
		if w.OwnerID == owner {
			return true, err
		}
	}
	return false, err
}

// endGroup kills the process of a run with its group. Of a group whose leader is
// gone those are killed that carry the run's mark: its number is not given out
// again while one of them lives.
func endGroup(row store.KitRun) error {
	if row.PID <= 1 {
		return nil
	}
	leader, err := process.ParseIncarnation(fmt.Sprintf("%d/%s", row.PID, row.PIDBirth))
	if err != nil {
		return err
	}
	if err := process.EndGroup(leader, 0); err != nil {
		return err
	}
	if leader.BootID != process.BootID() {
		return nil
	}
	for range killTries {
		left, err := marked(row.PID, row.InvocationID)
		if err != nil || len(left) == 0 {
			return err
		}
		for _, inc := range left {
			if err := process.Signal(inc, unix.SIGKILL); err != nil && !errors.Is(err, process.ErrGone) {
				return err
			}
		}
		time.Sleep(killPoll)
	}
	return errors.New("what it started does not end")
}

// marked finds the living members of a process group that carry the mark of a run.
func marked(group int, invocation string) (out []process.Incarnation, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		inc, err := process.Of(pid)
		if err != nil {
			continue // it has ended
		}
		info, err := process.Stat(pid)
		if err != nil || info.PGRP != group || info.Dead() {
			continue
		}
		if env, err := process.Environ(pid); err == nil && env[markVariable] == invocation {
			out = append(out, inc)
		}
	}
	return out, nil
}

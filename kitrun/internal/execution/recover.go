package execution

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
)

// reasonLost is why grants of a lost run are closed.
const reasonLost = "run_lost"

// Recover ends what killed kitruns left on this Store: the process group of a run
// if its leader is still the recorded one, its containers, its grants. Rows whose
// holder may live are left alone.
func (h *Host) Recover(ctx context.Context) error {
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
	if row.PID > 0 {
		inc, err := process.ParseIncarnation(fmt.Sprintf("%d/%s", row.PID, row.PIDBirth))
		if err == nil {
			err = process.EndGroup(inc, 0)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end the process of run %s: %w", row.InvocationID, err)
		}
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
	removed := 0
	engine, err := worker.NewDocker(h.DockerHost)
	if err != nil {
		return err
	}
	defer engine.Close()
	// Without an engine the row stays open, for a run that has one.
	found, err := engine.List(ctx, worker.LabelOwner+"="+row.OwnerID)
	if err != nil {
		return fmt.Errorf("look for workers of run %s: %w", row.InvocationID, err)
	}
	if removed = len(found); removed > 0 {
		if err := worker.Cancel(ctx, worker.Deps{Engine: engine}, worker.Selector{Owner: row.OwnerID}); err != nil {
			return err
		}
	}
	_, err = h.Store.EndKitRun(ctx, row.InvocationID, row.Holder, store.KitRunEnd{State: store.KitRunLost, ExitCode: 1, Removed: int64(removed)})
	if err == nil {
		h.Log.Warn("cleaned up after a run whose kitrun was killed", "run", row.InvocationID, "kit", row.KitID, "containers", removed)
	}
	return err
}

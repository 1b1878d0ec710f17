package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Bounds of a removal (worker §9).
const (
	removeWait  = 15 * time.Second
	removeTries = 3
	removePause = 500 * time.Millisecond // before the next try
	removePoll  = 50 * time.Millisecond
)

// Selector names workers by exactly one of its members.
type Selector struct {
	Run   string
	Owner string
}

// Listed is one worker: its row in the Store and its container, either of which
// may be missing.
type Listed struct {
	InvocationID  string    `json:"invocation_id"`
	RunID         string    `json:"run_id"`
	OwnerID       string    `json:"owner_id,omitempty"`
	State         string    `json:"state"`     // of the row: admitted, created, running, removed, unverified; "" without one
	Container     string    `json:"container"` // full id, "" without one
	Status        string    `json:"status"`    // of the container: created, running, exited, …
	Orphan        bool      `json:"orphan"`    // nobody looks after it; a sweep removes it
	Image         string    `json:"image,omitempty"`
	CreatedAt     time.Time `json:"created_at"`
	DeadlineAt    time.Time `json:"deadline_at,omitzero"`
	ReceiptDigest string    `json:"receipt_digest,omitempty"`
}

// Swept is what a sweep did.
type Swept struct {
	Containers int `json:"containers"` // removed
	Rows       int `json:"rows"`       // settled as removed
	Unverified int `json:"unverified"` // could not be proven gone
}

// removeVerified kills and removes a container and proves that it is gone. It has a
// time of its own, so that nobody's haste leaves a container behind.
func removeVerified(e Engine, id string) error {
	ctx, stop := context.WithTimeout(context.Background(), removeWait)
	defer stop()
	var refused, look error
	for range removeTries {
		refused = e.Remove(ctx, id)
		patience := removeWait / removeTries // it may be under way
		if refused != nil {
			patience = removePause
		}
		for end := time.Now().Add(patience); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(removePoll) {
			if _, look = e.Inspect(ctx, id); errors.Is(look, errNoContainer) {
				return nil
			}
		}
	}
	if refused == nil && look == nil {
		return errors.New("it is still there")
	}
	return errors.Join(refused, look)
}

// unverified is the error of a container that could not be proven gone.
func unverified(what string, err error) error {
	return fault.New(fault.RemovalUnverified, "worker container termination unverified: %s: %w", what, err).
		WithHint("run `kitrun worker sweep` once the container engine answers")
}

// Cancel kills and removes every container that carries the label of a run or of
// an owner, whatever its state, whoever made it, and whatever its name, and says
// how many there were. It is an error when one is left; none to begin with is not.
func Cancel(ctx context.Context, d Deps, s Selector) (cancelled int, err error) {
	label, err := s.label()
	if err != nil {
		return 0, err
	}
	found, err := d.Engine.List(ctx, label)
	if err != nil {
		return 0, unavailable("list the workers", err)
	}
	var failed []error
	for _, f := range found {
		if err := removeVerified(d.Engine, f.ID); err != nil {
			failed = append(failed, unverified(f.ID, err))
		}
	}
	left, err := d.Engine.List(ctx, label)
	if err != nil {
		return 0, errors.Join(unverified("the list after the removal", err), errors.Join(failed...))
	}
	if len(left) > 0 {
		return 0, errors.Join(unverified(fmt.Sprintf("%d of the workers are left", len(left)), errors.New("listed again")), errors.Join(failed...))
	}
	return len(found), nil
}

// label gives the one label that a selector names.
func (s Selector) label() (string, error) {
	wrong := func(text string) (string, error) {
		return "", fault.New(fault.Usage, "cancel workers: %s", text).WithHint("nothing was cancelled; give --run RUN or --owner UUID")
	}
	switch {
	case (s.Run == "") == (s.Owner == ""):
		return wrong("give exactly one of run and owner")
	case s.Run != "" && !runForm.MatchString(s.Run):
		return wrong("that is no run id")
	case s.Run != "":
		return labelRun + "=" + s.Run, nil
	case !ownerForm.MatchString(s.Owner):
		return wrong("that is no owner id")
	}
	return LabelOwner + "=" + s.Owner, nil
}

// Sweep removes what no living kitrun of this Store looks after: containers whose
// row is settled, is missing, or belongs to a process that is proven dead, and the
// rows of such processes. Containers of other Stores are not touched, and no
// receipt is invented.
func Sweep(ctx context.Context, d Deps) (Swept, error) {
	var done Swept
	mine := labelStore + "=" + d.Store.ID()
	rows, err := d.Store.OpenWorkers(ctx)
	if err != nil {
		return done, err
	}
	found, err := d.Engine.List(ctx, mine)
	if err != nil {
		return done, unavailable("list the workers", err)
	}
	left := map[string]error{} // invocations with a container that stays
	for _, f := range found {
		invocation := f.Labels[labelInvocation]
		live, err := d.lives(ctx, invocation)
		if err != nil {
			return done, err
		}
		if live {
			continue
		}
		if err := removeVerified(d.Engine, f.ID); err != nil {
			left[invocation] = unverified(f.ID, err)
			done.Unverified++
			continue
		}
		done.Containers++
	}
	for _, row := range rows {
		if !row.Orphan {
			continue
		}
		state := store.WorkerRemoved
		if left[row.InvocationID] != nil {
			if state = store.WorkerUnverified; row.State == state {
				continue
			}
		}
		ok, err := d.Store.WorkerEnded(ctx, row, state, "")
		if err != nil {
			return done, err
		}
		if ok && state == store.WorkerRemoved {
			done.Rows++
		}
	}
	var failed []error
	for _, name := range sortedKeys(left) {
		failed = append(failed, left[name])
	}
	return done, errors.Join(failed...)
}

// lives reports whether somebody looks after an invocation at this moment. It
// reads anew: the row of a container is always older than the container.
func (d Deps) lives(ctx context.Context, invocation string) (bool, error) {
	rows, err := d.Store.OpenWorkers(ctx)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(rows, func(r store.WorkerRun) bool { return r.InvocationID == invocation && !r.Orphan }), nil
}

// List gives the workers of this Store that are not removed and the containers
// that carry its label; with a run, all rows that the run has, and nothing else.
func List(ctx context.Context, d Deps, run string) ([]Listed, error) {
	if run != "" && !runForm.MatchString(run) {
		return nil, fault.New(fault.Usage, "list workers: that is no run id")
	}
	rows, err := d.Store.OpenWorkers(ctx)
	if err != nil {
		return nil, err
	}
	orphans := map[string]bool{}
	for _, r := range rows {
		orphans[r.InvocationID] = r.Orphan
	}
	if run != "" {
		if rows, err = d.Store.WorkersOfRun(ctx, run); err != nil {
			return nil, err
		}
	}
	found, err := d.Engine.List(ctx, labelStore+"="+d.Store.ID())
	if err != nil {
		return nil, unavailable("list the workers", err)
	}
	out := make([]Listed, 0, len(rows))
	at := map[string]int{}
	for _, r := range rows {
		at[r.InvocationID] = len(out)
		out = append(out, Listed{InvocationID: r.InvocationID, RunID: r.RunID, OwnerID: r.OwnerID, State: r.State, Orphan: orphans[r.InvocationID],
			Image: r.Image, CreatedAt: time.UnixMilli(r.CreatedAt), DeadlineAt: time.UnixMilli(r.DeadlineAt), ReceiptDigest: r.ReceiptDigest})
	}
	for _, f := range found {
		invocation := f.Labels[labelInvocation]
		if i, ok := at[invocation]; ok {
			out[i].Container, out[i].Status = f.ID, f.Status
			continue
		}
		if run != "" && f.Labels[labelRun] != run {
			continue
		}
		out = append(out, Listed{InvocationID: invocation, RunID: f.Labels[labelRun], OwnerID: f.Labels[LabelOwner], Container: f.ID,
			Status: f.Status, Orphan: true, CreatedAt: f.Created})
	}
	slices.SortStableFunc(out, func(a, b Listed) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return out, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, strings.Compare)
	return keys
}

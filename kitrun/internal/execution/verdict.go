package execution

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// lookWithin bounds the search for workers: an engine that does not answer must not
// keep a run that used none.
const lookWithin = 10 * time.Second

// verdicts are what was found after the process had ended.
type verdicts struct {
	cause   error // why the run was cancelled; nil: it was not
	left    error // a container that could not be proven gone
	removed int   // containers that were found
	drift   error // the copy or the request is another one now
}

// cleanUp removes the containers of the run's owner and proves that none is left
// (kit §11). Without an engine there is nothing to remove, unless workers were
// asked for.
func (r *run) cleanUp(ctx context.Context, used bool) (removed int, err error) {
	unproven := func(err error) error {
		if !used && !r.request.wantsEngine {
			r.Log.Debug("no container engine to look for workers at", "err", err)
			return nil
		}
		return fault.New(fault.KitUnverified, "owned worker termination unverified: %w", err).
			WithHint("when the container engine answers: kitrun worker cancel --owner %s", r.owner)
	}
	engine, err := r.engine()
	if err != nil {
		return 0, unproven(err)
	}
	look, done := context.WithTimeout(ctx, lookWithin)
	found, err := engine.List(look, worker.LabelOwner+"="+r.owner)
	done()
	if err != nil {
		return 0, unproven(err)
	}
	if _, err := worker.Cancel(ctx, worker.Deps{Engine: engine}, worker.Selector{Owner: r.owner}); err != nil {
		used = true
		return len(found), unproven(err)
	}
	return len(found), nil
}

// drift compares the copy and the request with what was verified.
func (r *run) drift(ctx context.Context) error {
	v, err := kit.Verify(ctx, r.KitID, r.dest)
	if err != nil || v.Hash != r.verified.Hash {
		return fault.New(fault.KitRunDrifted, "kit '%s' was changed while it ran", r.KitID).
			WithHint("its result is not believed; kitrun status %s --dest %s shows what it is now", r.KitID, r.dest)
	}
	if r.request.changed() {
		r.Log.Warn("the request file was changed during the run", "request", r.request.digest)
	}
	return nil
}

// judge says what a run amounts to; what is worse comes first (kit §11).
func (r *run) judge(out nodehost.Outcome, v verdicts) (Outcome, error) {
	o := Outcome{InvocationID: r.invocation, Stderr: out.Stderr}
	switch {
	case v.left != nil:
		return o, v.left
	case errors.Is(v.cause, errDeadline) && out.Cancelled:
		return o, fault.New(fault.KitDeadline, "the run's deadline exceeded: kit '%s' had %v", r.KitID, r.request.timeout.Round(time.Millisecond))
	case out.Cancelled:
		return o, fault.New(fault.KitCancelled, "the run of kit '%s' was cancelled", r.KitID)
	case out.Err != nil:
		return o, out.Err
	case v.removed > 0 || unfinished(out) > 0:
		return o, fault.New(fault.KitWorkersLeft, "kit left owned workers running: %d containers removed, %d calls cancelled", v.removed, unfinished(out)).
			WithHint("the entry must wait for what it began; its result is not believed")
	case v.drift != nil:
		return o, v.drift
	case out.Thrown != nil:
		return o, &fault.Error{Code: fault.KitThrew, Message: *out.Thrown}
	}
	var result struct {
		Status any `json:"status"`
	}
	_ = json.Unmarshal(out.Result, &result) // a result of another form has no status
	o.Result = out.Result
	if result.Status != nil {
		o.Status = fault.CleanLine(fmt.Sprint(result.Status))
	}
	if _, text := result.Status.(string); !text {
		o.Status = ""
	}
	return o, nil
}

// unfinished counts the calls that were open at the end and stand for something
// that runs.
func unfinished(out nodehost.Outcome) (n int) {
	for _, method := range out.Unfinished {
		if method == callWorker || method == callNested {
			n++
		}
	}
	return n
}

// settle writes how the run ended.
func (r *run) settle(ctx context.Context, o Outcome, err error, removed int) {
	exit := int64(1)
	if err == nil && o.Succeeded() {
		exit = 0
	}
	end := store.KitRunEnd{State: store.KitRunFinished, Status: o.Status, ExitCode: exit, ErrorCode: string(fault.CodeOf(err)), Removed: int64(removed)}
	if _, err := r.Store.EndKitRun(ctx, r.invocation, r.Store.Holder(), end); err != nil {
		r.Log.Error("the end of the run is not recorded; the next run on the Store does it", "err", err)
	}
}

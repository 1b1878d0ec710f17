package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"drawbridge/shared/fault"
)

// invalid refuses one option by its name.
func invalid(option, format string, args ...any) *fault.Error {
	e := fault.New(fault.OptionInvalid, "check worker option "+option+": "+format, args...)
	return e.With("option", option)
}

// outOfTime gives err, unless it is the end of ctx that caused it.
func (r *run) outOfTime(ctx context.Context, doing string, err error) error {
	if ctx.Err() != nil {
		return notStarted(ctx, doing)
	}
	return err
}

// notStarted says why a run ended before its container started.
func notStarted(ctx context.Context, doing string) error {
	reason := "cancelled"
	if errors.Is(context.Cause(ctx), errDeadline) {
		reason = "timeout"
	}
	return fault.New(fault.WorkerNotStarted, "%s: %s before codex was started", doing, reason).With("reason", reason)
}

// notMade says that the engine did not do its part for the container.
func (r *run) notMade(doing string, err error) error {
	return fault.New(fault.WorkerNotStarted, "%s container %s%s: %w", doing, namePrefix, r.InvocationID, err).With("reason", "engine").
		WithHint("codex was not started and there is no receipt; the engine's own log may say more")
}

// clean hides the capability in an error, should an engine have repeated it.
func (r *run) clean(err error) error {
	if err == nil || !r.red.Finds([]byte(err.Error())) {
		return err
	}
	f, ok := fault.As(err)
	if !ok {
		return fault.New(fault.Internal, "run a worker: %s", r.red.Text(err.Error()))
	}
	out := *f
	out.Message, out.Err = r.red.Text(f.Message), nil
	return &out
}

// unavailable says that the engine did not do something.
func unavailable(doing string, err error) error {
	return fault.New(fault.DockerUnavailable, "%s: %w", doing, err).
		WithHint("is the container engine running, and may this user open its socket? DOCKER_HOST or --docker-host says where it listens")
}

// Reason gives the form of an error that the shim passes on: its code and, where
// there is one, the option, field, kind or reason after a colon.
func Reason(err error) string {
	f, ok := fault.As(err)
	if !ok {
		return string(fault.CodeOf(err))
	}
	for _, key := range []string{"option", "field", "kind", "reason"} {
		if v, ok := f.Details[key]; ok {
			return fmt.Sprintf("%s:%v", f.Code, v)
		}
	}
	return string(f.Code)
}

func tooLong(most int64) error { return fmt.Errorf("it has more than %d bytes", most) }

// bare drops the path that the standard library puts into its errors.
func bare(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

// Bounds of a preparation by a program.
const (
	defaultPrepare = 10 * time.Minute
	maxPrepareArgs = 256
)

// prepareCommand is PrepareCommand.
func prepareCommand(argv []string, timeout time.Duration) (func(context.Context, PrepareInput) error, error) {
	const option = "workspaceSetup.prepare"
	switch {
	case len(argv) == 0 || len(argv) > maxPrepareArgs:
		return nil, invalid(option, "argv has %d entries, not 1 to %d", len(argv), maxPrepareArgs)
	case !filepath.IsAbs(argv[0]):
		return nil, invalid(option, "the program has no absolute path")
	case strings.Contains(strings.Join(argv, ""), "\x00"):
		return nil, invalid(option, "argv holds a NUL byte")
	case timeout <= 0 || timeout > maxTimeout:
		return nil, invalid(option, "timeout_s is not more than 0 and at most %d", int(maxTimeout.Seconds()))
	}
	return func(ctx context.Context, in PrepareInput) error {
		stdin, err := json.Marshal(in)
		if err != nil {
			return err
		}
		res := process.Run(ctx, process.Spec{
			Path: argv[0], Args: argv[1:], Env: []string{"PATH=" + os.Getenv("PATH")}, Dir: "/",
			Stdin: stdin, Timeout: timeout,
		})
		switch {
		case res.OK():
			return nil
		case res.Err != nil:
			return res.Err
		case res.Limit != process.None:
			return fmt.Errorf("the program hit its limit: %s", res.Limit)
		case res.Signal != "":
			return fmt.Errorf("the program ended by %s", res.Signal)
		}
		return fmt.Errorf("the program exited with %d", res.Exit)
	}, nil
}

// prepare lets the host prepare the workspace.
func prepare(ctx context.Context, call func(context.Context, PrepareInput) error, in PrepareInput) error {
	if call == nil {
		return nil
	}
	err := call(ctx, in)
	if ctx.Err() != nil {
		return notStarted(ctx, "prepare the workspace")
	}
	if err != nil {
		return fault.New(fault.PrepareFailed, "prepare the workspace of run %s: %w", in.RunID, err).
			WithHint("the container was not made; run the preparation's program by hand, with its input as JSON on stdin, to see what it says")
	}
	return nil
}

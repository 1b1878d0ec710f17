package operator

import (
	"context"
	"errors"
	"flag"
	"io"
	"path/filepath"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
)

func inspectCommand(stdout io.Writer) *service.Command {
	var roots []string
	b := storage.DefaultBudget()
	return &service.Command{
		Name: "inspect", Short: "Say whether a worker would be let into directories",
		Long: "inspect looks at everything below the directories as a run does before it starts, and prints\n" +
			"what it saw as one line of JSON. It exits with 0 when that is within the budget, with 1 when\n" +
			"it is not; the member reason then says why. Names and contents are not shown.",
		Flags: func(fs *flag.FlagSet) {
			fs.Func("root", "`directory` to look at; may be repeated", func(s string) error {
				if s == "" {
					return errors.New("is empty")
				}
				roots = append(roots, s)
				return nil
			})
			fs.Int64Var(&b.MaxBytes, "max-bytes", b.MaxBytes, "largest sum of all sizes, in `bytes`")
			fs.Int64Var(&b.MaxEntries, "max-entries", b.MaxEntries, "largest `number` of files and directories")
			fs.Int64Var(&b.MaxFileBytes, "max-file-bytes", b.MaxFileBytes, "size of the largest file, in `bytes`")
			fs.Int64Var(&b.MinFreeBytes, "min-free-bytes", b.MinFreeBytes, "room that the file system must have left, in `bytes`")
		},
		Run: func(ctx context.Context, _ []string) error {
			if len(roots) == 0 || len(roots) > storage.MaxRoots {
				return fault.New(fault.Usage, "storage inspect: --root is given %d times, not 1 to %d", len(roots), storage.MaxRoots)
			}
			if err := b.Check(); err != nil {
				return fault.New(fault.Usage, "storage inspect: %w", err)
			}
			for i, root := range roots {
				abs, err := filepath.Abs(root)
				if err != nil {
					return fault.New(fault.Usage, "storage inspect: --root: %w", err)
				}
				roots[i] = abs
			}
			real, err := storage.Roots(roots)
			if err != nil {
				return err
			}
			seen, err := storage.Inspect(ctx, real, b)
			if err != nil {
				return err
			}
			if err := printJSON(stdout, seen, false); err != nil {
				return err
			}
			if !seen.Allowed {
				return service.Status(service.ExitFail)
			}
			return nil
		},
	}
}

// Package kit installs, verifies and runs kits from a Go program, as the command
// kitrun does on a command line (kit §14).
//
// A kit is a directory with kit.json. Install copies it into a workspace, the
// destination, and records a content hash; Verify proves later that the copy is
// still the recorded one and finds its entry. Nothing of a kit is run by either.
// Execute verifies, and runs the entry in a fresh Node process. The files are those
// of the kits' public tool: what one installed, the other verifies.
//
//	out, err := kit.Install(ctx, kit.InstallOptions{Source: "./my-kit", Dest: "/srv/work"})
//	v, err := kit.Verify(ctx, out.ID, "/srv/work")
//	run, err := kit.Execute(ctx, kit.ExecuteOptions{
//		KitID: out.ID, Dest: "/srv/work", RequestFile: "request.json", ControllerRoot: "/srv/private",
//	})
//
// An error has a code, which says what is wrong and never changes its meaning:
//
//	switch kit.CodeOf(err) {
//	case kit.Drifted: // somebody changed the copy
//	case kit.Missing: // somebody removed it
//	}
//
// All functions may be called at once, from several processes too; one of two that
// change the same destination gets Locked.
package kit

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"drawbridge/kitrun/internal/execution"
	"drawbridge/kitrun/internal/kit"
	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
)

// Error is what all functions of this package refuse with: a Code, a Message, and
// a Hint what to do next.
type Error = fault.Error

// Code is a stable name of a condition.
type Code = fault.Code

// The codes of this package.
const (
	IDInvalid       = fault.KitID           // no kit id
	Invalid         = fault.KitInvalid      // kit.json breaks a rule; Details["diagnostics"] is a []string
	TreeInvalid     = fault.KitTree         // a link, a special file, too much, or changing
	PathUnsafe      = fault.KitPath         // source and destination overlap, or a link leads out
	RegistryInvalid = fault.KitRegistry     // the registry is not of the known form
	NotInstalled    = fault.KitNotInstalled // no entry
	Ambiguous       = fault.KitAmbiguous    // several entries
	EntryInvalid    = fault.KitEntry        // the entry names no canonical path or no hash
	Missing         = fault.KitMissing      // the copy is gone
	Drifted         = fault.KitDrifted      // the copy is another one
	Unhashed        = fault.KitUnhashed     // the copy holds what its hash does not cover
	NotRunnable     = fault.KitNotRunnable  // no entry to run
	Conflict        = fault.KitConflict     // installed from elsewhere; see InstallOptions.Update
	Locked          = fault.KitLocked       // somebody else changes the destination, or was killed
	InUse           = fault.KitInUse        // a run of the kit is under way
	InstallFailed   = fault.KitInstall      // copying or registering; what was installed is in place
	CloneFailed     = fault.KitClone        // git
)

// CodeOf gives the code of an error, "" for nil.
func CodeOf(err error) Code { return fault.CodeOf(err) }

type (
	// InstallOptions say what is installed where.
	InstallOptions = kit.InstallOptions
	// Installed is an install that worked.
	Installed = kit.Outcome
	// Verified is an installed kit that may be run.
	Verified = kit.Verified
	// Execution is the entry that a kit declares in kit.json.
	Execution = kit.Execution
	// Report is the verdict on a kit: valid when it has no Errors.
	Report = kit.Report
)

// HashTree gives the content hash of a directory, "sha256:" and 64 digits (kit
// §2). With a trustedRoot, every directory from there down must be a real one.
func HashTree(ctx context.Context, root, trustedRoot string) (string, error) {
	dir, err := open(root, trustedRoot)
	if err != nil {
		return "", refused(root, err)
	}
	defer dir.Close()
	seen, err := dir.Hash(ctx, tree.Keep{})
	if err != nil {
		return "", refused(root, err)
	}
	return seen.Hash, nil
}

// open goes down from trusted, or opens root where it is.
func open(root, trusted string) (*tree.Dir, error) {
	if trusted == "" {
		return tree.Open(root)
	}
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if trusted, err = filepath.Abs(trusted); err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(trusted, root)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return nil, errors.New("it is not below " + trusted)
	}
	at, err := tree.Open(trusted)
	if err != nil || rel == "." {
		return at, err
	}
	for part := range strings.SplitSeq(rel, "/") {
		next, err := at.Open(part)
		at.Close()
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

func refused(root string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(Missing, "hash %s: %w", root, err)
	}
	return fault.New(TreeInvalid, "hash %s: %w", root, err)
}

// Validate checks the kit in a directory. The error is for a directory that
// cannot be read; what is wrong with the kit is in the Report.
func Validate(dir string) (Report, error) { return kit.Validate(dir) }

// Install copies a kit into a destination and registers it there. It replaces no
// kit while a run of it is under way on the user's usual Store.
func Install(ctx context.Context, o InstallOptions) (Installed, error) {
	keeper := kit.Keeper{Live: execution.Live(service.DefaultStoreDir()), Wait: execution.UpdateWait}
	return keeper.Install(ctx, o)
}

// Verify proves that an installed kit is what was installed, and gives its entry.
func Verify(ctx context.Context, id, dest string) (Verified, error) { return kit.Verify(ctx, id, dest) }

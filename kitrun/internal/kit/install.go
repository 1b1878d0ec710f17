package kit

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"drawbridge/kitrun/internal/paths"
	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// livePoll is how often an update looks whether runs have ended.
const livePoll = 200 * time.Millisecond

// InstallOptions say what is installed where.
type InstallOptions struct {
	Source       string  // a path, or a URL for git, "#ref" behind it
	Dest         string  // the workspace
	Ref          string  // branch or tag, git only
	RecordSource *string // what the registry says instead of the path
	Force        bool    // copy again although nothing changed
	Update       bool    // replace, also what came from elsewhere
	ID           string  // refuse a kit of another id; "" takes any
}

// Change is what Install did.
type Change string

// What Install may have done.
const (
	New       Change = "installed"
	Replaced  Change = "updated"
	Unchanged Change = "unchanged" // the same was installed before; nothing was written
)

// Outcome is an install that worked.
type Outcome struct {
	Change    Change
	ID        string
	Path      string // of the copy
	Source    string // as recorded
	Hash      string
	Git       bool
	Warnings  []string
	Recovered Recovery
}

// Install copies a kit into a destination and registers it (kit §4). Whatever
// fails, and wherever the process is killed, the old copy or the new one is what
// the registry says, at the latest after the next command that takes the lock.
func (k *Keeper) Install(ctx context.Context, o InstallOptions) (Outcome, error) {
	out, err := k.install(ctx, o)
	if _, coded := fault.As(err); err != nil && !coded && ctx.Err() != nil {
		err = fault.New(fault.KitInstall, "install from %s: interrupted, and what was there before is in place: %w", cut(o.Source), err)
	}
	return out, err
}

func (k *Keeper) install(ctx context.Context, o InstallOptions) (Outcome, error) {
	dest, err := Resolve(o.Dest)
	if err != nil {
		return Outcome{}, err
	}
	src, err := k.open(ctx, o)
	if err != nil {
		return Outcome{}, err
	}
	defer src.clean()
	report, err := Validate(src.dir)
	if err != nil {
		return Outcome{}, err
	}
	if len(report.Errors) > 0 {
		return Outcome{}, invalid(report)
	}
	if o.ID != "" && report.Manifest.ID != o.ID {
		return Outcome{}, fault.New(fault.KitConflict, "update kit '%s': %s now holds kit '%s'", o.ID, src.recorded, report.Manifest.ID)
	}
	in := &install{k: k, o: o, src: src, manifest: report.Manifest}
	in.out = Outcome{
		ID: report.Manifest.ID, Source: src.recorded, Git: src.git, Warnings: report.Warnings,
		Path: filepath.Join(dest, filepath.FromSlash(reposPath), report.Manifest.ID),
	}
	err = in.run(ctx, dest)
	return in.out, err
}

// invalid is the refusal of a kit that breaks rules.
func invalid(r Report) error {
	return fault.New(fault.KitInvalid, "validate the kit: %s", strings.Join(r.Errors, "; ")).
		With("diagnostics", r.Errors).WithHint("kitrun validate DIR checks it again")
}

// install is one run of Install behind the validation.
type install struct {
	k        *Keeper
	o        InstallOptions
	src      source
	manifest Manifest
	from     *tree.Dir
	seen     tree.Seen // the source
	out      Outcome
}

func (in *install) run(ctx context.Context, dest string) (err error) {
	if err := disjoint(in.src.dir, in.out.Path); err != nil {
		return err
	}
	p, err := prepare(dest)
	if err != nil {
		return err
	}
	defer p.close()
	if _, err := readRegistry(p.local); err != nil {
		return err
	}
	in.from, err = tree.Open(in.src.dir)
	if err != nil {
		return sourceError("read the kit", err)
	}
	defer in.from.Close()
	in.seen, err = in.from.Hash(ctx, tree.Keep{Name: ManifestName, Limit: maxDocument})
	if err != nil {
		return sourceError("read the kit "+in.src.dir, err)
	}
	var again Report // the same kit.json as the one that was validated
	if parseManifest(in.seen.Kept, &again); again.Manifest.ID != in.manifest.ID {
		return sourceError("read the kit", &tree.Invalid{Path: ManifestName, Why: "it changed while it was read"})
	}
	in.manifest, in.out.Hash = again.Manifest, in.seen.Hash
	if err := in.k.waitForRuns(ctx, p, in.out.ID, in.o.Update); err != nil {
		return err
	}
	l, err := acquire(p)
	if err != nil {
		return err
	}
	crashpoint.At("kit.locked")
	defer func() {
		if e := l.release(); e != nil {
			in.out.Warnings = append(in.out.Warnings, fmt.Sprintf("the lock directory could not be removed: %v", e))
		}
	}()
	return in.locked(ctx, l)
}

// locked decides and acts on a registry that nobody else writes.
func (in *install) locked(ctx context.Context, l *lock) error {
	p, o := l.place, &in.out
	reg, err := readRegistry(p.local)
	if err != nil {
		return err
	}
	if o.Recovered, err = in.k.recover(ctx, l, reg); err != nil {
		return failed(o.ID, err)
	}
	for _, d := range in.manifest.Dependencies {
		if len(reg.find(d.ID)) == 0 {
			o.Warnings = append(o.Warnings, missingDependency(o.ID, d, p.dest))
		}
	}
	o.Change = New
	var old Entry
	if entries := reg.find(o.ID); len(entries) > 0 {
		old, o.Change = entries[0], Replaced
	}
	same := old.Source() == o.Source
	if o.Change == Replaced && !same && !in.o.Update {
		return fault.New(fault.KitConflict, "conflict: kit '%s' is already installed from %s; rerun with --update to replace it", o.ID, old.Source()).
			With("source", old.Source())
	}
	there, err := p.repos.Stat(o.ID)
	switch {
	case err == nil && !there.IsDir():
		return fault.New(fault.KitPath, "install kit '%s': %s is no real directory", o.ID, o.Path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return failed(o.ID, err)
	}
	present := err == nil
	if o.Change == Replaced && same && old.Hash() == o.Hash && present && !in.o.Force && !in.o.Update {
		o.Change = Unchanged
		return nil
	}
	if present {
		if err := in.k.noRun(ctx, p, o.ID); err != nil {
			return err
		}
	}
	reg.put(in.entry(old, same))
	return in.swap(ctx, l, reg, present)
}

func missingDependency(id string, d Dependency, dest string) string {
	reason := ""
	if d.Reason != "" {
		reason = " (" + d.Reason + ")"
	}
	return fmt.Sprintf("kit '%s' declares a dependency on '%s'%s which is not installed at %s; install it first with 'kitrun install <source>'", id, d.ID, reason, dest)
}

// entry is what the registry will say, with its members in the order of the
// public tool.
func (in *install) entry(old Entry, same bool) Entry {
	var at any = in.k.now().UTC().Format("2006-01-02T15:04:05Z")
	if same && !in.o.Update {
		if was, ok := old.Members.Get("installed_at"); ok {
			at = was
		}
	}
	e := strictjson.Object{
		{Name: "id", Value: in.out.ID},
		{Name: "source", Value: in.out.Source},
		{Name: "hash", Value: in.out.Hash},
		{Name: "installed_at", Value: at},
		{Name: "installed_path", Value: reposPath + "/" + in.out.ID},
		{Name: "state", Value: string(Installed)},
	}
	if in.manifest.Version != "" {
		e = append(e, strictjson.Member{Name: "version", Value: in.manifest.Version})
	}
	return Entry{e}
}

// swap makes the copy, puts it in the place of the old one and registers it.
func (in *install) swap(ctx context.Context, l *lock, reg *registry, present bool) (err error) {
	p, id := l.place, in.out.ID
	fresh, aside := in.k.name(id, "new"), in.k.name(id, "old")
	always := context.WithoutCancel(ctx) // what is undone is undone to its end
	placed := false
	defer func() {
		if err == nil || placed {
			return
		}
		if e := p.repos.RemoveAll(always, fresh); e != nil {
			in.out.Warnings = append(in.out.Warnings, fmt.Sprintf("what was copied could not be removed: %v", e))
		}
	}()
	if err := in.copy(ctx, p, fresh); err != nil {
		return err
	}
	crashpoint.At("kit.copied")
	if err := l.check(); err != nil {
		return err
	}
	if ctx.Err() != nil { // from here on it is done to its end
		return context.Cause(ctx)
	}
	if present {
		if err := p.repos.Rename(id, aside); err != nil {
			return failed(id, err)
		}
		crashpoint.At("kit.moved_away")
	}
	if err := p.repos.Rename(fresh, id); err != nil {
		return failed(id, errors.Join(err, back(p, present, aside, id)))
	}
	crashpoint.At("kit.in_place")
	err = p.repos.Sync()
	if err == nil {
		err = reg.write(p.local, in.k.temporary())
	}
	if err != nil {
		if e := p.repos.Rename(id, fresh); e != nil {
			placed = true
			return failed(id, errors.Join(err, e))
		}
		return failed(id, errors.Join(err, back(p, present, aside, id), p.repos.Sync()))
	}
	placed = true
	if err := p.local.Sync(); err != nil { // the registry names the new copy: it stays
		return failed(id, fmt.Errorf("the new copy is registered, and may not outlive a power cut: %w", err))
	}
	crashpoint.At("kit.registered")
	if present {
		if e := p.repos.RemoveAll(always, aside); e != nil {
			in.out.Warnings = append(in.out.Warnings, fmt.Sprintf("kit '%s' is installed, and what it replaced could not be removed: %v", id, e))
		}
	}
	crashpoint.At("kit.cleaned")
	return nil
}

// back gives the old copy its name again.
func back(p *place, present bool, aside, id string) error {
	if !present {
		return nil
	}
	return p.repos.Rename(aside, id)
}

// copy makes the new copy under a temporary name; it is what was hashed before.
func (in *install) copy(ctx context.Context, p *place, fresh string) error {
	if err := in.from.CopyTo(ctx, p.repos, fresh); err != nil {
		var changed *tree.Invalid
		if errors.As(err, &changed) {
			return sourceError("copy the kit "+in.src.dir, err)
		}
		return failed(in.out.ID, err)
	}
	dir, err := p.repos.Open(fresh)
	if err != nil {
		return failed(in.out.ID, err)
	}
	defer dir.Close()
	seen, err := dir.Hash(ctx, tree.Keep{Name: ManifestName, Limit: maxDocument})
	switch {
	case err != nil:
		return failed(in.out.ID, err)
	case seen.Hash != in.seen.Hash || !bytes.Equal(seen.Kept, in.seen.Kept):
		return sourceError("copy the kit "+in.src.dir, &tree.Invalid{Why: "it changed while it was copied"})
	}
	return nil
}

// failed is a refusal of the file system, or the caller's cancellation.
func failed(id string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if _, ok := fault.As(err); ok {
		return err
	}
	return fault.New(fault.KitInstall, "install kit '%s': %w", id, err)
}

// waitForRuns lets an update wait until no run of the kit is left, within bounds.
func (k *Keeper) waitForRuns(ctx context.Context, p *place, id string, update bool) error {
	if k.Live == nil || !update || k.Wait <= 0 {
		return nil
	}
	deadline := time.NewTimer(k.Wait)
	defer deadline.Stop()
	tick := time.NewTicker(livePoll)
	defer tick.Stop()
	for {
		if live, err := k.Live(ctx, p.dest, id); err != nil || !live {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.C:
			return inUse(id)
		case <-tick.C:
		}
	}
}

// noRun refuses while a run of the kit is under way.
func (k *Keeper) noRun(ctx context.Context, p *place, id string) error {
	if k.Live == nil {
		return nil
	}
	live, err := k.Live(ctx, p.dest, id)
	if err == nil && live {
		err = inUse(id)
	}
	return err
}

func inUse(id string) error {
	return fault.New(fault.KitInUse, "change kit '%s': a run of it is under way", id).WithHint("kitrun runs shows it; try again when it has ended")
}

// Update installs a kit again from the source that the registry records.
func (k *Keeper) Update(ctx context.Context, id, dest string) (Outcome, error) {
	if err := CheckID(id); err != nil {
		return Outcome{}, err
	}
	e, _, err := k.entry(id, dest)
	if err != nil {
		return Outcome{}, err
	}
	if e.Source() == "" {
		return Outcome{}, fault.New(fault.KitEntry, "update kit '%s': its entry has no source", id)
	}
	o := InstallOptions{Source: e.Source(), Dest: dest, Update: true, ID: id}
	if !IsGit(e.Source()) && !filepath.IsAbs(e.Source()) {
		return Outcome{}, fault.New(fault.KitConflict, "update kit '%s': its recorded source %q is no path and no URL for git", id, cut(e.Source())).
			WithHint("kitrun install <path> --record-source %q --update installs it again", cut(e.Source()))
	}
	return k.Install(ctx, o)
}

// entry finds the one entry of a kit.
func (k *Keeper) entry(id, dest string) (Entry, string, error) {
	dest, err := Resolve(dest)
	if err != nil {
		return Entry{}, "", err
	}
	p, err := look(dest)
	if err != nil {
		return Entry{}, "", err
	}
	defer p.close()
	reg, err := readRegistry(p.local)
	if err != nil {
		return Entry{}, "", err
	}
	e, err := one(reg, id, dest)
	return e, dest, err
}

// one gives the only entry of a kit.
func one(reg *registry, id, dest string) (Entry, error) {
	switch all := reg.find(id); len(all) {
	case 0:
		return Entry{}, fault.New(fault.KitNotInstalled, "kit '%s' is not installed at %s", cut(id), dest).WithHint("kitrun list --dest %s shows what is", dest)
	case 1:
		return all[0], nil
	default:
		return Entry{}, fault.New(fault.KitAmbiguous, "kit '%s' stands %d times in the registry of %s", id, len(all), dest).
			WithHint("installing it with --update leaves one entry")
	}
}

// disjoint refuses a copy into its own source, and the other way round.
func disjoint(source, target string) error {
	from, _, err := paths.Real(source)
	if err != nil {
		return sourceError("read the kit", err)
	}
	to, _, err := paths.Real(target)
	if err != nil {
		return unsafePath(err)
	}
	if paths.Within(from, to) || paths.Within(to, from) {
		return fault.New(fault.KitPath, "install from %s to %s: one lies in the other", from, to).
			WithHint("the source of a kit lies outside of the copies in the destination")
	}
	return nil
}

// makeAll makes a destination; what is there already may be a link here, and is
// refused when it is opened.
func makeAll(dest string) error { return os.MkdirAll(dest, 0o777) }

// name is a new name beside the copy of a kit.
func (k *Keeper) name(id, kind string) string { return "." + id + "." + kind + "-" + k.newID() }

// temporary is a new name beside the registry.
func (k *Keeper) temporary() string { return "." + registryName + ".new-" + k.newID() }

func (k *Keeper) newID() string {
	if k.NewID != nil {
		return k.NewID()
	}
	var b [8]byte
	_, _ = rand.Read(b[:]) // it never fails
	return hex.EncodeToString(b[:])
}

package kit_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/fault"
)

// later is a Keeper for which every lock is old enough.
func later() *kit.Keeper {
	return &kit.Keeper{Now: func() time.Time { return time.Now().Add(11 * time.Minute) }}
}

// Proves kit 17.11.
func TestLocked(t *testing.T) {
	dest, source := t.TempDir(), sample(t, nil)
	install(t, source, dest)
	if err := os.Mkdir(lockDir(dest), 0o700); err != nil { // as the public tool does
		t.Fatal(err)
	}
	write(t, source, map[string]string{"more": "x"})
	unchanged(t, dest, func() {
		_, err := tryInstall(t, source, dest)
		wantCode(t, err, fault.KitLocked)
		_, err = tryInstall(t, "testdata/plain", dest)
		wantCode(t, err, fault.KitLocked)
		_, err = new(kit.Keeper).Update(t.Context(), "sample", dest)
		wantCode(t, err, fault.KitLocked)
		_, err = new(kit.Keeper).Uninstall(t.Context(), "sample", dest)
		wantCode(t, err, fault.KitLocked)
		if got := fault.ExitCode(err); got != 1 {
			t.Errorf("exit status %d, want 1", got)
		}
		if _, err := kit.Verify(t.Context(), "sample", dest); err != nil {
			t.Errorf("verification needs no lock: %v", err)
		}
	})
}

func TestUnlock(t *testing.T) {
	dest := t.TempDir()
	unlock := func(k *kit.Keeper, yes bool) (kit.Unlocked, error) { return k.Unlock(t.Context(), dest, yes) }
	if out, err := unlock(later(), true); err != nil || out.Removed {
		t.Errorf("nothing there: %+v, %v", out, err)
	}
	out := install(t, sample(t, nil), dest)
	if out, err := unlock(later(), true); err != nil || out.Removed {
		t.Errorf("no lock: %+v, %v", out, err)
	}
	inner := filepath.Join(repos(dest), ".sample.flow-agents.lock")
	for _, dir := range []string{lockDir(dest), inner} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	unchanged(t, dest, func() {
		_, err := unlock(new(kit.Keeper), true)
		wantCode(t, err, fault.KitLocked)
		_, err = unlock(later(), false)
		wantCode(t, err, fault.Usage)
		held, err := os.Open(lockDir(dest)) // as a kitrun that is at work
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := flock(held); err != nil {
			t.Fatal(err)
		}
		_, err = unlock(later(), true)
		wantCode(t, err, fault.KitLocked)
		if err == nil || !strings.Contains(err.Error(), "still at work") {
			t.Errorf("err = %v", err)
		}
	})
	if out, err := unlock(later(), true); err != nil || !out.Removed {
		t.Errorf("unlock: %+v, %v", out, err)
	}
	for _, dir := range []string{lockDir(dest), inner} {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}
	if v, err := kit.Verify(t.Context(), "sample", dest); err != nil || v.Hash != out.Hash {
		t.Errorf("verify: %+v, %v", v, err)
	}
}

// The states that an interrupted change may leave, ours and the public tool's.
func TestRecovery(t *testing.T) {
	type outcome struct {
		restored, cleaned, required int
		verified                    bool
	}
	for _, tc := range []struct {
		name  string
		spoil func(dest, root string) error
		want  outcome
	}{
		{"a copy half made", func(_, root string) error {
			return os.MkdirAll(filepath.Join(filepath.Dir(root), ".sample.new-0123abcd", "lib"), 0o755)
		}, outcome{cleaned: 1, verified: true}},
		{"moved away", func(_, root string) error {
			return os.Rename(root, filepath.Join(filepath.Dir(root), ".sample.old-0123abcd"))
		}, outcome{restored: 1, verified: true}},
		{"another in its place", func(_, root string) error {
			return errors.Join(os.Rename(root, filepath.Join(filepath.Dir(root), ".sample.old-0123abcd")), os.Mkdir(root, 0o755))
		}, outcome{restored: 1, verified: true}},
		{"moved away by the public tool", func(_, root string) error {
			return os.Rename(root, filepath.Join(filepath.Dir(root), ".sample.flow-agents-4711-0123456789ab.old"))
		}, outcome{restored: 1, verified: true}},
		{"none matches", func(_, root string) error {
			aside := filepath.Join(filepath.Dir(root), ".sample.old-0123abcd")
			return errors.Join(os.Rename(root, aside), os.WriteFile(filepath.Join(aside, "more"), nil, 0o644))
		}, outcome{required: 1}},
		{"of a kit that is not registered", func(_, root string) error {
			return os.Mkdir(filepath.Join(filepath.Dir(root), ".other.old-0123abcd"), 0o755)
		}, outcome{cleaned: 1, verified: true}},
		{"a registry that was not renamed", func(dest, _ string) error {
			return os.WriteFile(registry(dest)[:len(registry(dest))-len("installed-kits.json")]+".installed-kits.json.new-00ff", nil, 0o644)
		}, outcome{verified: true}},
		{"names of somebody else", func(_, root string) error {
			return errors.Join(os.Mkdir(filepath.Join(filepath.Dir(root), ".sample.mine"), 0o755), os.Mkdir(filepath.Join(filepath.Dir(root), "sample.old-1"), 0o755))
		}, outcome{verified: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dest := t.TempDir()
			root := install(t, sample(t, nil), dest).Path
			if err := errors.Join(tc.spoil(dest, root), os.Mkdir(lockDir(dest), 0o700)); err != nil {
				t.Fatal(err)
			}
			if tc.want.required > 0 {
				all, err := kit.Statuses(t.Context(), dest, "sample")
				if err != nil || len(all) != 1 || !all[0].Recover || !strings.Contains(all[0].Diagnostic, "recovery_required") {
					t.Errorf("status: %+v, %v", all, err)
				}
			}
			before := snapshot(t, repos(dest))
			out, err := later().Unlock(t.Context(), dest, true)
			if err != nil {
				t.Fatal(err)
			}
			_, err = kit.Verify(t.Context(), "sample", dest)
			r := out.Recovery
			if got := (outcome{len(r.Restored), len(r.Cleaned), len(r.Required), err == nil}); got != tc.want {
				t.Errorf("outcome %+v (%v), want %+v", got, err, tc.want)
			}
			after := snapshot(t, repos(dest))
			if tc.want.required > 0 && strings.Join(before, "\n") != strings.Join(after, "\n") {
				t.Errorf("something was deleted:\n%s\n%s", before, after)
			}
			if tc.want.cleaned+tc.want.restored > 0 && len(after) != len(snapshot(t, root))+1 {
				t.Errorf("left: %q", after)
			}
			// Asked to, an install replaces what no copy matches.
			if _, err := tryInstall(t, sample(t, nil), dest, update); err != nil {
				t.Error(err)
			}
			if _, err := kit.Verify(t.Context(), "sample", dest); err != nil {
				t.Error(err)
			}
		})
	}
}

// An unlock that cannot put things right leaves the lock.
func TestUnlock_Registry(t *testing.T) {
	dest := t.TempDir()
	install(t, sample(t, nil), dest)
	if err := errors.Join(os.Mkdir(lockDir(dest), 0o700), os.WriteFile(registry(dest), []byte("{"), 0o644)); err != nil {
		t.Fatal(err)
	}
	unchanged(t, dest, func() {
		_, err := later().Unlock(t.Context(), dest, true)
		wantCode(t, err, fault.KitRegistry)
	})
}

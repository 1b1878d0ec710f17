package kit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

// Bounds of a source.
const (
	maxRecorded  = 1024 // UTF-16 units of --record-source
	cloneTimeout = 300 * time.Second
	cloneOutput  = 64 << 10
)

// gitForm are the sources that are cloned; so is what ends in .git.
var gitForm = regexp.MustCompile(`^(https?://|git\+|ssh://|file://)`)

// IsGit reports whether a source is cloned, not read from a path.
func IsGit(source string) bool {
	return gitForm.MatchString(source) || strings.HasSuffix(source, ".git")
}

// source is where a kit is read from.
type source struct {
	dir      string // absolute
	recorded string // what the registry will say
	git      bool
	clean    func()
}

// open finds the directory of a source, by cloning it if it is one for git.
func (k *Keeper) open(ctx context.Context, o InstallOptions) (source, error) {
	if o.Source == "" {
		return source{}, fault.New(fault.Usage, "no source is given").WithHint("the source is the directory that holds kit.json, or a URL for git")
	}
	if !IsGit(o.Source) {
		dir, err := filepath.Abs(o.Source)
		if err != nil {
			return source{}, sourceError("read the kit", err)
		}
		s := source{dir: dir, recorded: dir, clean: func() {}}
		if o.RecordSource != nil {
			s.recorded = *o.RecordSource
			err = checkRecorded(s.recorded)
		}
		if o.Ref != "" && err == nil {
			err = fault.New(fault.Usage, "--ref is for git sources, and %q is a path", cut(o.Source))
		}
		return s, err
	}
	if o.RecordSource != nil {
		return source{}, fault.New(fault.Usage, "--record-source is for paths; a git source is recorded by its URL and ref")
	}
	return clone(ctx, o.Source, o.Ref)
}

// checkRecorded refuses text that would show as something else in a list.
func checkRecorded(s string) error {
	unsafe := func(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }
	units := 0
	for _, r := range s {
		units += utf16.RuneLen(r)
	}
	if strings.TrimFunc(s, isBlank) == "" || s != strings.TrimFunc(s, isBlank) || units > maxRecorded ||
		strings.ContainsFunc(s, unsafe) || !utf8.ValidString(s) {
		return fault.New(fault.Usage, "--record-source must be text without blanks around it, at most %d characters, and without control, format and separator characters", maxRecorded)
	}
	return nil
}

// isBlank are the characters that JavaScript trims.
func isBlank(r rune) bool {
	return r >= '\t' && r <= '\r' || r == 0xfeff || r == 0x2028 || r == 0x2029 || unicode.Is(unicode.Zs, r)
}

// clone fetches the newest commit of a branch or tag into a temporary directory.
// Nothing of it is run, and nobody is asked for a password.
func clone(ctx context.Context, raw, ref string) (source, error) {
	where, fragment, _ := strings.Cut(raw, "#")
	if fragment != "" {
		ref = fragment
	}
	if strings.HasPrefix(ref, "-") {
		return source{}, fault.New(fault.Usage, "the ref %q begins with a dash", cut(ref))
	}
	git, err := exec.LookPath("git")
	if err == nil {
		git, err = filepath.Abs(git)
	}
	if err != nil {
		return source{}, fault.New(fault.DependencyMissing, "clone the source: %w", err).WithHint("install git")
	}
	temporary, err := os.MkdirTemp("", "kitrun-git-")
	if err != nil {
		return source{}, fault.New(fault.KitClone, "clone the source: %w", err)
	}
	public, secret := withoutUser(where)
	s := source{dir: filepath.Join(temporary, "kit"), recorded: public, git: true, clean: func() { _ = os.RemoveAll(temporary) }}
	if ref != "" {
		s.recorded += "#" + ref
	}
	res := process.Run(ctx, process.Spec{
		Path: git, Args: cloneArgs(where, ref, s.dir), Env: cloneEnv(os.Environ()), Dir: temporary,
		MaxStdout: cloneOutput, MaxStderr: cloneOutput, Timeout: cloneTimeout,
	})
	if res.OK() {
		return s, nil
	}
	s.clean()
	if ctx.Err() != nil {
		return source{}, context.Cause(ctx)
	}
	why := strings.TrimSpace(string(res.Stderr))
	switch {
	case res.Err != nil:
		why = res.Err.Error()
	case res.Limit == process.TimedOut:
		why = fmt.Sprintf("not done within %v", cloneTimeout)
	}
	if secret != "" {
		why = strings.ReplaceAll(why, secret, "…")
	}
	return source{}, fault.New(fault.KitClone, "clone %s: %s", s.recorded, fault.CleanLine(why))
}

func cloneArgs(where, ref, dir string) []string {
	args := []string{
		"-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "core.fsmonitor=false",
		"clone", "--quiet", "--depth", "1", "--template=", "--no-recurse-submodules",
	}
	if ref != "" {
		args = append(args, "--branch", ref)
	}
	// "git+" is npm's way to write it; git's own "git+ssh" it takes as it is.
	if rest, ok := strings.CutPrefix(where, "git+"); ok && !strings.HasPrefix(rest, "ssh://") {
		where = rest
	}
	return append(args, "--", where, dir)
}

// cloneEnv is the caller's environment without a way to ask somebody.
func cloneEnv(environ []string) []string {
	var out []string
	for _, v := range environ {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "GIT_TERMINAL_PROMPT", "GIT_ASKPASS", "SSH_ASKPASS", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_TEMPLATE_DIR":
		default:
			out = append(out, v)
		}
	}
	out = append(out, "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=false", "SSH_ASKPASS=false", "LC_ALL=C")
	if os.Getenv("GIT_SSH_COMMAND") == "" && os.Getenv("GIT_SSH") == "" {
		out = append(out, "GIT_SSH_COMMAND=ssh -o BatchMode=yes")
	}
	return out
}

// withoutUser takes user and password out of a URL, for ssh only the password:
// its user says which account is meant. secret is what must not be shown.
func withoutUser(where string) (public, secret string) {
	u, err := url.Parse(where)
	if err != nil || u.User == nil {
		return where, ""
	}
	// As written: what an error of git would show.
	_, after, _ := strings.Cut(where, "://")
	authority, _, _ := strings.Cut(after, "/")
	i := strings.LastIndex(authority, "@")
	if i < 0 {
		return where, ""
	}
	user, host := authority[:i], authority[i+1:]
	secret = user
	if strings.HasSuffix(u.Scheme, "ssh") {
		var name string
		name, secret, _ = strings.Cut(user, ":")
		host = name + "@" + host
	}
	return strings.Replace(where, authority, host, 1), secret
}

// sourceError says why a kit could not be read from where it is.
func sourceError(doing string, err error) error {
	var invalid *tree.Invalid
	switch {
	case errors.As(err, &invalid):
		return fault.New(fault.KitTree, "%s: %w", doing, err)
	case errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.KitTree, "%s: %w", doing, err).WithHint("the source is the directory that holds kit.json, or a URL for git")
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fault.New(fault.KitTree, "%s: %w", doing, err)
}

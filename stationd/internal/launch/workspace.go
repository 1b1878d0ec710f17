package launch

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/tree"
)

// Bounds of a workspace.
const (
	maxListing = 64 << 20
	gitTime    = 2 * time.Minute
)

// Grounding is what evidence says of a workspace: what it was made of.
type Grounding struct {
	Repo       string `json:"repo"`   // the remote's URL, without user information; "" for none
	SHA        string `json:"sha"`    // of the commit
	Branch     string `json:"branch"` // or "detached"
	Dirty      Dirty  `json:"dirty"`
	TreeDigest string `json:"treeDigest"` // SHA-256 over sorted lines "mode path sha256"
	Files      int64  `json:"files"`
	Bytes      int64  `json:"bytes"`
}

// Dirty counts how the files differ from the commit.
type Dirty struct {
	Modified  int    `json:"modified"`
	Added     int    `json:"added"`
	Deleted   int    `json:"deleted"`
	Untracked int    `json:"untracked"`
	Digest    string `json:"digest"` // SHA-256 of the sorted status lines
}

// Sync copies a workspace into dest, an empty directory of the lease, and says what
// was copied. Only files that git knows, or with include those it does not ignore,
// are copied: no .git, so neither its hooks nor its credentials, and no submodules.
// Without a source dest stays empty.
func Sync(ctx context.Context, w Workspace, dest string) (Grounding, error) {
	if w.Source == "" {
		return Grounding{TreeDigest: hex.EncodeToString(sha256.New().Sum(nil)), Dirty: Dirty{Digest: hex.EncodeToString(sha256.New().Sum(nil))}}, nil
	}
	s := &copier{source: w.Source, copied: map[string]entry{}}
	var err error
	if s.git, err = exec.LookPath("git"); err != nil {
		return Grounding{}, refusedWorkspace("git is not installed")
	}
	if s.to, err = os.OpenRoot(dest); err != nil {
		return Grounding{}, refusedWorkspace("open the workspace: %w", err)
	}
	defer s.to.Close()
	g, err := s.ground(ctx, w.Ref)
	if err != nil {
		return Grounding{}, err
	}
	if w.Ref == "" {
		err = s.workTree(ctx, w.Include != "")
	} else {
		err = s.commit(ctx, g.SHA)
	}
	if err == nil {
		err = s.checkLinks()
	}
	if err != nil {
		return Grounding{}, err
	}
	g.TreeDigest, g.Files, g.Bytes = s.digest(), int64(len(s.copied)), s.bytes
	return g, nil
}

// copier is one copy.
type copier struct {
	git    string
	source string
	to     *os.Root
	copied map[string]entry // by path
	bytes  int64
}

type entry struct {
	mode string
	sum  [sha256.Size]byte
}

// run gives the output of a git command that only reads.
func (s *copier) run(ctx context.Context, args ...string) ([]byte, error) {
	r := process.Run(ctx, process.Spec{
		Path: s.git, Args: gitArgs(args...), Env: gitEnv(), Dir: s.source, MaxStdout: maxListing, Timeout: gitTime,
	})
	if !r.OK() {
		return nil, refusedWorkspace("git %s does not succeed in the source", args[0]).
			WithHint("the source is a git work tree of the user that stationd runs as")
	}
	return r.Stdout, nil
}

// gitArgs keeps a repository's configuration from executing anything but filters.
func gitArgs(args ...string) []string {
	return append([]string{"--no-pager", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false"}, args...)
}

func gitEnv() []string {
	return []string{
		"PATH=" + searchPath, "HOME=/nonexistent", "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0", "GIT_NO_LAZY_FETCH=1",
	}
}

// ground looks at the repository.
func (s *copier) ground(ctx context.Context, ref string) (Grounding, error) {
	var g Grounding
	commit := "HEAD"
	if ref != "" {
		commit = ref
	}
	sha, err := s.run(ctx, "rev-parse", "--verify", "--end-of-options", commit+"^{commit}")
	if err != nil {
		return g, err
	}
	g.SHA, g.Branch = strings.TrimSpace(string(sha)), "detached"
	if ref == "" {
		if name, err := s.run(ctx, "symbolic-ref", "-q", "--short", "HEAD"); err == nil {
			g.Branch = strings.TrimSpace(string(name))
		}
	}
	if remote, err := s.run(ctx, "config", "--get", "remote.origin.url"); err == nil {
		g.Repo = withoutUser(strings.TrimSpace(string(remote)))
	}
	var lines []string
	if ref == "" {
		status, err := s.run(ctx, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=all", "--no-renames")
		if err != nil {
			return g, err
		}
		for line := range strings.SplitSeq(string(status), "\x00") {
			if len(line) < 3 {
				continue
			}
			lines = append(lines, line)
			switch code := line[:2]; {
			case code == "??":
				g.Dirty.Untracked++
			case strings.Contains(code, "D"):
				g.Dirty.Deleted++
			case code[0] == 'A':
				g.Dirty.Added++
			default:
				g.Dirty.Modified++
			}
		}
	}
	slices.Sort(lines)
	sum := sha256.New()
	for _, l := range lines {
		_, _ = io.WriteString(sum, l+"\n")
	}
	g.Dirty.Digest = hex.EncodeToString(sum.Sum(nil))
	return g, nil
}

// withoutUser removes user information, and what may be a credential, from a
// remote's URL; a local path is not kept.
func withoutUser(remote string) string {
	if u, err := url.Parse(remote); err == nil && u.Scheme != "" && u.Host != "" {
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		return u.String()
	}
	if host, rest, ok := strings.Cut(remote, ":"); ok && !strings.Contains(host, "/") && !strings.HasPrefix(rest, "//") { // git@host:path
		return host[strings.LastIndexByte(host, '@')+1:] + ":" + rest
	}
	return ""
}

// workTree copies the files as they are.
func (s *copier) workTree(ctx context.Context, untracked bool) error {
	args := []string{"ls-files", "-z", "--cached"}
	if untracked {
		args = append(args, "--others", "--exclude-standard")
	}
	list, err := s.run(ctx, args...)
	if err != nil {
		return err
	}
	from, err := os.OpenRoot(s.source)
	if err != nil {
		return refusedWorkspace("open the source: %w", err)
	}
	defer from.Close()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, seen := s.copied[name]; seen || name == "" || strings.HasSuffix(name, "/") {
			continue // in conflict, or a repository in this one
		}
		info, err := from.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // deleted
		case err != nil:
			return refusedWorkspace("read %s: %w", fault.CleanLine(name), err)
		case info.Mode()&fs.ModeSymlink != 0:
			var to string
			if to, err = from.Readlink(name); err == nil {
				err = s.link(name, to)
			}
		case info.Mode().IsRegular():
			err = s.open(from, name)
		default:
			continue // a submodule, a socket, a device
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// open copies one regular file.
func (s *copier) open(from *os.Root, name string) error {
	f, err := from.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a pipe by now
	if err != nil {
		return refusedWorkspace("read %s: %w", fault.CleanLine(name), err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return refusedWorkspace("read %s: it changed while it was read", fault.CleanLine(name))
	}
	mode := tree.File
	if info.Mode().Perm()&0o100 != 0 {
		mode = tree.Program
	}
	return s.file(name, mode, f)
}

// commit copies the files of a commit: their bytes as git keeps them, so that no
// filter of the repository's configuration is executed.
func (s *copier) commit(ctx context.Context, sha string) error {
	list, err := s.run(ctx, "ls-tree", "-r", "-z", "--full-tree", sha)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.git, gitArgs("cat-file", "--batch")...)
	cmd.Env, cmd.Dir = gitEnv(), s.source
	ask, err := cmd.StdinPipe()
	if err != nil {
		return refusedWorkspace("%w", err)
	}
	told, err := cmd.StdoutPipe()
	if err != nil {
		return refusedWorkspace("%w", err)
	}
	if err := cmd.Start(); err != nil {
		return refusedWorkspace("start git: %w", err)
	}
	err = s.blobs(string(list), ask, bufio.NewReader(told))
	_ = ask.Close()
	if err != nil {
		cancel()
	}
	if ended := cmd.Wait(); err == nil && ended != nil {
		err = refusedWorkspace("git cat-file: %w", ended)
	}
	return err
}

// blobs asks for one object after another.
func (s *copier) blobs(list string, ask io.Writer, told *bufio.Reader) error {
	for line := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		head, name, ok := strings.Cut(line, "\t")
		fields := strings.Fields(head)
		if !ok || len(fields) != 3 || fields[1] != "blob" {
			continue // a submodule
		}
		if _, err := io.WriteString(ask, fields[2]+"\n"); err != nil {
			return refusedWorkspace("git cat-file: %w", err)
		}
		answer, err := told.ReadString('\n')
		if err != nil {
			return refusedWorkspace("git cat-file: %w", err)
		}
		about := strings.Fields(answer)
		if len(about) != 3 {
			return refusedWorkspace("git has no object for %s", fault.CleanLine(name))
		}
		size, err := strconv.ParseInt(about[2], 10, 64)
		if err != nil || size < 0 || size > tree.MaxBytes {
			return refusedWorkspace("git says nothing useful of %s", fault.CleanLine(name))
		}
		content := io.LimitReader(told, size)
		if fields[0] == tree.Link {
			var target []byte
			if target, err = io.ReadAll(io.LimitReader(content, maxPath+1)); err == nil {
				err = s.link(name, string(target))
			}
		} else {
			err = s.file(name, fields[0], content)
		}
		if err != nil {
			return err
		}
		if _, err := told.Discard(1); err != nil { // the line end behind the object
			return refusedWorkspace("git cat-file: %w", err)
		}
	}
	return nil
}

// place makes a file's directory and counts it.
func (s *copier) place(name string) error {
	if !local(name) || name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return refusedWorkspace("copy %s: not a path that can stand in a workspace", fault.CleanLine(name))
	}
	if slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return strings.EqualFold(part, ".git") }) {
		return refusedWorkspace("copy %s: it is a part of a repository itself", fault.CleanLine(name))
	}
	if len(s.copied) >= tree.MaxFiles {
		return refusedWorkspace("more than %d files", tree.MaxFiles)
	}
	if dir := path.Dir(name); dir != "." {
		if err := s.to.MkdirAll(dir, 0o755); err != nil {
			return refusedWorkspace("copy %s: %w", fault.CleanLine(name), err)
		}
	}
	return nil
}

// file writes one file.
func (s *copier) file(name, mode string, content io.Reader) error {
	if err := s.place(name); err != nil {
		return err
	}
	perm := os.FileMode(0o644)
	if mode == tree.Program {
		perm = 0o755
	} else {
		mode = tree.File
	}
	f, err := s.to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return refusedWorkspace("copy %s: %w", fault.CleanLine(name), err)
	}
	sum := sha256.New()
	left := tree.MaxBytes - s.bytes
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(content, left+1))
	if err = errors.Join(err, f.Chmod(perm), f.Close()); err != nil {
		return refusedWorkspace("copy %s: %w", fault.CleanLine(name), err)
	}
	if n > left {
		return refusedWorkspace("more than %d bytes", int64(tree.MaxBytes))
	}
	s.bytes += n
	s.copied[name] = entry{mode, [sha256.Size]byte(sum.Sum(nil))}
	return nil
}

// link writes one symbolic link; where it leads is checked when all files are
// there.
func (s *copier) link(name, to string) error {
	if err := s.place(name); err != nil {
		return err
	}
	if to == "" || len(to) > maxPath || path.IsAbs(to) || !local(path.Join(path.Dir(name), to)) {
		return leaves(name)
	}
	if err := s.to.Symlink(to, name); err != nil {
		return refusedWorkspace("copy %s: %w", fault.CleanLine(name), err)
	}
	s.copied[name] = entry{tree.Link, sha256.Sum256([]byte(to))}
	return nil
}

// checkLinks follows every link as the kernel does, through other links too.
func (s *copier) checkLinks() error {
	for name, e := range s.copied {
		if e.mode != tree.Link {
			continue
		}
		if _, err := s.to.Stat(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return leaves(name)
		}
	}
	return nil
}

func leaves(name string) error {
	return refusedWorkspace("copy %s: the link leads out of the workspace, or nowhere", fault.CleanLine(name))
}

// digest is over what was copied.
func (s *copier) digest() string {
	lines := make([]string, 0, len(s.copied))
	for name, e := range s.copied {
		lines = append(lines, tree.Line(e.mode, name, e.sum))
	}
	return tree.Digest(lines)
}

func refusedWorkspace(format string, args ...any) *fault.Error {
	return fault.New(fault.WorkspaceRefused, "sync the workspace: "+format, args...)
}

package handoff

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxCommand bounds a command that may be approved without asking.
const maxCommand = 8192

// Characters that make a command more than one program with fixed words, in
// quotes too: what stands in quotes here may be read by another shell there.
const notSimple = "&;|<>(){}$#!*?[]`\\~\n\r\t"

var programName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// shellWords are words that a shell does not look up in PATH, or that run or
// change something else than they name.
var shellWords = []string{
	"alias", "bg", "bind", "builtin", "case", "cd", "command", "coproc", "declare", "do", "done", "elif", "else", "enable", "esac", "eval", "exec",
	"exit", "export", "fc", "fg", "fi", "for", "function", "hash", "if", "in", "jobs", "let", "local", "popd", "pushd", "read", "readonly", "return",
	"select", "set", "shift", "shopt", "source", "then", "time", "times", "trap", "typeset", "ulimit", "umask", "unalias", "unset", "until", "while",
}

// simpleCommand splits a command line that is one program with fixed words, and
// says why it is not. Nothing in it may be expanded, chained, redirected or
// assigned by any shell.
func simpleCommand(line string) (argv []string, why string) {
	switch {
	case !utf8.ValidString(line):
		return nil, "it is not valid UTF-8"
	case len(line) > maxCommand:
		return nil, "it is too long"
	case strings.ContainsAny(line, notSimple):
		return nil, "it has characters that a shell interprets"
	case strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }):
		return nil, "it has characters that cannot be seen"
	}
	var word strings.Builder
	open, quoted := false, false // a word is open; it has a quoted part
	first := true
	end := func() string {
		if !open {
			return ""
		}
		if first && quoted {
			return "its program is quoted"
		}
		argv = append(argv, word.String())
		word.Reset()
		open, quoted, first = false, false, false
		return ""
	}
	var quote rune
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, open, quoted = r, true, true
		case r == ' ':
			if why := end(); why != "" {
				return nil, why
			}
		default:
			word.WriteRune(r)
			open = true
		}
	}
	if quote != 0 {
		return nil, "its quotes are not balanced"
	}
	if why := end(); why != "" {
		return nil, why
	}
	switch {
	case len(argv) == 0:
		return nil, "it is empty"
	case strings.Contains(argv[0], "="):
		return nil, "it begins with an assignment"
	case !programName.MatchString(argv[0]) || slices.Contains(shellWords, argv[0]):
		return nil, "its first word is no plain program name"
	}
	return argv, ""
}

// confined reports whether cwd, and every argument that looks like a path there
// or is one, lies inside root. Symbolic links are followed.
func confined(root, cwd string, args []string) (ok bool, why string) {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return false, "the workspace cannot be resolved"
	}
	if !filepath.IsAbs(cwd) {
		return false, "its directory is not absolute"
	}
	if cwd, err = filepath.EvalSymlinks(cwd); err != nil || !inside(root, cwd) {
		return false, "its directory is outside the workspace"
	}
	for _, arg := range args {
		for _, path := range paths(cwd, arg) {
			real, err := resolve(cwd, path)
			if err != nil || !inside(root, real) {
				return false, "an argument leads outside the workspace"
			}
		}
	}
	return true, ""
}

// paths gives the parts of an argument that a program may take for a path: the
// whole of it, what follows =, and what is attached to an option.
func paths(cwd, arg string) []string {
	candidates := []string{arg}
	if _, value, ok := strings.Cut(arg, "="); ok {
		candidates = append(candidates, value)
	}
	if strings.HasPrefix(arg, "-") {
		candidates = candidates[1:]
		attached, _, _ := strings.Cut(arg, "=")
		if at := strings.IndexAny(attached, "/."); at >= 0 {
			candidates = append(candidates, attached[at:])
		}
	}
	return slices.DeleteFunc(candidates, func(c string) bool {
		if strings.Contains(c, "/") || c == "." || c == ".." {
			return false
		}
		if c == "" {
			return true
		}
		_, err := os.Lstat(filepath.Join(cwd, c)) // a plain word that is a file, or a link, there
		return err != nil
	})
}

// resolve follows path from cwd as the kernel would; what does not exist yet is
// taken as it is written, so that .. behind it is refused.
func resolve(cwd, path string) (string, error) {
	at := cwd
	if filepath.IsAbs(path) {
		at = "/"
	}
	missing := false
	for part := range strings.SplitSeq(path, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == ".." && missing:
			return "", errors.New(".. behind a part that does not exist")
		case part == "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, part)
		if missing {
			at = next
			continue
		}
		real, err := filepath.EvalSymlinks(next)
		switch {
		case err == nil:
			at = real
		case errors.Is(err, fs.ErrNotExist):
			if _, err := os.Lstat(next); err == nil {
				return "", errors.New("a link that leads nowhere")
			}
			at, missing = next, true
		default:
			return "", err
		}
	}
	return at, nil
}

func inside(root, path string) bool {
	return path == root || strings.HasPrefix(path, strings.TrimSuffix(root, "/")+"/")
}

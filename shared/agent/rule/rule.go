// Package rule holds what is known of agent versions, as data, and the one
// engine that applies it.
//
// A rule file (files/*.json) states for one agent and a range of versions how a
// composer, a footer, a busy row, a dialog or a picker is drawn, which keys do
// what, and which lines of a transcript mean that a request was taken, a tool was
// called, a turn ended. The engine knows no agent: it has proof primitives (the
// style of a cell, a whole row, the bottom-most region with nothing below it,
// numbered options with one of them highlighted, exact text of a record) and
// gives a verdict only where every proof of a rule holds. Anything else is
// Unknown, with the proof that failed as evidence.
//
// Load reads the embedded files and, over them by file name, those of a local
// directory, equally strictly. Set.For picks the file for a version and says how
// far it may be trusted. File.Read judges one screen, File.Record one line of a
// transcript. A Set may be used by any number of goroutines. Of the embedded files
// only the head is read by Load; one is compiled when it is first used.
package rule

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/Masterminds/semver/v3"

	"drawbridge/shared/agent"
	"drawbridge/shared/terminal"
)

// Bounds of Load.
const (
	MaxFileBytes = 1 << 20
	MaxFiles     = 100
)

//go:embed files/*.json
var embedded embed.FS

// File is one rule file.
type File struct {
	head
	engine func() *engine // the compiled file; may compile it
}

// Set is all rule files of one program.
type Set struct {
	files []*File // by agent, then by oldest version
}

// Load reads the embedded rule files and those of overrideDir ("" for none),
// which replace embedded ones of the same name or add to them.
func Load(overrideDir string) (*Set, error) {
	inner, err := fs.Sub(embedded, "files")
	if err != nil {
		return nil, fmt.Errorf("open the embedded rule files: %w", err)
	}
	sources := map[string]fs.FS{}
	if err := names(inner, "", sources); err != nil {
		return nil, fmt.Errorf("list the embedded rule files: %w", err)
	}
	if overrideDir != "" {
		if err := names(os.DirFS(overrideDir), filepath.Clean(overrideDir), sources); err != nil {
			return nil, fmt.Errorf("list rule files in %s: %w", overrideDir, err)
		}
	}
	set := &Set{}
	for name, from := range sources {
		data, err := readFile(from, name)
		if err != nil {
			return nil, fmt.Errorf("read rule file %s: %w", name, err)
		}
		prepare := Compile
		if from == inner {
			prepare = ours
		}
		f, err := prepare(name, data)
		if err != nil {
			return nil, err
		}
		set.files = append(set.files, f)
	}
	return set, set.arrange()
}

// names adds the rule files of one directory to sources.
func names(dir fs.FS, path string, sources map[string]fs.FS) error {
	entries, err := fs.ReadDir(dir, ".")
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".json" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if n++; n > MaxFiles {
			return fmt.Errorf("more than %d files", MaxFiles)
		}
		sources[e.Name()] = dir
	}
	return nil
}

// readFile reads one ordinary file of bounded size.
func readFile(dir fs.FS, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not an ordinary file")
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("over %d bytes", MaxFileBytes)
	}
	return data, nil
}

// arrange sorts the files and refuses two that claim the same versions.
func (s *Set) arrange() error {
	sort.Slice(s.files, func(i, j int) bool {
		a, b := s.files[i], s.files[j]
		if a.agent != b.agent {
			return a.agent < b.agent
		}
		if c := a.oldest.Compare(b.oldest); c != 0 {
			return c < 0
		}
		return a.name < b.name
	})
	tested := map[string]string{}
	for i, f := range s.files {
		if i > 0 && s.files[i-1].agent == f.agent && s.files[i-1].oldest.Equal(f.oldest) {
			return fmt.Errorf("rule file %s: /versions/oldest: same as in %s", f.name, s.files[i-1].name)
		}
		for n, v := range f.tested {
			if other, ok := tested[f.agent+" "+v]; ok {
				return fmt.Errorf("rule file %s: /versions/tested/%d: also in %s", f.name, n, other)
			}
			tested[f.agent+" "+v] = f.name
		}
	}
	return nil
}

// Agents names the agents that have a rule file, sorted.
func (s *Set) Agents() []string {
	var out []string
	for _, f := range s.files {
		if !slices.Contains(out, f.agent) {
			out = append(out, f.agent)
		}
	}
	return out
}

// Files gives all rule files, by agent and version.
func (s *Set) Files() []*File { return slices.Clone(s.files) }

// For picks the rule file for one version of an agent: the one that lists the
// version as tested, else the nearest older one (Untested). A version that is not
// a semantic one, or is older than every file, has no file and is Refused.
func (s *Set) For(agentName, version string) (*File, agent.Class) {
	v, err := semver.StrictNewVersion(version)
	if err != nil {
		return nil, agent.Refused
	}
	var nearest *File
	for _, f := range s.files {
		if f.agent != agentName {
			continue
		}
		if slices.Contains(f.tested, version) {
			return f, agent.Tested
		}
		if !f.oldest.GreaterThan(v) {
			nearest = f // files are sorted by oldest
		}
	}
	if nearest == nil {
		return nil, agent.Refused
	}
	return nearest, agent.Untested
}

// Keys are the keys that the agent's ordinary screen understands.
type Keys struct {
	Submit    terminal.Key
	Interrupt terminal.Key
	Clear     []terminal.Key // one round; repeated until the composer is empty
}

// Input is how a request must be shaped to arrive as it is.
type Input struct {
	InlineChars  int      // longest request, in characters, that the composer shows as text
	RequestBytes int      // longest request that is typed at all
	Refuse       []string // first characters that the agent takes for itself
	WrapPrefix   []string // first characters of a last word that would open a popup
	WrapWord     string   // the word put after such a word
}

// Name is the file's name.
func (f *File) Name() string { return f.name }

// Agent is the agent that the file is about.
func (f *File) Agent() string { return f.agent }

// About is one line for people.
func (f *File) About() string { return f.about }

// Tested lists the versions that the file was made from.
func (f *File) Tested() []string { return slices.Clone(f.tested) }

// Oldest is the first version that the file may be used for.
func (f *File) Oldest() string { return f.oldest.String() }

// Size is the smallest pane, in columns and rows, in which a verdict is given.
func (f *File) Size() (columns, rows int) { return f.columns, f.rows }

// Keys gives the keys of the ordinary screen.
func (f *File) Keys() Keys {
	k := f.keys
	k.Clear = slices.Clone(k.Clear)
	return k
}

// Input gives the rules for requests.
func (f *File) Input() Input {
	in := f.input
	in.Refuse, in.WrapPrefix = slices.Clone(in.Refuse), slices.Clone(in.WrapPrefix)
	return in
}

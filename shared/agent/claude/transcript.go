package claude

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
)

// errSeveral means that a session's transcript cannot be told: it was not where
// it belongs, and several others have its name.
var errSeveral = errors.New("several transcripts have the name of the session")

func projectsDir(home string) string { return filepath.Join(home, "projects") }

// slug is the name of the directory for the transcripts of a working directory.
// Different directories may share one.
func slug(cwd string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, cwd)
}

// computedPath is where a session's transcript belongs.
func computedPath(home, cwd, session string) string {
	return filepath.Join(projectsDir(home), slug(cwd), session+".jsonl")
}

// locate finds the transcript of a session: where it belongs, else the only file
// of its name in the whole of projects (claude §1). It may not exist yet: the
// first prompt makes it.
func locate(home, cwd, session string) (path string, found bool, err error) {
	path = computedPath(home, cwd, session)
	switch _, err := os.Lstat(path); {
	case err == nil:
		return path, true, nil
	case !errors.Is(err, fs.ErrNotExist) && !isNameTooLong(err):
		return path, false, err
	}
	projects, err := os.ReadDir(projectsDir(home))
	if errors.Is(err, fs.ErrNotExist) {
		return path, false, nil
	}
	if err != nil {
		return path, false, err
	}
	if len(projects) > maxProjects {
		return path, false, fmt.Errorf("over %d directories of transcripts", maxProjects)
	}
	var hits []string
	for _, d := range projects {
		at := filepath.Join(projectsDir(home), d.Name(), session+".jsonl")
		if _, err := os.Lstat(at); err == nil {
			hits = append(hits, at)
		}
	}
	switch len(hits) {
	case 0:
		return path, false, nil
	case 1:
		return hits[0], true, nil
	}
	return path, false, errSeveral
}

// position gives the present end of a transcript; false where there is none.
func position(ctx context.Context, home, cwd, session string) (agent.Position, bool, error) {
	path, found, err := locate(home, cwd, session)
	if err != nil || !found {
		return agent.Position{}, false, err
	}
	f, err := journal.Open(path, RecordLimit)
	if errors.Is(err, fs.ErrNotExist) {
		return agent.Position{}, false, nil
	}
	if err != nil {
		return agent.Position{}, false, err
	}
	defer f.Close()
	end, err := f.End(ctx)
	return agent.Position{Path: path, File: f.ID, ThreadID: session, Offset: end, Ordinal: -1}, err == nil, err
}

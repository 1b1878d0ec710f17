package codex

import (
	"context"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/draft"
)

// What only the tests of this package see.

// ParseArgs is parseArgs.
func ParseArgs(argv []string) (tui, noDaemon, remote bool) {
	a := parseArgs(argv)
	return a.tui, a.noDaemon, a.remote
}

// ParseDaemon is parseDaemon.
func ParseDaemon(data []byte) (pid int, boot string, start uint64, err error) {
	r, err := parseDaemon(data)
	return r.pid, r.bootID, r.start, err
}

// RolloutName is rolloutName.
var RolloutName = rolloutName

// FindLock is findLock.
func FindLock(table string, dev, ino uint64) int {
	return findLock(table, agent.FileID{Dev: dev, Ino: ino})
}

// SetReach replaces AcceptanceLimit.
func (a *Adapter) SetReach(n int64) { a.reach = n }

// Visible is draft.Visible.
var Visible = draft.Visible

// Span is where a line stands.
type Span struct{ Start, End int64 }

// Forwards and Backwards give the complete lines of a rollout as the two readers
// see them.
func Forwards(path string) (out []Span, err error) {
	r, err := openRollout(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	_, _, err = r.scan(context.Background(), 0, CompletionLimit, func(l line) error {
		out = append(out, Span{l.start, l.end})
		return nil
	})
	return out, err
}

// Backwards is Forwards from the other end.
func Backwards(path string) (out []Span, err error) {
	r, err := openRollout(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	_, err = r.back(context.Background(), CompletionLimit, func(l line) error {
		out = append(out, Span{l.start, l.end})
		return nil
	})
	return out, err
}

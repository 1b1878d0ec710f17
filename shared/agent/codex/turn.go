package codex

import (
	"context"
	"errors"
	"io"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
)

// openTurn is the last turn of a rollout, if it has no terminal record.
type openTurn struct {
	id    string
	at    time.Time
	start agent.Position // where its first record begins
}

// turnCache is what was found in one state of one rollout.
type turnCache struct {
	id   agent.FileID
	size int64
	turn openTurn // zero: none open
}

// lastTurn reads a rollout backwards to its last task_started and gives that turn
// if nothing after it ends it. Whether the process that wrote it still lives is
// for the caller.
func (a *Adapter) lastTurn(ctx context.Context, f *rule.File, path, thread string) (openTurn, error) {
	r, err := openRollout(path)
	if err != nil {
		return openTurn{}, err
	}
	defer r.Close()
	a.mu.Lock()
	c, ok := a.turns[path]
	a.mu.Unlock()
	if ok && c.id == r.id && c.size == r.size {
		return c.turn, nil
	}
	ended := map[string]bool{}
	var turn openTurn
	whole, err := r.back(ctx, CompletionLimit, func(l line) error {
		rec, err := record(f, l)
		if err != nil {
			return err
		}
		switch rec.Kind {
		case rule.TurnCompleted, rule.TurnFailed, rule.TurnAborted:
			ended[rec.Turn] = true
		case rule.TurnStarted:
			if !ended[rec.Turn] {
				turn = openTurn{id: rec.Turn, at: rec.At, start: agent.Position{
					Path: path, File: r.id, ThreadID: thread, Offset: l.start, Ordinal: rec.Ordinal - 1,
				}}
			}
			return io.EOF
		}
		return nil
	})
	if err == nil && !whole {
		err = errors.New("the last turn begins too far back in the rollout")
	}
	if err != nil {
		return openTurn{}, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.turns) >= maxCached {
		clear(a.turns)
	}
	a.turns[path] = turnCache{r.id, r.size, turn}
	return turn, nil
}

// living reports whether the turn was begun by the present holder: one that a dead
// process left open is never closed (codex §5).
func (a *Adapter) living(t openTurn, proc agent.Process) bool {
	if t.id == "" || !holder(proc).Alive() {
		return false
	}
	return t.at.IsZero() || !t.at.Before(a.started(holder(proc)).Add(-clockSlack))
}

package codex

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

// Progress reads a task from checkpoint on (codex §5).
//
// The checkpoint that it gives back stands before whatever must be read again to
// reach the same verdict: the terminal record, the record that began another turn,
// or the oldest call without an answer. So two readings of equal evidence have
// equal fingerprints wherever they begin, and a checkpoint never goes back.
func (a *Adapter) Progress(ctx context.Context, task agent.Task, checkpoint agent.Position) (agent.Progress, error) {
	f, err := a.file(task.Process.Version)
	if err != nil {
		return agent.Progress{}, err
	}
	if checkpoint == (agent.Position{}) {
		checkpoint = task.Start
	}
	if checkpoint.File != task.Start.File || checkpoint.Path != task.Start.Path || checkpoint.Offset < task.Start.Offset {
		return agent.Progress{}, fmt.Errorf("follow a turn: the checkpoint is of another rollout or before the turn")
	}
	alive, known := a.Alive(ctx, task.Process)
	p, err := a.reread(ctx, f, task, checkpoint)
	if err != nil || p.State != agent.Open || alive || !known {
		return p, err
	}
	// The holder was dead before this reading began, so the reading was the last
	// look that there can be.
	p.State = agent.Lost
	p.Waiting, p.Calls = nil, nil
	p.Fingerprint = fingerprint(task, p.State, holder(task.Process).String())
	return p, nil
}

// reread gives the last reading again where the file has not changed since: a
// sweep over many quiet turns then costs a stat for each. Only an open turn is
// remembered, so that an end is really read twice.
func (a *Adapter) reread(ctx context.Context, f *rule.File, task agent.Task, from agent.Position) (agent.Progress, error) {
	key := task.TurnID + " " + from.Path
	seen, statErr := os.Stat(from.Path)
	if statErr == nil {
		a.mu.Lock()
		c, ok := a.open[key]
		a.mu.Unlock()
		if ok && c.from == from && c.id == fileID(seen) && c.size == seen.Size() && c.modified.Equal(seen.ModTime()) {
			return c.progress, nil
		}
	}
	p, err := a.read(ctx, f, task, from)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.open, key)
	if err == nil && statErr == nil && p.State == agent.Open {
		if len(a.open) >= maxCached {
			clear(a.open)
		}
		a.open[key] = openReading{from: from, id: fileID(seen), size: seen.Size(), modified: seen.ModTime(), progress: p}
	}
	return p, err
}

// openReading is what was read of an open turn in one state of its rollout, which
// was looked at before the reading.
type openReading struct {
	from     agent.Position
	id       agent.FileID
	size     int64
	modified time.Time
	progress agent.Progress
}

// read follows the records of the task once.
func (a *Adapter) read(ctx context.Context, f *rule.File, task agent.Task, from agent.Position) (agent.Progress, error) {
	r, err := openAt(from)
	if errors.Is(err, errMoved) {
		return broken(task, from, err), nil
	}
	if err != nil {
		return agent.Progress{}, fault.New(fault.ObservationUnavail, "follow a turn: %w", err)
	}
	defer r.Close()
	p := agent.Progress{State: agent.Open}
	at := agent.Position{Path: from.Path, File: from.File, ThreadID: task.ThreadID, Offset: from.Offset, Ordinal: from.Ordinal}
	end := at           // behind the last record read
	var calls []pending // without an answer, oldest first
	var next *ending    // another turn began
	var last *ending    // our turn ended
	previous := from.Ordinal
	whole, err := a.follow(ctx, f, r, from.Offset, func(l line, rec rule.Record) error {
		here := ending{start: l.start, ordinal: previous, rec: rec}
		end.Offset = l.end
		if rec.Ordinal >= 0 {
			previous, end.Ordinal = rec.Ordinal, rec.Ordinal
		}
		switch rec.Kind {
		case rule.TurnStarted:
			if rec.Turn != task.TurnID && next == nil {
				next = &here
			}
		case rule.TurnCompleted, rule.TurnFailed, rule.TurnAborted:
			if rec.Turn == task.TurnID && last == nil {
				here.digest = lineDigest(l)
				last = &here
			}
		case rule.CallBegan:
			if next == nil && rec.Call != nil && (rec.Turn == "" || rec.Turn == task.TurnID) {
				calls = append(calls, pending{call: *rec.Call, start: l.start, ordinal: here.ordinal})
			}
		case rule.CallOutput:
			if rec.Call != nil {
				calls = answered(calls, rec.Call.ID)
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, errCorrupt) || errors.Is(err, errTooLong):
		return broken(task, from, err), nil
	case err != nil:
		return agent.Progress{}, fault.New(fault.ObservationUnavail, "follow a turn: %w", err)
	case !whole && last == nil:
		return broken(task, from, fmt.Errorf("over %d bytes without the end of the turn", CompletionLimit)), nil
	}
	p.Checkpoint = end
	p.Digest = fingerprint(task, "read", strconv.FormatInt(end.Offset, 10))
	switch {
	case last != nil:
		finish(&p, task, *last)
		p.Checkpoint.Offset, p.Checkpoint.Ordinal = last.start, last.ordinal
	case next != nil:
		p.State = agent.NextBegan
		p.Fingerprint = fingerprint(task, p.State, next.rec.Turn)
		p.Checkpoint.Offset, p.Checkpoint.Ordinal = next.start, next.ordinal
	default:
		p.Fingerprint = fingerprint(task, p.State, "")
		if len(calls) > 0 {
			p.Checkpoint.Offset, p.Checkpoint.Ordinal = calls[0].start, calls[0].ordinal
		}
		for _, c := range calls {
			if c.call.Asks {
				p.Calls = append(p.Calls, agent.Call{ID: c.call.ID, Name: c.call.Name, Kind: c.call.Kind, Command: c.call.Command, Cwd: c.call.Cwd, Asks: asksOf(c.call)})
			}
		}
		if len(p.Calls) > 0 { // dialogs come in the order of their calls
			p.Waiting = &p.Calls[0]
		}
	}
	return p, nil
}

// ending is a record that decides.
type ending struct {
	start   int64
	ordinal int64 // of the record before it
	rec     rule.Record
	digest  string
}

// pending is a call without an answer.
type pending struct {
	call    rule.Call
	start   int64
	ordinal int64
}

func answered(calls []pending, id string) []pending {
	for i, c := range calls {
		if c.call.ID == id {
			return append(calls[:i], calls[i+1:]...)
		}
	}
	return calls
}

// follow gives each record from offset on.
func (a *Adapter) follow(ctx context.Context, f *rule.File, r *rollout, offset int64, each func(line, rule.Record) error) (bool, error) {
	_, whole, err := r.scan(ctx, offset, CompletionLimit, func(l line) error {
		rec, err := record(f, l)
		if err != nil {
			return err
		}
		return each(l, rec)
	})
	return whole, err
}

// finish fills in what the terminal record says.
func finish(p *agent.Progress, task agent.Task, e ending) {
	switch e.rec.Kind {
	case rule.TurnCompleted:
		p.State = agent.Completed
	case rule.TurnFailed:
		p.State, p.Error = agent.Failed, e.rec.Error
		if p.Error == "" {
			p.Error = e.rec.Code
		}
	case rule.TurnAborted:
		p.State, p.Error = agent.Aborted, e.rec.Reason
	}
	p.Text, p.ID, p.At = e.rec.Text, task.TurnID, e.rec.At
	if p.At.IsZero() {
		p.At = e.rec.Ended
	}
	p.Fingerprint = fingerprint(task, p.State, strconv.FormatInt(e.start, 10)+" "+e.digest)
}

// broken says that the rollout can no longer be trusted.
func broken(task agent.Task, at agent.Position, err error) agent.Progress {
	p := agent.Progress{State: agent.Broken, Error: err.Error(), Checkpoint: at}
	if errors.Is(err, errMoved) {
		p.Error = errMoved.Error() // without the path
	}
	p.Fingerprint = fingerprint(task, p.State, p.Error)
	p.Digest = p.Fingerprint
	return p
}

// fingerprint is over thread, turn, state and what decided.
func fingerprint(task agent.Task, state agent.ProgressState, evidence string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{task.ThreadID, task.TurnID, string(state), evidence}, "\x00")))
	return hex.EncodeToString(sum[:])
}

func lineDigest(l line) string {
	sum := sha256.Sum256(l.data)
	return hex.EncodeToString(sum[:])
}

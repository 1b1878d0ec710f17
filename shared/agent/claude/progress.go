package claude

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/journal"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
)

// Progress reads a task to the present end of its transcript (claude §5).
//
// What belongs to a turn its chain of parents tells, so a turn is always followed
// from its first record; the checkpoint is only proof that the file is still the
// one that was read. What was read of an open turn is kept, and the next reading
// goes on behind it. An end is never kept: it is really read twice.
func (a *Adapter) Progress(ctx context.Context, task agent.Task, checkpoint agent.Position) (agent.Progress, error) {
	file, err := a.file(task.Process.Version)
	if err != nil {
		return agent.Progress{}, err
	}
	if checkpoint == (agent.Position{}) {
		checkpoint = task.Start
	}
	if checkpoint.File != task.Start.File || checkpoint.Path != task.Start.Path || checkpoint.Offset < task.Start.Offset {
		return agent.Progress{}, fmt.Errorf("follow a turn: the checkpoint is of another transcript or before the turn")
	}
	// The registry first: a process that was idle before the reading has written all
	// but its last records by then, and one that was dead all of them.
	alive, known := a.Alive(ctx, task.Process)
	st := a.standing(ctx, task, alive || !known)
	f := a.follower(file, task)
	f.mu.Lock()
	defer f.mu.Unlock()
	err = f.read(ctx, checkpoint)
	switch {
	case errors.Is(err, journal.ErrMoved) || errors.Is(err, journal.ErrTooLong) || errors.Is(err, errCorrupt) || errors.Is(err, errEndless):
		a.forget(task)
		return f.broken(checkpoint, err), nil
	case err != nil:
		return agent.Progress{}, fault.New(fault.ObservationUnavail, "follow a turn: %w", err)
	}
	p := f.progress(st)
	if p.State != agent.Open {
		a.forget(task)
	}
	return p, nil
}

// errEndless means that a turn is longer than what is read of one.
var errEndless = fmt.Errorf("over %d bytes without the end of the turn", CompletionLimit)

// standing is what the registry says of a task's process, and since when.
type standing struct {
	at    stand
	since time.Time
}

type stand int

const (
	unclear   stand = iota // cannot be read, or says nothing
	working                // busy
	asking                 // waits for an answer to a dialog
	quiet                  // idle, or a panel of its own is open
	resting                // idle for so long that nothing more will be written
	elsewhere              // holds another session since long
	dead
)

// standing reads it. Only what is of this very process and session counts.
func (a *Adapter) standing(ctx context.Context, task agent.Task, alive bool) standing {
	if !alive {
		return standing{at: dead}
	}
	e, err := a.entry(ctx, task.Process)
	if err != nil {
		return standing{}
	}
	out := standing{since: e.Since}
	long := !e.Since.IsZero() && a.now().Sub(e.Since) >= idleGrace
	switch {
	case e.Session != task.ThreadID && long:
		out.at = elsewhere
	case e.Session != task.ThreadID:
	case e.Status == statusBusy:
		out.at = working
	case e.Status == statusWaiting && e.Waiting == waitingPanel:
		out.at = quiet
	case e.Status == statusWaiting:
		out.at = asking
	case e.Status == statusIdle && long:
		out.at = resting
	case e.Status == statusIdle:
		out.at = quiet
	}
	return out
}

// follower gives what is known of an open turn, or begins anew.
func (a *Adapter) follower(file *rule.File, task agent.Task) *follower {
	key := task.TurnID + " " + task.Start.Path
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.turns[key]; f != nil && f.task.Start == task.Start {
		return f
	}
	if len(a.turns) >= maxCached {
		clear(a.turns)
	}
	f := newFollower(file, task)
	a.turns[key] = f
	return f
}

func (a *Adapter) forget(task agent.Task) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.turns, task.TurnID+" "+task.Start.Path)
}

// follower reads the records of one turn. What a record means the rules of the
// version say, where it belongs its links.
type follower struct {
	mu     sync.Mutex
	rules  *rule.File
	task   agent.Task
	offset int64           // behind the last line that was read
	chain  map[string]bool // records of the turn
	first  record          // its prompt
	begun  bool
	held   map[string][]meant // records whose place is not known yet, by what they wait for
	holds  int                // how many

	calls  []agent.Call // without an answer, oldest first
	output bool         // anything came of the prompt
	answer answer       // last message of the model
	ended  *ending
	next   *ending // another prompt
}

// answer is one message of the model, of one record for each of its parts.
type answer struct {
	id, stop string
	texts    []string
}

// ending is a record that decides.
type ending struct {
	state  agent.ProgressState
	start  int64
	rec    record
	digest string
	text   string
}

func newFollower(rules *rule.File, task agent.Task) *follower {
	return &follower{rules: rules, task: task, offset: task.Start.Offset, chain: map[string]bool{}, held: map[string][]meant{}}
}

// read takes what was added since the last reading.
func (f *follower) read(ctx context.Context, checkpoint agent.Position) error {
	at := f.task.Start
	at.Offset = max(f.offset, checkpoint.Offset)
	file, err := journal.OpenAt(at, RecordLimit)
	if err != nil {
		return err
	}
	defer file.Close()
	if file.Size == f.offset {
		return nil
	}
	if !f.begun {
		f.held, f.holds = map[string][]meant{}, 0
		if err := f.early(ctx, file); err != nil {
			return err
		}
	}
	end, whole, err := file.Scan(ctx, f.offset, f.task.Start.Offset+CompletionLimit-f.offset, func(l journal.Line) error {
		r, err := parseRecord(l)
		if err != nil {
			return err
		}
		return f.take(l, r)
	})
	f.offset = end
	switch {
	case err != nil:
		return err
	case !whole && f.ended == nil:
		return errEndless
	}
	return nil
}

// take follows one record.
func (f *follower) take(l journal.Line, r record) error {
	if !f.begun {
		if r.UUID != f.task.TurnID || !r.prompts() {
			return fmt.Errorf("%w: the turn does not begin at byte %d", errCorrupt, l.Start)
		}
		f.begun, f.first, f.chain[r.UUID] = true, r, true
		f.adopt(r.UUID)
		f.adopt(promptKey + r.Prompt)
		return nil
	}
	switch {
	case r.Session != f.task.ThreadID || r.Sidechain || r.UUID == "" || f.chain[r.UUID]:
		return nil
	case r.prompts() && !f.adds(r):
		// A second program may work on the same session (`claude -p --resume`): the
		// process in the pane knows nothing of it (claude §10).
		if f.next == nil && r.Source != sourceSDK {
			f.next = &ending{start: l.Start, rec: r, digest: lineDigest(l)}
		}
		return nil
	}
	m := f.meaning(l, r)
	if !f.joins(r, m.means.Kind) {
		f.hold(m)
		return nil
	}
	f.apply(m)
	f.adopt(r.UUID)
	return nil
}

// meant is a record with what the rules say of it.
type meant struct {
	ending
	means rule.Record
}

func (f *follower) meaning(l journal.Line, r record) meant {
	// A text that was cut within a character is no JSON for the rules: such a line
	// means nothing, but it belongs to the chain and answers calls.
	means, err := f.rules.Record(l.Data)
	if err != nil {
		means = rule.Record{Kind: rule.Other}
	}
	return meant{ending{start: l.Start, rec: r, digest: lineDigest(l), text: means.Error}, means}
}

// Records are not written in the order of the chain: a call was seen in the file
// before the prompt that it answers [measured, 2.1.263]. So what does not belong yet
// is held until its parent comes, and what stands lookBack before the prompt counts.
const (
	lookBack  = 1 << 20
	maxHeld   = 4096
	promptKey = "prompt " // before a prompt's id; a result belongs by it
)

// early holds what was written shortly before the prompt.
func (f *follower) early(ctx context.Context, file *journal.File) error {
	from := max(0, f.task.Start.Offset-lookBack)
	_, _, err := file.Scan(ctx, from, f.task.Start.Offset-from, func(l journal.Line) error {
		if l.Start >= f.task.Start.Offset {
			return io.EOF
		}
		r, err := parseRecord(l)
		if err != nil || r.Session != f.task.ThreadID || r.Sidechain || r.UUID == "" || r.prompts() {
			return nil //nolint:nilerr // the first one is cut
		}
		f.hold(f.meaning(l, r))
		return nil
	})
	return err
}

// hold keeps a record whose place in the chain is not known yet.
func (f *follower) hold(m meant) {
	key := m.rec.Parent
	switch {
	case m.means.Kind == rule.Compacted:
		key = m.rec.LogicalParent
	case !f.begun && m.rec.Type == "user" && !m.rec.Plain && m.rec.Prompt != "":
		key = promptKey + m.rec.Prompt
	}
	if key == "" || f.holds >= maxHeld {
		return
	}
	f.holds++
	f.held[key] = append(f.held[key], m)
}

// adopt takes what was held for a record, and all that follows from it.
func (f *follower) adopt(key string) {
	list := f.held[key]
	delete(f.held, key)
	f.holds -= len(list)
	for _, m := range list {
		if !f.chain[m.rec.UUID] {
			f.apply(m)
			f.adopt(m.rec.UUID)
		}
	}
}

// apply takes one record of the chain.
func (f *follower) apply(m meant) {
	r, here := m.rec, m.ending
	f.chain[r.UUID] = true
	if f.ended != nil && f.ended.state != agent.Failed {
		return
	}
	switch m.means.Kind {
	case rule.TurnAborted:
		here.state, here.text = agent.Aborted, strings.Trim(m.means.Reason, "[]")
		f.ended, f.calls = &here, nil
	case rule.TurnFailed:
		here.state = agent.Failed
		f.ended, f.calls = &here, nil
	case rule.TurnCompleted:
		f.closes(here)
	default:
		f.output = f.output || r.Type == "user" && len(r.Blocks) > 0
		if r.Type == "assistant" && r.Model != modelSynthetic { // "No response requested." is no answer
			f.assistant(r, m.means)
		}
		for _, b := range r.Blocks {
			if b.Type == "tool_result" {
				f.calls = answered(f.calls, string(b.Use))
			}
		}
	}
}

// adds reports whether a prompt is no new one but something that the agent itself
// puts into the turn, such as what a hook has to say: it bears the turn's own id.
func (f *follower) adds(r record) bool {
	return r.Meta && f.chain[r.Parent] && r.Prompt != "" && r.Prompt == f.first.Prompt
}

// joins reports whether a record belongs to the turn: its parent does, across a
// compaction its parent before it. A compaction whose parents are not known joins
// while nobody else's prompt lies between, and a result by the prompt's id.
func (f *follower) joins(r record, kind rule.Kind) bool {
	switch {
	case f.chain[r.Parent]:
		return true
	case kind == rule.Compacted:
		return f.chain[r.LogicalParent] || f.next == nil && f.ended == nil
	case r.Type == "user" && !r.Plain:
		return r.Prompt != "" && r.Prompt == f.first.Prompt
	}
	return false
}

// assistant takes one part of a message of the model.
func (f *follower) assistant(r record, means rule.Record) {
	f.ended = nil // it went on after a failure
	f.output = true
	if r.Message != f.answer.id || r.Message == "" {
		f.answer = answer{id: r.Message}
	}
	f.answer.stop = r.Stop
	for _, b := range r.Blocks {
		switch b.Type {
		case "text":
			f.answer.texts = append(f.answer.texts, string(b.Text))
		case "tool_use":
			f.calls = append(f.calls, callOf(b, means.Call, r.Cwd))
		}
	}
}

// closes takes the mark that the turn took so and so long. Alone it proves
// nothing: 2.1.263 writes it after an interruption, too (claude §11).
func (f *follower) closes(here ending) {
	if f.ended != nil {
		return
	}
	switch f.answer.stop {
	case "", stopToolUse:
	case stopEndTurn:
		here.state, here.text = agent.Completed, f.answer.text()
		f.ended = &here
	default:
		here.state, here.text = agent.Failed, "the model stopped: "+f.answer.stop
		f.ended = &here
	}
}

func (a answer) text() string { return strings.Join(a.texts, "\n\n") }

// Values that the records use.
const (
	sourceSDK      = "sdk"
	modelSynthetic = "<synthetic>"
	stopEndTurn    = "end_turn"
	stopToolUse    = "tool_use"
)

// progress judges what was read, with what the process says of itself.
func (f *follower) progress(st standing) agent.Progress {
	at := f.task.Start
	at.Offset = f.offset
	p := agent.Progress{State: agent.Open, Checkpoint: at, Digest: fingerprint(f.task, "read", strconv.FormatInt(f.offset, 10))}
	// What follows an end, or nothing any more, is proof that it was one.
	over := st.at == quiet || st.at == resting || st.at == elsewhere || st.at == dead || f.next != nil
	switch {
	case f.ended != nil && (over || f.ended.state == agent.Aborted):
		f.finish(&p, *f.ended)
	case f.ended != nil: // the process still works: it may go on
		p.Checkpoint.Offset = max(f.ended.start, f.task.Start.Offset)
	case f.next != nil:
		p.State = agent.NextBegan
		p.Fingerprint = fingerprint(f.task, p.State, f.next.rec.UUID)
		p.Checkpoint.Offset = f.next.start
	case st.at == dead:
		p.State = agent.Lost
		p.Fingerprint = fingerprint(f.task, p.State, f.task.Process.Inc.String())
	case st.at == elsewhere:
		p.State = agent.NextBegan
		p.Fingerprint = fingerprint(f.task, p.State, "another session")
	case st.at == resting && !f.output && !st.since.Before(f.first.At):
		// Interrupted before any output: nothing is written at all, and the text is back
		// in the composer (claude §5).
		p.State, p.Error, p.ID, p.At = agent.Aborted, "cancelled before any output", f.task.TurnID, f.first.At
		p.Fingerprint = fingerprint(f.task, p.State, "no output")
	}
	if p.State != agent.Open {
		return p
	}
	p.Fingerprint = fingerprint(f.task, p.State, "")
	switch {
	case len(f.calls) == 0:
	case st.at == asking || st.at == unclear:
		p.Calls = append(p.Calls, f.calls...)
		p.Waiting = &p.Calls[0] // dialogs come in the order of their calls
	default: // the registry may have missed a dialog
		p.Unsaid = append(p.Unsaid, f.calls...)
	}
	return p
}

// finish fills in what the deciding record says.
func (f *follower) finish(p *agent.Progress, e ending) {
	p.State, p.ID, p.At = e.state, f.task.TurnID, e.rec.At
	switch e.state {
	case agent.Completed:
		p.Text = e.text
	default:
		p.Error = e.text
	}
	p.Checkpoint.Offset = max(e.start, f.task.Start.Offset)
	p.Fingerprint = fingerprint(f.task, p.State, strconv.FormatInt(e.start, 10)+" "+e.digest)
}

// broken says that the transcript can no longer be trusted.
func (f *follower) broken(at agent.Position, err error) agent.Progress {
	p := agent.Progress{State: agent.Broken, Error: err.Error(), Checkpoint: at}
	if errors.Is(err, journal.ErrMoved) {
		p.Error = journal.ErrMoved.Error() // without the path
	}
	p.Fingerprint = fingerprint(f.task, p.State, p.Error)
	p.Digest = p.Fingerprint
	return p
}

func answered(calls []agent.Call, id string) []agent.Call {
	for i, c := range calls {
		if c.ID == id {
			return append(calls[:i:i], calls[i+1:]...)
		}
	}
	return calls
}

// fingerprint is over session, turn, state and what decided.
func fingerprint(task agent.Task, state agent.ProgressState, evidence string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{task.ThreadID, task.TurnID, string(state), evidence}, "\x00")))
	return hex.EncodeToString(sum[:])
}

func lineDigest(l journal.Line) string {
	sum := sha256.Sum256(l.Data)
	return hex.EncodeToString(sum[:])
}

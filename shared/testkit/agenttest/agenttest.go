// Package agenttest is the contract of package agent's seam as a test that every
// adapter runs: what handoff and watchd rely on, whichever agent is behind it.
//
// An adapter's own tests make a Subject: a fake home with a living process in it,
// and the means to write what the agent itself would write. Run opens a fresh one
// for each case.
package agenttest

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
)

// Subject is one agent that is idle in a proven thread in which nothing was said
// yet.
type Subject interface {
	Adapter() agent.Adapter
	Process() agent.Process
	Thread() string

	// What the agent would write.
	Prompt(text string)      // takes a request and begins a turn
	Work()                   // anything else that belongs to the turn
	Call(id, command string) // asks a person about a command
	Answered(id string)      // the call has a result
	Complete(text string)    // the turn's end
	Fail(message string)     // its end by an error
	Interrupted()            // its end by a person
	Part()                   // the first half of one more record

	// What may happen to it.
	Ambiguous() // the process's thread can no longer be told
	Kill()
}

// patience is how long a verdict may stay pending that is none.
const patience = 5 * time.Second

// Run tests an adapter against the contract.
func Run(t *testing.T, open func(t *testing.T) Subject) {
	for _, tc := range []struct {
		name string
		test func(*check)
	}{
		{"identity", identity},
		{"acceptance", accepted},
		{"not accepted", notAccepted},
		{"work", work},
		{"completed", func(c *check) { ended(c, func() { c.Complete("the answer") }, agent.Completed, "the answer") }},
		{"completed without a text", func(c *check) { ended(c, func() { c.Complete("") }, agent.Completed, "") }},
		{"failed", func(c *check) { ended(c, func() { c.Fail("no tokens left") }, agent.Failed, "no tokens left") }},
		{"interrupted", func(c *check) { ended(c, c.Interrupted, agent.Aborted, "") }},
		{"call", call},
		{"next began", next},
		{"broken", broken},
		{"ambiguous", ambiguous},
		{"killed", killed},
		{"requests", requests},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			s := open(t)
			tc.test(&check{T: t, Subject: s, ctx: ctx, a: s.Adapter()})
		})
	}
}

// check is one case.
type check struct {
	*testing.T
	Subject
	ctx context.Context
	a   agent.Adapter
}

func (c *check) identify() agent.Identity {
	c.Helper()
	id, err := c.a.Identify(c.ctx, c.Process())
	if err != nil {
		c.Fatal(err)
	}
	return id
}

func (c *check) prepare(text string) agent.Prepared {
	c.Helper()
	p, err := c.a.Prepare(text)
	if err != nil {
		c.Fatal(err)
	}
	return p
}

func (c *check) anchor() agent.Anchor {
	c.Helper()
	a, err := c.a.Anchor(c.ctx, c.Process())
	if err != nil {
		c.Fatal(err)
	}
	return a
}

func (c *check) verdict(anchor agent.Anchor, p agent.Prepared, want agent.Verdict) agent.Acceptance {
	c.Helper()
	end := time.Now().Add(patience)
	for {
		acc, got, err := c.a.Accept(c.ctx, anchor, p)
		switch {
		case err != nil:
			c.Fatal(err)
		case got == want:
			return acc
		case got != agent.Pending || time.Now().After(end):
			c.Fatalf("verdict %s, want %s", got, want)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// sent is a request that was accepted.
func (c *check) sent(text string) agent.Acceptance {
	c.Helper()
	p, anchor := c.prepare(text), c.anchor()
	c.Prompt(text)
	return c.verdict(anchor, p, agent.Accepted)
}

func (c *check) progress(task agent.Task, at agent.Position) agent.Progress {
	c.Helper()
	p, err := c.a.Progress(c.ctx, task, at)
	if err != nil {
		c.Fatal(err)
	}
	return p
}

func identity(c *check) {
	proc := c.Process()
	if proc.Agent != c.a.Kind() || proc.Home == "" || proc.Cwd == "" || proc.Version == "" || proc.Class != agent.Tested {
		c.Errorf("process %+v", proc)
	}
	if id := c.identify(); id.State != agent.Resolved || id.ThreadID != c.Thread() || id.Activity != agent.ActivityIdle || len(id.Files) != 0 {
		c.Errorf("identity %+v, want thread %s", id, c.Thread())
	}
	if alive, known := c.a.Alive(c.ctx, proc); !alive || !known {
		c.Errorf("alive %v, known %v", alive, known)
	}
	if len(c.a.Dirs(proc)) == 0 {
		c.Error("no place where a transcript may appear")
	}
	if !c.a.Interrupt().Valid() {
		c.Errorf("interrupt key %q", c.a.Interrupt())
	}
	if _, ok, err := c.a.Current(c.ctx, proc); ok || err != nil {
		c.Errorf("a turn before the first request: %v, %v", ok, err)
	}
}

func accepted(c *check) {
	p, anchor := c.prepare("do the work"), c.anchor()
	if anchor.ThreadID != c.Thread() || anchor.Version != 1 || anchor.TakenAt == 0 || len(anchor.Dirs) == 0 {
		c.Errorf("anchor %+v", anchor)
	}
	if acc := c.verdict(anchor, p, agent.Pending); acc.AcceptanceID != "" {
		c.Errorf("a match before the request: %+v", acc)
	}
	c.Prompt("do the work")
	acc := c.verdict(anchor, p, agent.Accepted)
	sum, err := anchor.Fingerprint()
	if err != nil {
		c.Fatal(err)
	}
	if acc.Source == "" || acc.Kind != "native_user_turn" || acc.NativeThreadID != c.Thread() || acc.RequestHash != p.RequestHash ||
		acc.AcceptanceID == "" || acc.AcceptedAt == 0 || acc.AnchorFingerprint != sum {
		c.Errorf("acceptance %+v", acc)
	}
	task := acc.Task
	if task.Version != 1 || task.ThreadID != c.Thread() || task.TurnID == "" || task.Start.Path == "" || task.Start.File == (agent.FileID{}) || task.Process.Inc != anchor.Process.Inc {
		c.Errorf("task %+v", task)
	}
	stored, err := agent.CanonicalJSON(acc)
	if err != nil {
		c.Fatal(err)
	}
	if back, err := agent.ParseAcceptance(stored); err != nil || !cmp.Equal(back, acc) {
		c.Errorf("stored and read again: %v\n%s", err, cmp.Diff(acc, back))
	}
	if again := c.verdict(anchor, p, agent.Accepted); again.EvidenceFingerprint != acc.EvidenceFingerprint {
		c.Error("a second look gives other evidence")
	}
	if !slices.Contains(c.a.Files(task), task.Start.Path) {
		c.Errorf("files %v without the transcript", c.a.Files(task))
	}

	c.Complete("done")
	later := c.anchor()
	c.Prompt("do the work")
	c.verdict(later, p, agent.Accepted)
	c.verdict(anchor, p, agent.Uncertain) // now two records match
}

func notAccepted(c *check) {
	c.sent("do the work")
	c.Complete("done")
	p, anchor := c.prepare("do the work"), c.anchor()
	c.verdict(anchor, p, agent.Pending)
	c.Prompt("do the work, too")
	c.verdict(anchor, p, agent.Pending)
	if err := os.Truncate(anchor.Files[0].Path, anchor.Files[0].Offset-1); err != nil {
		c.Fatal(err)
	}
	c.verdict(anchor, p, agent.Uncertain)
}

func work(c *check) {
	acc := c.sent("do the work")
	first := c.progress(acc.Task, agent.Position{})
	if first.State != agent.Open || first.Digest == "" || first.Fingerprint == "" || first.Waiting != nil {
		c.Fatalf("progress %+v", first)
	}
	if id := c.identify(); id.Activity != agent.ActivityWorking {
		c.Errorf("activity %s", id.Activity)
	}
	if _, err := c.a.Anchor(c.ctx, c.Process()); !fault.Is(err, fault.TerminalNotIdle) {
		c.Errorf("an anchor in the middle of a turn: %v", err)
	}
	if task, ok, err := c.a.Current(c.ctx, c.Process()); err != nil || !ok || task.TurnID != acc.Task.TurnID || task.Start != acc.Task.Start {
		c.Errorf("current %+v, %v, %v, want %+v", task, ok, err, acc.Task)
	}
	if same := c.progress(acc.Task, first.Checkpoint); same.Digest != first.Digest {
		c.Error("the digest changes although nothing was written")
	}
	c.Work()
	second := c.progress(acc.Task, first.Checkpoint)
	if second.State != agent.Open || second.Digest == first.Digest || second.Checkpoint.Offset <= first.Checkpoint.Offset {
		c.Errorf("after a record: %+v", second)
	}
	c.Part()
	if part := c.progress(acc.Task, second.Checkpoint); part.State != agent.Open || part.Digest != second.Digest {
		c.Errorf("after half a record: %+v", part)
	}
}

func ended(c *check, end func(), state agent.ProgressState, text string) {
	acc := c.sent("do the work")
	open := c.progress(acc.Task, agent.Position{})
	c.Work()
	end()
	p := c.progress(acc.Task, open.Checkpoint)
	said := p.Text
	if state == agent.Failed {
		said = p.Error
	}
	if p.State != state || said != text || p.ID == "" || p.At.IsZero() || p.Waiting != nil {
		c.Errorf("progress %+v", p)
	}
	if p.Fingerprint == "" || p.Fingerprint == open.Fingerprint {
		c.Error("the end has no fingerprint of its own")
	}
	for _, at := range []agent.Position{{}, open.Checkpoint, p.Checkpoint} {
		if again := c.progress(acc.Task, at); again.State != p.State || again.Fingerprint != p.Fingerprint || again.Text != p.Text {
			c.Errorf("from byte %d: %+v", at.Offset, again)
		}
	}
	if id := c.identify(); id.Activity != agent.ActivityIdle {
		c.Errorf("activity %s", id.Activity)
	}
	if task, ok, err := c.a.Current(c.ctx, c.Process()); ok || err != nil {
		c.Errorf("current %+v, %v", task, err)
	}
	next := c.sent("go on")
	if again := c.progress(acc.Task, p.Checkpoint); again.State != p.State || again.Fingerprint != p.Fingerprint {
		c.Errorf("after the next request: %+v", again)
	}
	if p := c.progress(next.Task, agent.Position{}); p.State != agent.Open || p.Fingerprint == open.Fingerprint {
		c.Errorf("the next turn: %+v", p)
	}
}

func call(c *check) {
	acc := c.sent("do the work")
	c.Call("call-1", "rm -r build")
	p := c.progress(acc.Task, agent.Position{})
	if p.State != agent.Open || p.Waiting == nil || len(p.Calls) != 1 {
		c.Fatalf("progress %+v", p)
	}
	if w := *p.Waiting; w.ID != "call-1" || w.Kind != "run_command" || w.Command != "rm -r build" || w.Cwd != c.Process().Cwd || w.Name == "" {
		c.Errorf("waiting %+v", w)
	}
	if again := c.progress(acc.Task, p.Checkpoint); again.Waiting == nil || again.Waiting.ID != "call-1" {
		c.Errorf("from the checkpoint: %+v", again)
	}
	c.Answered("call-1")
	if after := c.progress(acc.Task, p.Checkpoint); after.State != agent.Open || after.Waiting != nil || len(after.Calls) != 0 {
		c.Errorf("answered: %+v", after)
	}
}

func next(c *check) {
	acc := c.sent("do the work")
	c.Prompt("something else")
	p := c.progress(acc.Task, agent.Position{})
	if p.State != agent.NextBegan || p.Fingerprint == "" {
		c.Errorf("progress %+v", p)
	}
}

func broken(c *check) {
	acc := c.sent("do the work")
	c.Work()
	p := c.progress(acc.Task, agent.Position{})
	if err := os.Truncate(acc.Task.Start.Path, p.Checkpoint.Offset-1); err != nil {
		c.Fatal(err)
	}
	if got := c.progress(acc.Task, p.Checkpoint); got.State != agent.Broken || got.Error == "" {
		c.Errorf("cut: %+v", got)
	}
	if err := os.Remove(acc.Task.Start.Path); err != nil {
		c.Fatal(err)
	}
	if got := c.progress(acc.Task, p.Checkpoint); got.State != agent.Broken {
		c.Errorf("gone: %+v", got)
	}
}

func ambiguous(c *check) {
	c.Ambiguous()
	if id := c.identify(); id.State != agent.Ambiguous || id.ThreadID != "" || id.Reason == "" {
		c.Errorf("identity %+v", id)
	}
	if a, err := c.a.Anchor(c.ctx, c.Process()); err == nil && a.ThreadID != "" {
		c.Errorf("anchor %+v", a)
	}
}

func killed(c *check) {
	acc := c.sent("do the work")
	proc := acc.Task.Process
	c.Kill()
	if alive, known := c.a.Alive(c.ctx, proc); alive || !known {
		c.Errorf("alive %v, known %v", alive, known)
	}
	p := c.progress(acc.Task, agent.Position{})
	if p.State != agent.Lost || p.Waiting != nil || p.Fingerprint == "" {
		c.Errorf("progress %+v", p)
	}
	if id, err := c.a.Identify(c.ctx, proc); err == nil && id.State == agent.Resolved {
		c.Errorf("identity of a dead process: %+v", id)
	}
	if _, err := c.a.Anchor(c.ctx, proc); err == nil {
		c.Error("an anchor for a dead process")
	}
}

func requests(c *check) {
	for text, want := range map[string]fault.Code{
		"/status": fault.NativeSlashCommand, " \n /status": fault.NativeSlashCommand, "!ls": fault.NativeSlashCommand,
		" ": fault.InvalidArguments, "a\x1bb": fault.InvalidArguments, "a\rb": fault.InvalidArguments, "a\xff": fault.InvalidArguments,
		"a /status": "", "two\nlines": "",
	} {
		if _, err := c.a.Prepare(text); fault.CodeOf(err) != want {
			c.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	p := c.prepare("  two\nlines  \n")
	if p.Expected != "two\nlines" || p.Typed == "" || len(p.RequestHash) != 64 {
		c.Errorf("prepared %+v", p)
	}
	for _, tc := range []struct {
		name string
		box  agent.Composer
		want bool
	}{
		{"the text", agent.Composer{Seen: true, Draft: "two\nlines"}, true},
		{"another", agent.Composer{Seen: true, Draft: "two\nlimes"}, false},
		{"half of it", agent.Composer{Seen: true, Draft: "two"}, false},
		{"more", agent.Composer{Seen: true, Draft: "two\nlines\nmore"}, false},
		{"nothing", agent.Composer{Seen: true, Empty: true}, false},
		{"unseen", agent.Composer{Draft: "two\nlines"}, false},
	} {
		if got := c.a.Landed(tc.box, p); got != tc.want {
			c.Errorf("%s has landed: %v, want %v", tc.name, got, tc.want)
		}
	}
}

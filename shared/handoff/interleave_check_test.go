package handoff_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"time"

	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
	"drawbridge/shared/terminal"
	"drawbridge/shared/testkit"
)

// rest lets everything come to its end: calls are answered, gates open, a person
// answers every dialog, and a watchd runs.
func (r *interleaving) rest() {
	r.t.Helper()
	r.note("rest")
	for i := range r.gates {
		r.open(i)
	}
	for _, p := range r.panes {
		_ = exec.Command("tmux", "-S", r.socket, "send-keys", "-t", p.tid, "-X", "cancel").Run() // it may not be in copy mode
	}
	done := make(chan struct{})
	go func() { r.calls.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(quietWait):
		r.t.Errorf("calls are still not answered after %v", quietWait)
		<-done
	}
	close(r.tell)
	for line := range r.tell {
		r.note("answer: %s", line)
		if strings.Contains(line, "→ internal") || strings.Contains(line, "⇒ internal") || strings.Contains(line, "panic") {
			r.t.Errorf("a call ended with %s", line)
		}
	}
	var err error
	for end := time.Now().Add(quietWait); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		r.decide()
		if err = r.rested(); err == nil {
			return
		}
	}
	r.t.Errorf("no rest after %v: %v", quietWait, err)
}

// decide has a person answer the dialogs.
func (r *interleaving) decide() {
	for _, p := range r.panes {
		if l := r.now[p]; l != nil && strings.Contains(p.screen(), "Would you like") {
			r.press(l, "y", &l.yes)
		}
	}
}

// rested says what is not at its end and has nobody who would bring it there.
func (r *interleaving) rested() error {
	ctx := context.Background()
	turns, err := r.store.Turns(ctx, store.TurnFilter{Limit: 1000})
	if err != nil {
		return err
	}
	eligible, err := r.store.EligibleTurns(ctx)
	if err != nil {
		return err
	}
	watched := map[string]bool{}
	for _, e := range eligible {
		watched[e.Turn.ID] = e.Skip == "" && e.Watched
	}
	for _, t := range turns {
		if !t.Blocks() || t.Status == store.TurnStalled { // stalled: renew and close are the ways out
			continue
		}
		x, err := r.store.Dispatch(ctx, t.CurrentMessageID)
		if err != nil {
			return err
		}
		if x.Status == store.DispatchEnterDispatched && watched[t.ID] {
			continue // its proof is looked for until a lifetime is over
		}
		return fmt.Errorf("turn %s (%s) is %s, its message %s, monitored: %v", t.ID, t.RequestText, t.Status, x.Status, watched[t.ID])
	}
	active, err := r.store.ActiveWatches(ctx)
	if err == nil && len(active) > 0 {
		err = fmt.Errorf("watches are active: %v", active)
	}
	return err
}

// check holds the Store against what the agents got.
func (r *interleaving) check() {
	r.t.Helper()
	ctx := context.Background()
	turns, err := r.store.Turns(ctx, store.TurnFilter{Limit: 1000})
	if err != nil {
		r.t.Fatal(err)
	}
	r.typed(turns)
	for _, t := range turns {
		r.ended(t)
	}
	r.watches()
	for _, t := range turns {
		if !t.Blocks() {
			continue
		}
		if _, err := r.desk.Close(ctx, handoff.Call{}, handoff.CloseInput{TurnID: t.ID}); err != nil {
			r.t.Errorf("close %s, which is %s: %v", t.ID, t.Status, err)
		}
	}
	for _, p := range r.panes {
		dead := strings.TrimSpace(r.tmuxDo("display-message", "-p", "-t", p.tid, "#{pane_dead}")) == "1"
		if r.now[p] != nil && !dead { // an agent that was asked to quit has done so by itself
			r.usable(p)
		}
	}
	r.stopWatchd()
	for line := range strings.SplitSeq(r.said.String(), "\n") {
		if line != "" && !strings.HasPrefix(line, "time=") {
			r.t.Errorf("watchd: %s", line)
		}
	}
	if err := r.desk.ClearRecords(ctx); err != nil {
		r.t.Error(err)
	}
	n, err1 := r.store.RepairFences(ctx)
	fences, err2 := r.store.Fences(ctx)
	open, err3 := r.store.OpenDispatches(ctx)
	records, err4 := terminal.Records(r.runDir)
	if err := errors.Join(err1, err2, err3, err4); err != nil || n != 0 || len(fences)+len(open)+len(records) != 0 {
		r.t.Errorf("left behind: %d repairs, fences %+v, messages %+v, records %+v: %v", n, fences, open, records, err)
	}
}

var (
	pasted  = regexp.MustCompile(`(?s)\x1b\[200~(.*?)(\x1b\[201~|$)`)
	request = regexp.MustCompile(`task-\d{3}\.`)
)

// typed compares the keys of every process with the rows that explain them.
func (r *interleaving) typed(turns []store.Turn) {
	r.t.Helper()
	ctx := context.Background()
	target := map[string]int{} // request: pid of its row
	messages := map[int]int{}  // pid: rows for it
	cancels, decided := map[int]int{}, map[int]int{}
	for _, t := range turns {
		rows, err := r.store.Dispatches(ctx, t.ID)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, x := range rows {
			b, err := r.store.Binding(ctx, x.BindingID)
			if err != nil {
				r.t.Fatal(err)
			}
			text := t.RequestText
			if x.Kind == store.KindAnswer {
				if text, err = r.store.MessageText(ctx, x); err != nil {
					r.t.Fatal(err)
				}
			}
			pid := int(b.PID)
			r.note("turn %s is %s (%s%s), message %s at %s: %s", t.ID, t.Status, t.StalledReason, t.CloseReason, x.Status, x.LastProvenStage, text)
			target[request.FindString(text)] = pid
			messages[pid]++
			cancels[pid], decided[pid] = cancels[pid]+r.cancels[t.ID], decided[pid]+r.decided[t.ID]
		}
	}
	seen := map[string]int{}
	for _, l := range r.lives {
		raw, err := os.ReadFile(l.keys)
		if err != nil && !os.IsNotExist(err) {
			r.t.Fatal(err)
		}
		for _, m := range pasted.FindAllStringSubmatch(string(raw), -1) {
			for _, text := range request.FindAllString(m[1], -1) {
				if seen[text]++; seen[text] > 1 {
					r.t.Errorf("%s was typed %d times", text, seen[text])
				}
				if pid, ok := target[text]; !ok || pid != l.pid {
					r.t.Errorf("%s was typed into process %d, its row names %d", text, l.pid, pid)
				}
			}
		}
		keys := pasted.ReplaceAllString(string(raw), "")
		for what, n := range map[string][2]int{
			"Enter":  {strings.Count(keys, "\r"), l.enters + messages[l.pid]},
			"Escape": {strings.Count(keys, "\x1b"), l.escs + cancels[l.pid] + decided[l.pid] + r.decided[l.id]},
			"y":      {strings.Count(keys, "y"), l.yes + decided[l.pid] + r.decided[l.id]},
		} {
			if n[0] > n[1] {
				r.t.Errorf("process %d got %s %d times, %d are explained: %q", l.pid, what, n[0], n[1], keys)
			}
		}
	}
}

// ended wants at most one outcome of a Turn, and at most one callback for each
// of its events.
func (r *interleaving) ended(t store.Turn) {
	r.t.Helper()
	ctx := context.Background()
	events, err := r.store.TurnEvents(ctx, t.ID, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range events {
		count[e.Event]++
	}
	if count["completed"]+count["cancelled"] > 1 || count["closed"] > 1 {
		r.t.Errorf("turn %s ended more than once: %v", t.ID, count)
	}
	approvals, err := r.store.Approvals(ctx, t.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, a := range approvals {
		r.note("turn %s: approval %s, %s by %s, cleared: %v", t.ID, a.State, a.Decision, a.DecidedBy, a.ClearedAt != 0)
	}
	kinds, ids := map[string]int{}, map[string]bool{}
	for _, c := range r.callbacks(t.ID) {
		kind := c.Kind
		if strings.HasPrefix(c.MessageID, "msg-approval-doubt-") {
			kind = "doubt" // of a decision in whose middle a program died
		}
		kinds[kind]++
		if ids[c.MessageID] {
			r.t.Errorf("turn %s: event %s has two callbacks", t.ID, c.MessageID)
		}
		ids[c.MessageID] = true
	}
	if kinds["completion"] != count["completed"] || kinds["stall"] > count["stalled"]+count["submission_uncertain"]+count["submission_not_accepted"] ||
		kinds["approval"] > len(approvals) || kinds["doubt"] > count["approval_uncertain"] {
		r.t.Errorf("turn %s: events %v and %d approvals have callbacks %v", t.ID, count, len(approvals), kinds)
	}
}

// watches wants one outcome of each Watch and one callback for each notification.
func (r *interleaving) watches() {
	r.t.Helper()
	ctx := context.Background()
	rows, err := r.store.Watches(ctx, store.WatchFilter{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, w := range rows {
		notes, err1 := r.store.WatchNotifications(ctx, w.ID)
		told, err2 := r.store.WatchCallbacks(ctx, w.ID)
		if err := errors.Join(err1, err2); err != nil {
			r.t.Fatal(err)
		}
		ends := 0
		for _, n := range notes {
			if n.Kind != "approval" {
				ends++
			}
		}
		if ends > 1 || ends == 0 && w.Status != store.WatchActive || len(told) != len(notes) {
			r.t.Errorf("watch %s is %s with %d outcomes, %d notifications and %d callbacks", w.ID, w.Status, ends, len(notes), len(told))
		}
	}
}

// usable wants that the pane takes new work and that its end is told.
func (r *interleaving) usable(p *pane) {
	r.t.Helper()
	r.tmuxDo("send-keys", "-t", p.tid, "C-u")
	p.id = r.now[p].id
	testkit.Eventually(r.t, patience, func() bool {
		for _, row := range r.list().Terminals {
			if row.ID == p.id {
				return row.Actions["send"].Tool != ""
			}
		}
		return false
	}, p.id, "takes no more work")
	sent := p.mustSend(r.text(19))
	testkit.Eventually(r.t, patience, func() bool { return r.turn(sent.TurnID).Status == store.TurnIdle }, "the last turn ends")
}

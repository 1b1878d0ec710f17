package handoff_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/terminal"
)

// record gives the lock-file record of a pane, after it wrote one for message if
// that is not empty.
func (w *world) record(key, message string) terminal.Record {
	w.t.Helper()
	l, err := terminal.Lock(context.Background(), w.runDir, key, patience)
	if err != nil {
		w.t.Fatal(err)
	}
	defer l.Unlock()
	if message != "" {
		if err := l.Write(terminal.Record{StoreID: w.store.ID(), Kind: "dispatch", RefID: message, Status: "prepared"}); err != nil {
			w.t.Fatal(err)
		}
	}
	rec, torn := l.Record()
	if torn {
		w.t.Error("torn record")
	}
	return rec
}

// A record that outlived its submission, because the program ended between the
// commit and the file, is emptied by the sweep; one of an open submission, or of
// a message that this Store does not know, stays. Core §13 row 13.
func TestClearRecords(t *testing.T) {
	w := newWorld(t)
	ctx := context.Background()
	p, busy, strange := w.agent(), w.agent(), w.agent()
	r := p.mustSend("say hello")
	key := w.follow(r.TurnID).TerminalKey
	w.record(key, r.Message.ID)
	open := busy.mustSend("work hold:" + filepath.Join(w.dir, "never"))
	done := strange.mustSend("say hello, too")
	strangeKey := w.follow(done.TurnID).TerminalKey
	w.record(strangeKey, "msg-unknown")

	if err := w.desk.ClearRecords(ctx); err != nil {
		t.Fatal(err)
	}
	if got := w.record(key, ""); got != (terminal.Record{}) {
		t.Errorf("record of a resolved submission: %+v", got)
	}
	if got := w.record(w.turn(open.TurnID).TerminalKey, ""); got.RefID != open.Message.ID {
		t.Errorf("record of an open submission: %+v", got)
	}
	if got := w.record(strangeKey, ""); got.RefID != "msg-unknown" {
		t.Errorf("record of an unknown message: %+v", got)
	}
}

// A submission that is resolved while another call holds the pane: its monitor
// cannot empty the record then, so the holder does it when it lets go. Without
// that another Store of this user could not type there for as long as it likes.
func TestRelease_EmptiesTheRecordOfAnEndedTurn(t *testing.T) {
	w := newWorld(t)
	p := w.agent()
	gate := filepath.Join(w.dir, "gate")
	r := p.mustSend("work hold:" + gate)
	key := w.turn(r.TurnID).TerminalKey

	b, ended := &bent{}, false
	other := w.newDesk(w.store, func(a agent.Adapter) agent.Adapter { b.Adapter = a; return b })
	b.read = func(seen agent.Reading) agent.Reading {
		if l, err := terminal.Lock(context.Background(), w.runDir, key, 0); err == nil {
			l.Unlock() // a look before the pane is held
			return seen
		}
		if !ended {
			ended = true
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Error(err)
			}
			w.follow(r.TurnID)
		}
		return agent.Reading{State: agent.Working}
	}
	_, err := other.Send(context.Background(), newCall(), handoff.SendInput{TerminalID: p.id, Request: "another"})
	if !fault.Is(err, fault.TerminalNotIdle) || !ended {
		t.Fatalf("send: %v, turn ended under it: %t", err, ended)
	}
	if got := w.record(key, ""); got != (terminal.Record{}) {
		t.Errorf("record left behind: %+v", got)
	}
}

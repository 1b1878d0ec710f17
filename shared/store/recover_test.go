package store_test

import (
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func TestOpenDispatches(t *testing.T) {
	w := newWorld(t)
	a := w.prepare("1", "a", "t1")
	b := w.prepare("2", "b", "t2").accept("t2")
	w.prepare("3", "c", "t3").accept("t3").finish("3")
	a.must(w.Release(ctx, b.term))
	must(t, w.raw(), `DELETE FROM terminal_fences WHERE terminal_key = 'key-b'`)
	look := func() map[string]store.OpenDispatch {
		t.Helper()
		all, err := w.OpenDispatches(ctx)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]store.OpenDispatch{}
		for _, o := range all {
			out[o.Dispatch.MessageID] = o
		}
		return out
	}
	open := look()
	if len(open) != 2 || open["msg-1"].TerminalFree || !open["msg-2"].TerminalFree || !open["msg-1"].Fenced || open["msg-2"].Fenced ||
		open["msg-1"].DispatcherGone || open["msg-1"].Turn.ID != "turn-1" {
		t.Errorf("got %+v", open)
	}
	w.gone[w.Holder()] = true
	if open := look(); !open["msg-1"].DispatcherGone || !open["msg-1"].TerminalFree {
		t.Errorf("got %+v", open["msg-1"])
	}
	// the sweep settles what the dead one left
	sweep := w.open("watchd/2/2/x")
	l := w.leaseOf(sweep, store.TerminalLease("key-a"))
	if sub, err := sweep.AbortDispatch(ctx, l, "msg-1", "dispatcher_gone"); err != nil || !sub.Dispatch.SafeToRetry {
		t.Error(sub, err)
	}
	wantCode(t, w.MarkInput(ctx, a.term, "msg-1"), fault.LeaseLost)
}

func TestRepairFences(t *testing.T) {
	w := newWorld(t)
	if n, err := w.RepairFences(ctx); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	w.prepare("1", "a", "t1").accept("t1") // loses its fence
	w.prepare("2", "b", "t2").accept("t2") // its Turn is closed beside the rules
	must(t, w.raw(), `DELETE FROM terminal_fences WHERE terminal_key = 'key-a'`)
	must(t, w.raw(), `UPDATE turns SET status = 'closed', revision = revision + 1 WHERE turn_id = 'turn-2'`)
	must(t, w.raw(), `INSERT INTO terminal_fences VALUES ('key-c','dispatch','lost',1,1,1)`)
	must(t, w.raw(), `INSERT INTO terminal_fences VALUES ('key-d','transition','lost',1,1,1)`)
	if n, err := w.RepairFences(ctx); n != 5 || err != nil { // resolved 2, three strays, one missing
		t.Error(n, err)
	}
	fences, err := w.Fences(ctx)
	if err != nil || len(fences) != 1 || fences[0].RefID != "msg-1" || fences[0].TerminalKey != "key-a" {
		t.Error(fences, err)
	}
	if sub, err := w.Submission(ctx, "msg-2"); err != nil || sub.Dispatch.ResolvedReason != "turn_released" {
		t.Error(sub, err)
	}
	if n, err := w.RepairFences(ctx); n != 0 || err != nil {
		t.Error(n, err)
	}
}

func TestEligibleTurns(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "t1")
	b := w.prepare("2", "b", "t2").accept("t2")
	b.monitor()
	c := w.prepare("3", "c", "t3").accept("t3")
	_, _, err := w.ApprovalNotified(ctx, c.monitor(), store.NewApproval{Fingerprint: "p"})
	c.must(err)
	w.prepare("4", "d", "t4").accept("t4").finish("4")
	e := w.prepare("5", "e", "t5").text()
	_, err = w.SettleDispatch(ctx, e.term, store.Settlement{MessageID: "msg-5", Status: store.DispatchUncertain})
	e.must(err)
	w.prepare("6", "f", "t6").accept("t6")
	must(t, w.raw(), `UPDATE bindings SET released_at = 1 WHERE incarnation_key = 'inc-f'`)
	g := w.prepare("7", "g", "t7").accept("t7")
	_, _, err = w.ApprovalNotified(ctx, g.monitor(), store.NewApproval{Fingerprint: "p"})
	g.must(err)
	must(t, w.raw(), `UPDATE approvals SET state = 'consumed' WHERE turn_id = 'turn-7'`)
	w.prepare("8", "h", "t8")
	must(t, w.raw(), `UPDATE turns SET current_message_id = NULL, revision = revision + 1 WHERE turn_id = 'turn-8'`)
	all, err := w.EligibleTurns(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range all {
		got[e.Turn.ID] = e.Skip
		if e.Watched != (e.Turn.ID == "turn-2" || e.Turn.ID == "turn-3" || e.Turn.ID == "turn-7") {
			t.Errorf("%s watched: %t", e.Turn.ID, e.Watched)
		}
	}
	want := map[string]string{"turn-1": "", "turn-2": "", "turn-3": "", "turn-6": "binding_superseded", "turn-7": "waiting_for_controller", "turn-8": "no_current_message"}
	if len(got) != len(want) {
		t.Errorf("got %v", got)
	}
	for id, skip := range want {
		if got[id] != skip {
			t.Errorf("%s: %q, want %q", id, got[id], skip)
		}
	}
}

func TestOpenTransitions(t *testing.T) {
	w := newWorld(t)
	must(t, w.raw(), `INSERT INTO transitions(transition_id, revision, operation, input_possible, status, terminal_id, terminal_key, agent, workspace,
		target_session_id, before_json, adapter_version, command_fingerprint, dispatcher, lease_epoch, prepared_at)
		VALUES ('x',1,'new_thread',1,'uncertain','t','k','codex','/w','s','{}','1','f','d',1,1), ('y',1,'new_thread',1,'committed','t','k','codex','/w','s','{}','1','f','d',1,1)`)
	all, err := w.OpenTransitions(ctx)
	if err != nil || len(all) != 1 || all[0].ID != "x" || all[0].Status != "uncertain" {
		t.Error(all, err)
	}
}

package e2e

import (
	"context"
	"strings"
	"testing"

	"drawbridge/scripts/internal/rig"
)

// refuses calls a tool that must refuse with the code and type nothing: the pane
// looks as before.
func (w *world) refuses(p *rig.Pane, tool string, a args, code string) args {
	w.t.Helper()
	before := p.Screen().Text
	r := w.refused(tool, a, code)
	if after := p.Screen().Text; after != before {
		w.t.Errorf("%s changed the pane:\n%s", tool, after)
	}
	return r
}

// switched calls new_thread or resume_thread, which must commit.
func (w *world) switched(tool string, a args) args {
	w.t.Helper()
	got := w.call(tool, a)
	if got["status"] != "committed" || got["no_turn_created"] != true {
		w.t.Fatalf("%s: %v", tool, got)
	}
	return got
}

// sendAs sends into what the pane shows and waits for its callback.
func (w *world) sendAs(p *rig.Pane, request string) args {
	w.t.Helper()
	sent := w.send(p, request)
	w.awaitCallback(sent["turn_id"], "accepted")
	p.AwaitIdle()
	return sent
}

// Native threads of a Codex that holds its conversation itself: its status is read,
// a clean thread begins, the earlier one is resumed, and what a person switched is
// reconciled. Both versions.
func TestLifecycle_InProcess(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0.171.0", "0.148.0"} {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			p := w.codex(version)
			id := args{"terminal_id": w.terminal(p)}

			seen := w.call("native_inspect", args{"terminal_id": id["terminal_id"], "inspection": "status"})
			if seen["status"] != "observed" || seen["agent_version"] != version || text(seen["native_thread_id"]) == "" {
				t.Fatalf("native_inspect: %v", seen)
			}
			w.refuses(p, "identify_foreground", id, "action_not_advertised")
			first := w.sendAs(p, "SCN=SAY:first")
			thread := text(managed(w.row(p))["native_thread_id"])
			if thread != seen["native_thread_id"] {
				t.Errorf("the status screen named %v, the request was taken in %s", seen["native_thread_id"], thread)
			}

			fresh := w.switched("new_thread", id)
			if fresh["previous_session_id"] != first["session_id"] || fresh["native_thread_id"] == thread {
				t.Errorf("new_thread: %v", fresh)
			}
			again := w.call("resume_thread", args{"terminal_id": id["terminal_id"], "native_thread_id": fresh["native_thread_id"]})
			if again["status"] != "already_active" || again["no_op"] != true {
				t.Errorf("resume of the active thread: %v", again)
			}
			w.sendAs(p, "SCN=SAY:second")
			if got := managed(w.row(p))["native_thread_id"]; got != fresh["native_thread_id"] {
				t.Errorf("the second request was taken in %v, the new thread is %v", got, fresh["native_thread_id"])
			}

			list := w.call("list_resumable_threads", id)
			var found args
			for _, row := range objects(list["threads"]) {
				if row["native_thread_id"] == thread {
					found = row
				}
			}
			if found == nil || found["resumable"] != true || found["managed_session_id"] != first["session_id"] || !strings.Contains(text(found["preview"]), "first") {
				t.Fatalf("threads: %v", list["threads"])
			}
			back := w.switched("resume_thread", args{"terminal_id": id["terminal_id"], "native_thread_id": thread})
			if back["session_id"] != first["session_id"] || back["native_thread_id"] != thread {
				t.Errorf("resume_thread: %v", back)
			}
			w.sendAs(p, "SCN=SAY:third")
			if got := managed(w.row(p))["native_thread_id"]; got != thread {
				t.Errorf("the third request was taken in %v, resumed was %s", got, thread)
			}

			// A person clears, and asks for the status: the pane shows another thread.
			p.Submit("/clear")
			p.AwaitIdle()
			p.Submit("/status")
			p.AwaitText("Limits:")
			p.AwaitIdle()
			row := w.row(p)
			act, _ := row["available_actions"].(args)["reconcile_binding"].(args)
			if row["management_state"] != "conflict" || act == nil {
				t.Fatalf("row behind a person's /clear: %v", row)
			}
			done := w.call("reconcile_binding", act["arguments"].(args))
			if done["status"] != "detached" || done["conflict_kind"] != "live_external_thread_change" {
				t.Errorf("reconcile_binding: %v", done)
			}
			w.refused("reconcile_binding", act["arguments"].(args), "offer_missing")
			for _, request := range []string{"SCN=SAY:first", "SCN=SAY:second", "SCN=SAY:third"} {
				if got := w.rig.Server.Turns(request); got != 1 {
					t.Errorf("%s reached the model %d times", request, got)
				}
			}
		})
	}
}

// The same where a background server holds the conversations of two panes: only
// the agent's own status screen names a pane's thread.
func TestLifecycle_Daemon(t *testing.T) {
	w := newWorld(t)
	p, other := w.daemonCodex(), w.daemonCodex()
	id := args{"terminal_id": w.terminal(p)}
	w.refuses(p, "native_inspect", args{"terminal_id": id["terminal_id"], "inspection": "status"}, "action_not_advertised")
	first := w.call("identify_and_send", args{"terminal_id": id["terminal_id"], "request": "SCN=SAY:first"})
	if first["submission_outcome"] != "agent_accepted" {
		t.Fatalf("identify_and_send: %v", first)
	}
	w.awaitCallback(first["turn_id"], "accepted")
	p.AwaitIdle()
	thread := text(managed(w.row(p))["native_thread_id"])
	if proof, _ := first["foreground_proof"].(args); proof == nil || proof["native_thread_id"] != thread || proof["grants_authority"] != false {
		t.Errorf("proof %v, accepted in %s", first["foreground_proof"], thread)
	}
	seen := w.call("identify_foreground", id)
	if seen["native_thread_id"] != thread {
		t.Errorf("identify_foreground: %v, want %s", seen["native_thread_id"], thread)
	}
	if there := w.call("identify_foreground", args{"terminal_id": w.terminal(other)}); there["native_thread_id"] == thread {
		t.Error("both panes show one thread")
	}

	fresh := w.switched("new_thread", id)
	if fresh["native_thread_id"] == thread || fresh["previous_session_id"] != first["session_id"] {
		t.Errorf("new_thread: %v", fresh)
	}
	w.sendAs(p, "SCN=SAY:second")
	if got := managed(w.row(p))["native_thread_id"]; got != fresh["native_thread_id"] {
		t.Errorf("the second request was taken in %v, the new thread is %v", got, fresh["native_thread_id"])
	}
	back := w.switched("resume_thread", args{"terminal_id": id["terminal_id"], "native_thread_id": thread})
	if back["native_thread_id"] != thread {
		t.Errorf("resume_thread: %v", back)
	}
	w.sendAs(p, "SCN=SAY:third")
	if got := managed(w.row(p))["native_thread_id"]; got != thread {
		t.Errorf("the third request was taken in %v, resumed was %s", got, thread)
	}
}

// bridge ends at each step of a switch, and is started again by its Host. The
// command is typed at most once, the fence stands exactly as long as the switch is
// not settled, and its end is what the crash table says.
//
// Proves core 19.50: §13 rows 18-21.
func TestCrash_BridgeInSwitch(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		point   string
		settled bool   // by recovery alone
		thread  string // "same", "new": what the pane shows afterwards
	}{
		{"transition_prepared", true, "same"},     // row 18
		{"terminal_recorded", true, "same"},       // row 18
		{"transition_dispatching", false, "same"}, // row 19: nothing was typed, and nothing proves it
		{"command_pasted", false, "draft"},        // row 19
		{"command_entered", false, "new"},         // row 19
		{"transition_submitted", false, "new"},    // row 20
		{"transition_verified", true, "new"},      // row 20
		{"transition_committed", true, "new"},     // row 21
	} {
		t.Run(tc.point, func(t *testing.T) {
			w := newWorld(t)
			p := w.codex("0.171.0")
			first := w.sendAs(p, "SCN=SAY:first")
			thread := text(managed(w.row(p))["native_thread_id"])
			terminal := w.terminal(p)
			if err := w.first.Stop(); err != nil {
				t.Fatal(err)
			}
			withCrash("bridge", tc.point)(w)
			h := w.host("session-one")
			w.first = h
			ctx, cancel := context.WithTimeout(t.Context(), callWait)
			defer cancel()
			if _, err := h.Call(ctx, "new_thread", args{"terminal_id": terminal}); err == nil {
				t.Fatalf("new_thread was answered; bridge did not end at %s", tc.point)
			}
			<-h.Exited()
			next := w.again(h)
			var row args
			w.eventually("recovery has looked", func() bool {
				row = w.row(p)
				tr, _ := row["unresolved_transition"].(args)
				return (tr == nil) == tc.settled && (tr == nil || tr["status"] == "uncertain")
			})
			if tr, _ := row["unresolved_transition"].(args); tr != nil {
				if tc.thread == "draft" { // the person clears what was left
					p.Key("C-u")
					p.AwaitIdle()
				}
				next.refused("send", args{"terminal_id": terminal, "request": "SCN=SAY:no"}, "lifecycle_unresolved")
				closing := tr["available_actions"].(args)["close"].(args)["arguments"].(args)
				if tc.thread == "new" {
					next.refused("close", closing, "identity_unverified")
					p.Submit("/status")
					p.AwaitText("Limits:")
					p.AwaitIdle()
				}
				want := map[string]string{"same": "aborted", "draft": "aborted", "new": "committed"}[tc.thread]
				if got := next.call("close", closing); got["transition_status"] != want || got["terminal_dispatch_resolved"] != true {
					t.Errorf("close: %v, want %s", got, want)
				}
			}
			after := w.sendAs(p, "SCN=SAY:after")
			now := text(managed(w.row(p))["native_thread_id"])
			if same := now == thread; same != (tc.thread != "new") {
				t.Errorf("the pane shows thread %s, it was %s", now, thread)
			}
			if tc.thread != "new" && after["session_id"] != first["session_id"] {
				t.Errorf("the next task is of %v, it was %v", after["session_id"], first["session_id"])
			}
			if got := w.rig.Server.Turns("SCN=SAY:no"); got != 0 {
				t.Errorf("a refused request reached the model %d times", got)
			}
		})
	}
}

// Native threads of Claude Code: its registry names the thread at any time, so a
// switch is proven without asking, and a person's switch is followed by the next
// send. Both versions.
func TestLifecycle_Claude(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2.1.332", "2.1.263"} {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			p := w.claude(version)
			id := args{"terminal_id": w.terminal(p)}
			seen := w.call("native_inspect", args{"terminal_id": id["terminal_id"], "inspection": "status"})
			status, _ := seen["native_status"].(args)
			if seen["status"] != "observed" || status["kind"] != "status_panel" || status["redacted"] != true || seen["terminal_dismissal"] == nil {
				t.Fatalf("native_inspect: %v", seen)
			}
			p.AwaitIdle()
			w.refused("identify_foreground", id, "capability_missing") // notices of Claude Code come and go by themselves
			first := w.sendAs(p, "SCN=SAY:first")
			thread := text(managed(w.row(p))["native_thread_id"])
			if thread != seen["native_thread_id"] {
				t.Errorf("the panel named %v, the request was taken in %s", seen["native_thread_id"], thread)
			}

			fresh := w.switched("new_thread", id)
			if fresh["previous_session_id"] != first["session_id"] || fresh["native_thread_id"] == thread {
				t.Errorf("new_thread: %v", fresh)
			}
			second := w.sendAs(p, "SCN=SAY:second")
			if second["session_id"] != fresh["session_id"] {
				t.Errorf("the second task is of %v, the new thread's Session is %v", second["session_id"], fresh["session_id"])
			}
			back := w.switched("resume_thread", args{"terminal_id": id["terminal_id"], "native_thread_id": thread})
			if back["session_id"] != first["session_id"] {
				t.Errorf("resume_thread: %v", back)
			}
			again := w.call("resume_thread", args{"terminal_id": id["terminal_id"], "native_thread_id": thread})
			if again["status"] != "already_active" {
				t.Errorf("resume of the active thread: %v", again)
			}

			// A person clears: the next send into the pane adopts what it shows.
			p.Submit("/clear")
			p.AwaitIdle()
			w.eventually("the row shows the conflict", func() bool { return w.row(p)["management_state"] == "conflict" })
			third := w.sendAs(p, "SCN=SAY:third")
			row := managed(w.row(p))
			if row["session_id"] != third["session_id"] || third["session_id"] == first["session_id"] || row["native_thread_id"] == thread {
				t.Errorf("adopted: %v, row %v", third, row)
			}
			list := w.call("list_resumable_threads", id)
			if previous, _ := list["previous"].(args); previous == nil || previous["native_thread_id"] != thread {
				t.Errorf("previous: %v", list["previous"])
			}
		})
	}
}

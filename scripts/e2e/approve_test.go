package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"drawbridge/scripts/internal/rig"
)

// approvable waits until status offers to decide the Turn's approval, and gives the
// approval state.
func (w *world) approvable(turn any) args {
	w.t.Helper()
	var state args
	w.eventually("the approval may be decided", func() bool {
		st := w.call("status", args{"turn_id": turn})
		state, _ = st["terminal_status"].(args)["approval_state"].(args)
		actions, _ := st["available_actions"].(args)
		return state["approvable"] == true && actions["approve"] != nil
	})
	return state
}

// made reports whether a file of the pane's work tree is there.
func made(p *rig.Pane, name string) bool {
	_, err := os.Stat(filepath.Join(p.Dir, name))
	return err == nil
}

// The whole way of an approval: told, shown, decided by the controller, done. The
// command runs, exactly once, and the dialog's other options are left alone.
//
// Proves tools 11.24 and 11.28 on a real agent.
func TestApprove_Codex(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			pane := w.codex(version)
			sent := w.send(pane, "SCN=EXEC:yes")
			turn := sent["turn_id"]
			first := w.await(1)[0]
			if !strings.Contains(first.Body, "touch approved-yes.txt") || !strings.Contains(first.Body, "approve") {
				t.Errorf("the callback:\n%s", first.Body)
			}
			w.refused("approve", args{"turn_id": turn}, "offer_missing")
			state := w.approvable(turn)
			if state["command"] != "touch approved-yes.txt" || state["decision_mode"] != "keys" {
				t.Errorf("approval state %v", state)
			}
			if made(pane, "approved-yes.txt") {
				t.Fatal("the command ran before it was approved")
			}
			if got := w.call("approve", args{"turn_id": turn}); got["approved"] != true {
				t.Errorf("approve: %v", got)
			}
			if again := w.call("approve", args{"turn_id": turn}); again["already_approved"] != true {
				t.Errorf("again: %v", again)
			}
			if done := w.await(2)[1]; !strings.Contains(done.Body, "EXEC finished") {
				t.Errorf("the last callback:\n%s", done.Body)
			}
			if !made(pane, "approved-yes.txt") {
				t.Error("the command did not run")
			}
			pane.AwaitIdle()
			// A permanent permission would let the same command pass now.
			again := w.send(pane, "SCN=EXEC:yes")
			w.await(3)
			w.approvable(again["turn_id"])
			if got := w.call("approve", args{"turn_id": again["turn_id"], "decision": "reject"}); got["approved"] != false || got["decision"] != "reject" {
				t.Errorf("reject: %v", got)
			}
			if last := w.await(4)[3]; !strings.Contains(last.Body, "interrupted") {
				t.Errorf("the callback of the rejected turn:\n%s", last.Body)
			}
			if got := w.status(again)["status"]; got != "failed" {
				t.Errorf("the turn is %v", got)
			}
		})
	}
}

// Two dialogs of one turn, one after the other: what was shown of the first decides
// nothing about the second. Proves tools 11.25 and 11.27.
func TestApprove_CodexTwo(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.codex(version)
			turn := w.send(pane, "SCN=TWO:asked")["turn_id"]
			w.await(1)
			w.approvable(turn)
			pane.Key("y") // the person at the pane is faster
			w.await(2)
			w.refused("approve", args{"turn_id": turn}, "offer_changed")
			w.refused("approve", args{"turn_id": turn}, "offer_missing")
			if made(pane, "two-2.txt") {
				t.Fatal("the second command was approved by what was shown of the first")
			}
			if state := w.approvable(turn); state["command"] != "touch two-2.txt" {
				t.Errorf("approval state %v", state)
			}
			if got := w.call("approve", args{"turn_id": turn}); got["approved"] != true {
				t.Errorf("approve: %v", got)
			}
			if done := w.await(3)[2]; !strings.Contains(done.Body, "TWO finished") {
				t.Errorf("the last callback:\n%s", done.Body)
			}
		})
	}
}

// Two calls in one message: both are open at once, in whichever order Codex asks,
// and the dialog's command says which one is decided.
func TestApprove_CodexBoth(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	turn := w.send(pane, "SCN=BOTH")["turn_id"]
	left := []string{"both-1.txt", "both-2.txt"}
	for i := range 2 {
		w.await(i + 1)
		command, _ := w.approvable(turn)["command"].(string)
		name := strings.TrimPrefix(command, "touch ")
		if !slices.Contains(left, name) {
			t.Errorf("dialog %d: %q", i+1, command)
		}
		left = slices.DeleteFunc(left, func(s string) bool { return s == name })
		if got := w.call("approve", args{"turn_id": turn}); got["approved"] != true {
			t.Errorf("approve: %v", got)
		}
		for _, unasked := range left {
			if made(pane, unasked) {
				t.Errorf("%s was made without being approved", unasked)
			}
		}
	}
	if done := w.await(3)[2]; !strings.Contains(done.Body, "BOTH finished") {
		t.Errorf("the last callback:\n%s", done.Body)
	}
}

// A patch outside the work tree is decided like a command.
func TestApprove_CodexPatch(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.codex(version)
			turn := w.send(pane, "SCN=PATCH:made")["turn_id"]
			w.await(1)
			if state := w.approvable(turn); state["prompt_kind"] != "edit_files" || !strings.Contains(text(state["command"]), "outside-made.txt") {
				t.Errorf("approval state %v", state)
			}
			w.call("approve", args{"turn_id": turn})
			if done := w.await(2)[1]; !strings.Contains(done.Body, "PATCH finished") {
				t.Errorf("the last callback:\n%s", done.Body)
			}
		})
	}
}

// A task that a person started in a Codex pane: its approval is decided by the
// pane's id, and no Turn comes of it.
func TestApprove_CodexTerminal(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	id := w.terminal(pane)
	pane.Submit("SCN=EXEC:mine")
	pane.AwaitText("Would you like to run")
	w.refused("approve", args{"terminal_id": id}, "offer_missing")
	w.eventually("the approval may be decided", func() bool {
		st := w.call("status", args{"conversation_id": id})
		actions, _ := st["available_actions"].(args)
		return actions["approve"] != nil
	})
	if got := w.call("approve", args{"terminal_id": id}); got["approved"] != true {
		t.Errorf("approve: %v", got)
	}
	pane.AwaitText("EXEC finished")
	if !made(pane, "approved-mine.txt") {
		t.Error("the command did not run")
	}
	if got := onlyTurn(w.call("list", args{"all": true})); got != nil {
		t.Errorf("a turn: %v", got)
	}
}

// A policy of the operator decides what it names, with no word to the controller
// until the end, and asks about everything else.
func TestApprove_Policy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.json")
	w := newWorld(t, withArgs("--approval-policy", file))
	pane := w.codex("0.171.0")
	doc, err := json.Marshal(args{"enabled": true, "rules": []args{{
		"id": "touch-auto", "agents": []string{"codex"}, "workspaces": []string{pane.Dir}, "commands": [][]string{{"touch", "approved-auto.txt"}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	w.send(pane, "SCN=EXECDIR:auto")
	if done := w.await(1)[0]; !strings.Contains(done.Body, "EXECDIR finished") {
		t.Errorf("the first callback:\n%s", done.Body)
	}
	if !made(pane, "approved-auto.txt") {
		t.Error("the command did not run")
	}
	pane.AwaitIdle()
	other := w.send(pane, "SCN=EXECDIR:other")
	if asked := w.await(2)[1]; !strings.Contains(asked.Body, "touch approved-other.txt") {
		t.Errorf("the second callback:\n%s", asked.Body)
	}
	w.approvable(other["turn_id"])
	w.call("approve", args{"turn_id": other["turn_id"], "decision": "reject"})
	w.await(3)
}

// bridge ends between the reservation of a decision and its outcome: no second key
// is ever sent, the user sees the doubt, and the Turn goes on when the prompt is
// gone. Proves core 19.53, §13 row 10.
func TestCrash_Approve(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		point string
		sent  bool // the key reached the agent
	}{
		{"approval_reserved", false},
		{"approval_key_sent", true},
		{"approval_consumed", true},
	} {
		t.Run(tc.point, func(t *testing.T) {
			w := newWorld(t, withCrash("bridge", tc.point))
			pane := w.codex("0.171.0")
			h := w.start()
			sent := w.send(pane, "SCN=EXEC:crash")
			w.await(1)
			w.approvable(sent["turn_id"])
			ctx, cancel := context.WithTimeout(t.Context(), callWait)
			defer cancel()
			if _, err := h.Call(ctx, "approve", args{"turn_id": sent["turn_id"]}); err == nil {
				t.Fatal("approve was answered")
			}
			<-h.Exited()
			w.again(h)
			if tc.sent {
				w.eventually("the turn is idle", func() bool { return w.status(sent)["status"] == "idle" })
				if !made(pane, "approved-crash.txt") {
					t.Error("the command did not run")
				}
				return
			}
			w.eventually("the decision is in doubt", func() bool {
				st := w.call("status", args{"turn_id": sent["turn_id"]})
				state, _ := st["terminal_status"].(args)["approval_state"].(args)
				return state["approvable"] == false && strings.Contains(text(state["reason"]), "in doubt")
			})
			w.refused("approve", args{"turn_id": sent["turn_id"]}, "offer_missing")
			time.Sleep(time.Second) // a second key would come now
			if made(pane, "approved-crash.txt") {
				t.Error("the command ran although its key was never sent")
			}
			pane.Key("y")
			w.eventually("the turn is idle", func() bool { return w.status(sent)["status"] == "idle" })
		})
	}
}

// The same way with Claude Code, whose dialogs move a highlight: a command, a new
// file, a change of one.
func TestApprove_Claude(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			pane := w.claude(version)
			told := 0
			decide := func(request, kind, shows, finished string, prompts int) {
				t.Helper()
				turn := w.send(pane, request)["turn_id"]
				for range prompts {
					told++
					w.await(told)
					if state := w.approvable(turn); state["prompt_kind"] != kind || !strings.Contains(text(state["command"]), shows) {
						t.Errorf("%s: approval state %v", request, state)
					}
					if got := w.call("approve", args{"turn_id": turn}); got["approved"] != true {
						t.Errorf("%s: approve: %v", request, got)
					}
				}
				told++
				if done := w.await(told)[told-1]; !strings.Contains(done.Body, finished) {
					t.Errorf("%s: the last callback:\n%s", request, done.Body)
				}
				pane.AwaitIdle()
			}
			decide("SCN=EXEC:yes", "run_command", "touch approved-yes.txt", "EXEC finished", 1)
			if !made(pane, "approved-yes.txt") {
				t.Error("the command did not run")
			}
			decide("SCN=PATCHIN:made", "edit_files", "inside-made.txt", "PATCHIN finished", 1)
			if !made(pane, "inside-made.txt") {
				t.Error("the file was not written")
			}
			decide("SCN=EDIT:both", "edit_files", "edited-both.txt", "EDIT finished", 2)
			decide("SCN=TWO:x", "run_command", "touch two-", "TWO finished", 2)

			turn := w.send(pane, "SCN=EXEC:no")["turn_id"]
			told++
			w.await(told)
			w.approvable(turn)
			if got := w.call("approve", args{"turn_id": turn, "decision": "reject"}); got["approved"] != false {
				t.Errorf("reject: %v", got)
			}
			told++
			w.await(told)
			if made(pane, "approved-no.txt") {
				t.Error("the rejected command ran")
			}
		})
	}
}

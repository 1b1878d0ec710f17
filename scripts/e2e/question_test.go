package e2e

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/scripts/internal/rig"
)

// asked gives the step that status shows with the action to answer it, once step n
// is there.
func (w *world) asked(turn any, n float64) args {
	w.t.Helper()
	var step args
	w.eventually("a step can be answered", func() bool {
		data := w.call("status", args{"turn_id": turn})
		step, _ = data["interaction_state"].(args)
		place, _ := step["step"].(args)
		actions, _ := data["available_actions"].(args)
		return step != nil && place["index"] == n && actions["respond_interaction"] != nil
	})
	return step
}

// question gives the one question of a step.
func (w *world) question(step args) args {
	w.t.Helper()
	list := objects(step["questions"])
	if len(list) != 1 {
		w.t.Fatalf("step %v", step)
	}
	return list[0]
}

// answer answers a step with one answer.
func (w *world) answer(turn any, step, answer args) {
	w.t.Helper()
	answer["question_id"] = w.question(step)["question_id"]
	got := w.call("respond_interaction", args{"turn_id": turn, "interaction_id": step["interaction_id"], "answers": []any{answer}})
	if got["status"] != "responded" || got["turn_id"] != turn {
		w.t.Fatalf("respond_interaction: %v", got)
	}
}

// option is the answer that chooses the option with this label.
func (w *world) option(step args, label string) args {
	w.t.Helper()
	for _, o := range objects(w.question(step)["options"]) {
		if o["label"] == label {
			return args{"response_kind": "single_select", "selected_option_ids": []any{o["option_id"]}}
		}
	}
	w.t.Fatalf("no option %q in %v", label, step)
	return nil
}

// given gives the pane a task and is content with an acceptance that is proven
// later: a question needs none of send's answer but the Turn.
func (w *world) given(p *rig.Pane, request string) any {
	w.t.Helper()
	r := w.start().patient("send", args{"terminal_id": w.terminal(p), "request": request})
	if r.Data["turn_id"] == nil || r.Data["terminal_input"] != "sent" {
		w.t.Fatalf("send: %s", r.Text)
	}
	return r.Data["turn_id"]
}

// plan brings Codex into plan mode, as a person does: only there it asks.
func (w *world) plan(version string) *rig.Pane {
	w.t.Helper()
	pane := w.codex(version)
	pane.AwaitText(">_ OpenAI Codex") // a session that is set up later would forget the mode
	pane.Submit("/plan")
	pane.Await("plan mode", func(s rig.Screen) bool { return strings.Contains(s.Text, "Plan mode (shift") && s.Idle() })
	return pane
}

// Codex asks two questions in plan mode: each is told by one callback, shown by
// status and answered by respond_interaction, one by an option that is not
// highlighted, one by a text of the user's own; then the task is done.
func TestQuestion_Codex(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.plan(version)
			turn := w.send(pane, "SCN=ASK")["turn_id"]
			first := w.await(1)[0]
			for _, want := range []string{"Which colour", "Blue", "respond_interaction", text(turn)} {
				if !strings.Contains(first.Body, want) {
					t.Errorf("the callback lacks %q:\n%s", want, first.Body)
				}
			}
			step := w.asked(turn, 1)
			if step["state"] != "pending" || step["schema"] != "agent-knock-knock/terminal-interaction" {
				t.Errorf("step %v", step)
			}
			w.answer(turn, step, w.option(step, "Blue"))
			if second := w.await(2)[1]; !strings.Contains(second.Body, "Which size?") {
				t.Errorf("the second callback:\n%s", second.Body)
			}
			next := w.asked(turn, 2)
			if next["interaction_id"] == step["interaction_id"] {
				t.Error("both steps have one id")
			}
			w.answer(turn, next, args{"response_kind": "free_text", "text": "as wide as a barn door"})
			if last := w.await(3)[2]; !strings.Contains(last.Body, "ASK finished") {
				t.Errorf("the last callback:\n%s", last.Body)
			}
			for _, want := range []string{`\"color\":{\"answers\":[\"Blue\"]}`, `user_note: as wide as a barn door`} {
				if !recorded(t, pane, want) {
					t.Errorf("the agent's records lack %s", want)
				}
			}
			// A consumed step is not answered again.
			w.refused("respond_interaction", args{"turn_id": turn, "interaction_id": next["interaction_id"], "answers": []any{
				args{"question_id": w.question(next)["question_id"], "response_kind": "free_text", "text": "again"},
			}}, "offer_missing")
		})
	}
}

// A question that asks for a secret is the user's alone.
func TestQuestion_Secret(t *testing.T) {
	w := newWorld(t)
	pane := w.plan("0.171.0")
	turn := w.send(pane, `SCN=MCP:/request_user_input/{"questions":[{"id":"pin","header":"Pin","question":"Pin?","isSecret":true,"options":[{"label":"old","description":"it"},{"label":"new","description":"it"}]}]}`)["turn_id"]
	if first := w.await(1)[0]; !strings.Contains(first.Body, "Only the user at the pane") {
		t.Errorf("the callback:\n%s", first.Body)
	}
	data := w.call("status", args{"turn_id": turn})
	step, _ := data["interaction_state"].(args)
	actions, _ := data["available_actions"].(args)
	if step["state"] != "manual_required" || actions["respond_interaction"] != nil {
		t.Errorf("step %v, actions %v", step, actions)
	}
	pane.Key("Enter")
	w.await(2)
}

// Claude Code asks two questions and shows a page that submits them: three steps,
// the last of which is confirmed.
func TestQuestion_Claude(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.claude(version)
			turn := w.send(pane, "SCN=ASK")["turn_id"]
			if first := w.await(1)[0]; !strings.Contains(first.Body, "Blue") || !strings.Contains(first.Body, text(turn)) {
				t.Errorf("the callback:\n%s", first.Body)
			}
			step := w.asked(turn, 1)
			w.answer(turn, step, w.option(step, "Blue"))
			next := w.asked(turn, 2)
			w.answer(turn, next, args{"response_kind": "free_text", "text": "as wide as a barn door"})
			last := w.asked(turn, 3)
			if w.question(last)["response_kind"] != "confirm" {
				t.Errorf("the page that submits: %v", last)
			}
			w.answer(turn, last, args{"response_kind": "confirm", "confirm": true})
			if done := w.await(4)[3]; !strings.Contains(done.Body, "ASK finished") {
				t.Errorf("the last callback:\n%s", done.Body)
			}
			if !recorded(t, pane, `as wide as a barn door`) {
				t.Error("the agent's records lack the answer")
			}
		})
	}
}

// One question, answered by its first option: no page submits it. Several answers
// at once are the user's alone.
func TestQuestion_ClaudeOneAndMany(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			newest(t, version)
			w := newWorld(t)
			pane := w.claude(version)
			turn := w.given(pane, "SCN=ASKONE")
			step := w.asked(turn, 1)
			w.answer(turn, step, w.option(step, "Large"))
			if done := w.await(2)[1]; !strings.Contains(done.Body, "ASKONE finished") {
				t.Errorf("the callback:\n%s", done.Body)
			}
			pane.AwaitIdle()
			turn = w.given(pane, "SCN=ASKMANY")
			if told := w.await(3)[2]; !strings.Contains(told.Body, "Only the user at the pane") {
				t.Errorf("the callback:\n%s", told.Body)
			}
			data := w.call("status", args{"turn_id": turn})
			many, _ := data["interaction_state"].(args)
			actions, _ := data["available_actions"].(args)
			if many["state"] != "manual_required" || actions["respond_interaction"] != nil {
				t.Errorf("step %v, actions %v", many, actions)
			}
			pane.Key("Escape")
			w.await(4)
		})
	}
}

// recorded reports whether a transcript of the pane's agent holds a text.
func recorded(t *testing.T, p *rig.Pane, want string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(p.Home, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".jsonl") {
			return nil //nolint:nilerr // what cannot be read is no transcript
		}
		b, err := os.ReadFile(path)
		found = found || strings.Contains(strings.ReplaceAll(string(b), `\"`, `"`), strings.ReplaceAll(want, `\"`, `"`))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// bridge ends when the first of two keys of an answer was pressed: the step is in
// doubt for good and is offered to nobody; the user's own answer is noticed, and the
// next step is asked. Proves core §13 row 11.
func TestQuestion_CrashBetweenKeys(t *testing.T) {
	w := newWorld(t, withCrash("bridge", "interaction_stroke"))
	pane := w.plan("0.171.0")
	turn := w.send(pane, "SCN=ASK")["turn_id"]
	step := w.asked(turn, 1)
	h := w.start()
	answer := w.option(step, "Blue")
	answer["question_id"] = w.question(step)["question_id"]
	ctx, cancel := context.WithTimeout(t.Context(), callWait)
	defer cancel()
	if _, err := h.Call(ctx, "respond_interaction", args{"turn_id": turn, "interaction_id": step["interaction_id"], "answers": []any{answer}}); err == nil {
		t.Fatal("the answer came back; bridge did not end")
	}
	<-h.Exited()
	w.again(h)
	w.eventually("the step is in doubt", func() bool {
		data := w.call("status", args{"turn_id": turn})
		state, _ := data["interaction_state"].(args)
		actions, _ := data["available_actions"].(args)
		return state != nil && state["state"] == "response_uncertain" && state["interaction_id"] == step["interaction_id"] && actions["respond_interaction"] == nil
	})
	if !strings.Contains(pane.Screen().Text, "Question 1/2") {
		t.Errorf("an answer was submitted:\n%s", pane.Screen().Text)
	}
	pane.Key("Enter") // the user answers
	w.asked(turn, 2)
}

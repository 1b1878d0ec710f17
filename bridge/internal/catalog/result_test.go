package catalog_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

func TestCatalog_Run_Result(t *testing.T) {
	type body struct {
		TurnID  string         `json:"turn_id"`
		Text    string         `json:"text"`
		Count   int64          `json:"count"`
		Nothing *string        `json:"nothing"`
		List    []any          `json:"list"`
		Route   map[string]any `json:"callback_route"`
	}
	f := &fake{out: handoff.Outcome{Body: body{TurnID: "turn-1", Text: "a <b> & \u2028é", Count: 9007199254740993, List: []any{1, "x"}, Route: map[string]any{"a": 1}}}}
	res := run(t, open(t, f), "status", valid["status"])
	const want = `{
  "turn_id": "turn-1",
  "text": "a <b> & ` + "\\u2028" + `é",
  "count": 9007199254740993,
  "nothing": null,
  "list": [
    1,
    "x"
  ]
}`
	if diff := cmp.Diff(want, strings.ReplaceAll(res.Text, "\u2028", `\u2028`)); diff != "" {
		t.Error(diff)
	}
	if res.IsError || res.Code != "" {
		t.Errorf("IsError %t, code %q", res.IsError, res.Code)
	}
}

// Proves tools 11.14: a send without proven acceptance is an error result and
// not to be repeated, and stays what handoff said it is.
func TestCatalog_Run_FailedOutcome(t *testing.T) {
	f := &fake{out: handoff.Outcome{Failed: true, Body: map[string]any{
		"submission_outcome": "pending_acceptance", "status": "submission_pending_acceptance",
		"delivered": false, "do_not_retry": true, "delivery_receipt": "enter_dispatched",
	}}}
	res := run(t, open(t, f), "send", valid["send"])
	doc := object(t, res)
	if !res.IsError || doc["do_not_retry"] != true || doc["delivered"] != false || doc["delivery_receipt"] != "enter_dispatched" {
		t.Errorf("IsError %t, %v", res.IsError, doc)
	}
}

// A refusal about one Turn or Watch names it, so that the next step can be made.
func TestCatalog_Run_RefusalNamesItsTarget(t *testing.T) {
	for tool, args := range map[string]string{
		"cancel": `{"turn_id":"turn-1"}`, "close": `{"conversation_id":"turn-1"}`, "renew": `{"turn_id":"turn-1"}`,
		"retry_callback": `{"turn_id":"turn-1"}`, "approve": `{"turn_id":"turn-1"}`, "respond": `{"turn_id":"turn-1","request":"x"}`,
		"respond_interaction": `{"turn_id":"turn-1","interaction_id":"i1","answers":[{"question_id":"q1","response_kind":"confirm","confirm":true}]}`,
	} {
		doc := object(t, run(t, open(t, &fake{err: fault.New(fault.TurnStatusInvalid, "it has ended")}), tool, args))
		if next, _ := doc["next"].(map[string]any); next["action"] != "status" || next["turn_id"] != "turn-1" {
			t.Errorf("%s: %v", tool, doc)
		}
	}
	doc := object(t, run(t, open(t, &fake{err: fault.New(fault.ActiveOwner, "another owns it").With("turn_id", "turn-2")}), "cancel", `{"turn_id":"turn-1"}`))
	if next, _ := doc["next"].(map[string]any); next["turn_id"] != "turn-2" {
		t.Errorf("another Turn: %v", doc)
	}
}

func TestCatalog_Run_Refusals(t *testing.T) {
	tests := []struct {
		name string
		err  error
		want map[string]any
	}{
		{
			"plain", fault.New(fault.TerminalNotIdle, "send to work:0.1: the agent works"),
			map[string]any{"refused": true, "code": "terminal_not_idle", "reason": "send to work:0.1: the agent works", "terminal_input": "none",
				"do_not_retry": false, "safe_to_retry": false, "next": map[string]any{"action": "wait"}},
		},
		{
			"safe, hint, details", fault.New(fault.ActiveWatchExists, "watch: already watched").With("watch_id", "terminal-watch-7").WithHint("see\nit").Safe(),
			map[string]any{"refused": true, "code": "active_watch_exists", "reason": "watch: already watched", "terminal_input": "none",
				"do_not_retry": false, "safe_to_retry": true, "watch_id": "terminal-watch-7",
				"next": map[string]any{"action": "status", "watch_id": "terminal-watch-7", "hint": "see it"}},
		},
		{
			"possible input forces do_not_retry", fault.New(fault.TerminalChanged, "send: the pane changed").Safe().WithInput(fault.InputPossible),
			map[string]any{"refused": true, "code": "terminal_changed", "reason": "send: the pane changed", "terminal_input": "possible",
				"do_not_retry": true, "safe_to_retry": false, "next": map[string]any{"action": "list"}},
		},
		{
			"possible input never is safe", &fault.Error{Code: fault.StoreBusy, Message: "m", Input: fault.InputPossible, Retry: true},
			map[string]any{"refused": true, "code": "store_busy", "reason": "m", "terminal_input": "possible",
				"do_not_retry": true, "safe_to_retry": false, "next": map[string]any{"action": "retry"}},
		},
		{
			"own next, no fixed member replaced, no authority", fault.New(fault.TurnStatusInvalid, "m").With("status", "closed").With("code", "x").
				With("next", "yield").With("binding_token", "canary").With("nested", map[string]any{"lease_epoch": 1, "epoch": 2, "kept": "y"}),
			map[string]any{"refused": true, "code": "turn_status_invalid", "reason": "m", "terminal_input": "none",
				"do_not_retry": false, "safe_to_retry": false, "status": "closed", "next": map[string]any{"action": "yield"},
				"nested": map[string]any{"kept": "y"}},
		},
		{
			"detail without JSON form", fault.New(fault.NotFound, "m").With("bad", func() {}),
			map[string]any{"refused": true, "code": "not_found", "reason": "m", "terminal_input": "none",
				"do_not_retry": false, "safe_to_retry": false, "next": map[string]any{"action": "list"}},
		},
		{
			"wrapped", errors.Join(errors.New("outer"), fault.New(fault.SessionBusy, "busy").With("turn_id", "turn-9")),
			map[string]any{"refused": true, "code": "session_busy", "reason": "busy", "terminal_input": "none",
				"do_not_retry": false, "safe_to_retry": false, "turn_id": "turn-9", "next": map[string]any{"action": "status", "turn_id": "turn-9"}},
		},
		{
			"authority in the reason", fault.New(fault.SessionConflict, "session: revision 7 is not 8"),
			map[string]any{"refused": true, "code": "session_conflict", "reason": catalog.Withheld, "terminal_input": "none",
				"do_not_retry": false, "safe_to_retry": false, "next": map[string]any{"action": "list"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			res := run(t, open(t, &fake{err: tt.err}), "status", valid["status"])
			if !res.IsError {
				t.Error("not an error result")
			}
			if diff := cmp.Diff(tt.want, object(t, res)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// An unknown error is a fault of the program: its text stays in the log, and a
// tool that presses keys may have done so.
func TestCatalog_Run_UnknownError(t *testing.T) {
	for tool, input := range map[string]string{"list": "none", "close": "none", "send": "possible", "cancel": "possible"} {
		t.Run(tool, func(t *testing.T) {
			var log bytes.Buffer
			c, err := catalog.New(catalog.Options{Handoff: catalog.Ready(&fake{err: errors.New("secret detail")}), Log: slog.New(slog.NewTextHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			res := run(t, c, tool, valid[tool])
			doc := object(t, res)
			if doc["code"] != "internal" || doc["terminal_input"] != input || doc["safe_to_retry"] != false || doc["do_not_retry"] != (input == "possible") {
				t.Errorf("refusal %v", doc)
			}
			if strings.Contains(res.Text, "secret detail") || !strings.Contains(log.String(), "secret detail") {
				t.Errorf("text %s\nlog %s", res.Text, &log)
			}
		})
	}
}

// Every registered code renders, and its next step is one of the seven.
func TestCatalog_Run_EveryCode(t *testing.T) {
	steps := map[any]bool{"list": true, "status": true, "inspect": true, "wait": true, "retry": true, "yield": true, "none": true}
	for _, e := range fault.Entries() {
		doc := object(t, run(t, open(t, &fake{err: fault.New(e.Code, "m")}), "list", `{}`))
		next, _ := doc["next"].(map[string]any)
		if doc["code"] != string(e.Code) || !steps[next["action"]] {
			t.Errorf("%s: %v", e.Code, doc)
		}
	}
}

// Proves tools 11.4: colours, line ends, a stack and length come out as one
// clean line.
func TestCatalog_Run_ErrorText(t *testing.T) {
	long := "\x1b[31mread\x1b[0m the pane:\r\n\tgot\u0085nothing\x00 " + strings.Repeat("é ", 1000) +
		"\ngoroutine 1 [running]:\nmain.main()\n\t/src/main.go:7 +0x1d\n" + strings.Repeat("x", 2000)
	doc := object(t, run(t, open(t, &fake{err: fault.New(fault.ObservationUnavail, "%s", long).WithHint("%s", long)}), "list", `{}`))
	for name, v := range map[string]any{"reason": doc["reason"], "hint": doc["next"].(map[string]any)["hint"]} {
		got, _ := v.(string)
		if !strings.HasPrefix(got, "read the pane: got nothing é é") || !strings.HasSuffix(got, "...") {
			t.Errorf("%s: %.60q … %q", name, got, got[max(0, len(got)-8):])
		}
		if n := utf8.RuneCountInString(got); n > 1024 {
			t.Errorf("%s has %d characters", name, n)
		}
		if strings.ContainsFunc(got, unicode.IsControl) || strings.Contains(got, "  ") || strings.Contains(got, "goroutine") {
			t.Errorf("%s is not clean: %q", name, got)
		}
	}
}

// A stack never reaches a model, however short the text before it is.
func TestCatalog_Run_ErrorStack(t *testing.T) {
	for name, stack := range map[string]string{
		"go":   "goroutine 17 [running]:\nmain.main()\n\t/src/main.go:7 +0x1d",
		"node": "    at Object.run (/src/x.js:1:2)\n    at main (/src/y.js:3:4)",
	} {
		err := fault.New(fault.ObservationUnavail, "read failed\n%s", stack)
		if doc := object(t, run(t, open(t, &fake{err: err}), "list", `{}`)); doc["reason"] != "read failed" {
			t.Errorf("%s: reason %q", name, doc["reason"])
		}
	}
}

// A body that is no object is a fault of the program, not a frame on the wire.
func TestCatalog_Run_BadBody(t *testing.T) {
	for name, body := range map[string]any{"array": []int{1}, "text": "x", "no JSON": func() {}} {
		res := run(t, open(t, &fake{out: handoff.Outcome{Body: body}}), "list", `{}`)
		if res.Code != fault.Internal {
			t.Errorf("%s: %s", name, res.Text)
		}
	}
}

// A tool that panics is the caller's to recover; a cancelled one is a refusal
// that nobody reads.
func TestCatalog_Run_Cancelled(t *testing.T) {
	res := run(t, open(t, &fake{err: context.Canceled}), "send", valid["send"])
	if !res.IsError || res.Code != fault.Internal {
		t.Errorf("%+v", res)
	}
}

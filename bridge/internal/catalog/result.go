package catalog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/strictjson"
)

// render makes a Result of what a tool answered.
func (c *Catalog) render(out handoff.Outcome) (Result, error) {
	data, err := marshal(out.Body)
	if err != nil {
		return Result{}, fmt.Errorf("render a %T: %w", out.Body, err)
	}
	if data, err = c.scrub.object(data); err != nil {
		return Result{}, fmt.Errorf("render a %T: %w", out.Body, err)
	}
	return Result{Text: pretty(data), Structured: data, IsError: out.Failed}, nil
}

// refuse makes a Result of an error. An error without a code is a fault of this
// program: its text goes to the log, and a tool that types may have typed.
func (c *Catalog) refuse(t *spec, err error) Result {
	e, known := fault.As(err)
	if !known || e.Code == fault.Internal {
		if !errors.Is(err, context.Canceled) {
			c.log.Error("tool failed", "tool", Prefix+t.name, "err", err)
		}
		plain := fault.New(fault.Internal, "internal error; the log of the bridge has the details")
		switch {
		case e != nil:
			plain.Input = e.Input
		case t.types:
			plain.Input = fault.InputPossible
		}
		e = plain
	}
	data, err := c.scrub.object(refusal(e))
	if err != nil { // a Details value that has no JSON form
		c.log.Error("refusal cannot be rendered", "tool", Prefix+t.name, "code", e.Code, "err", err)
		bare := *e
		bare.Details = nil
		data, _ = c.scrub.object(refusal(&bare))
	}
	return Result{Text: pretty(data), Structured: data, IsError: true, Code: e.Code}
}

// members of a refusal that details may not replace.
var fixedMembers = []string{"refused", "code", "reason", "terminal_input", "do_not_retry", "safe_to_retry", "next"}

// refusal is the object of tools §4, members in the order a reader wants them.
// Public details follow; a detail named "next" overrides the next step.
func refusal(e *fault.Error) []byte {
	input := e.Input
	if input == "" {
		input = fault.InputNone
	}
	doc := strictjson.Object{
		{Name: "refused", Value: true},
		{Name: "code", Value: string(e.Code)},
		{Name: "reason", Value: cleanLine(e.Message)},
		{Name: "terminal_input", Value: string(input)},
		{Name: "do_not_retry", Value: input != fault.InputNone || final[e.Code]},
		{Name: "safe_to_retry", Value: input == fault.InputNone && e.Retry},
		{Name: "next", Value: next(e)},
	}
	for _, name := range slices.Sorted(maps.Keys(e.Details)) {
		if !slices.Contains(fixedMembers, name) {
			doc = append(doc, strictjson.Member{Name: name, Value: e.Details[name]})
		}
	}
	data, err := doc.JSON()
	if err != nil {
		return nil
	}
	return data
}

// final are conditions that a repetition cannot get past, or must not try to.
var final = map[fault.Code]bool{
	fault.StoreIncompatible: true, fault.VersionUnsupported: true,
	fault.CapabilityMissing: true, fault.IdempotencyConflict: true,
	fault.SubmissionUncertain: true, fault.SubmissionPending: true, fault.SubmissionNotAccept: true, fault.SubmissionUnfenced: true,
	fault.CallbackExhausted: true, fault.CallbackPermanent: true, fault.CallbackUncertain: true,
}

// steps names what to do after a refusal; codes that are not here want a list.
var steps = map[fault.Code]string{
	fault.InvalidArguments: "none", fault.WrongIDKind: "list",
	fault.StoreUnavailable: "none", fault.StoreIncompatible: "none", fault.StoreBusy: "retry",
	fault.TerminalBusy: "wait", fault.TerminalNotIdle: "wait", fault.ObservationUnavail: "wait",
	fault.ApprovalPending: "inspect", fault.InteractionPending: "inspect", fault.ComposerNotEmpty: "inspect",
	fault.OfferMissing: "status", fault.OfferExpired: "status", fault.OfferChanged: "status", fault.Expired: "status",
	fault.NativeSlashCommand: "none", fault.SessionBusy: "status", fault.ActiveOwner: "status",
	fault.ActiveWatchExists: "status", fault.TurnStatusInvalid: "status", fault.WatchConflict: "status",
	fault.VersionUnsupported: "none", fault.CapabilityMissing: "none", fault.InputNotStarted: "retry",
	fault.SubmissionUncertain: "inspect", fault.SubmissionNotAccept: "inspect", fault.SubmissionPending: "yield",
	fault.SubmissionAborted: "retry", fault.SubmissionUnfenced: "status", fault.IdempotencyConflict: "none",
	fault.CallbackUnavailable: "status", fault.CallbackInFlight: "wait", fault.CallbackExhausted: "none",
	fault.CallbackPermanent: "none", fault.CallbackUncertain: "none", fault.CallbackConflict: "none",
	fault.DeferredTransfer: "wait", fault.SiblingUnavailable: "wait", fault.ShuttingDown: "none",
	fault.InvalidType: "status", fault.UnknownField: "status", fault.LimitExceeded: "status", fault.ControlCharacter: "status",
	fault.SecretNotAllowed: "status", fault.InteractionMismatch: "status", fault.ResponseNotAllowed: "status",
	fault.AnswerKindMismatch: "status", fault.UnknownQuestion: "status", fault.UnknownOption: "status", fault.MissingAnswer: "status",
	fault.Internal: "status",
}

// next says what to do now, with the one id that the step is about.
func next(e *fault.Error) any {
	if own, ok := e.Details["next"]; ok {
		if action, ok := own.(string); ok {
			return strictjson.Object{{Name: "action", Value: action}}
		}
		return own
	}
	action, ok := steps[e.Code]
	if !ok {
		action = "list"
	}
	if action == "retry" && !e.Retry {
		action = "status"
	}
	id := ""
	for _, name := range []string{"turn_id", "watch_id"} {
		if _, ok := e.Details[name].(string); ok {
			id = name
			break
		}
	}
	if action == "status" && id == "" {
		action = "list" // status needs an id
	}
	doc := strictjson.Object{{Name: "action", Value: action}}
	if id != "" && action != "list" {
		doc = append(doc, strictjson.Member{Name: id, Value: e.Details[id]})
	}
	if e.Hint != "" {
		doc = append(doc, strictjson.Member{Name: "hint", Value: cleanLine(e.Hint)})
	}
	return doc
}

// stack is the first line of a stack trace, of Go or of a script engine.
var stack = regexp.MustCompile(`(?m)^(?:goroutine \d+ \[|\s+at \S+ ?\()`)

// cleanLine is what a model may read of an error's text.
func cleanLine(s string) string {
	if at := stack.FindStringIndex(s); at != nil {
		s = s[:at[0]]
	}
	return fault.CleanLine(s)
}

func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

func pretty(data []byte) string {
	var buf bytes.Buffer
	if err := json.Indent(&buf, data, "", "  "); err != nil {
		return string(data)
	}
	return buf.String()
}

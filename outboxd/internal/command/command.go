// Package command is the transport command_json_v1: it hands one notification
// to the Host's callback executable and turns what the process proves into one
// outcome (host-profile §5.2–§6.2).
//
// Prepare makes every check that needs no process; the caller then commits the
// start marker; Run starts the program, exactly once. An outcome that Prepare
// gives is certain, since nothing ran. Anything unclear after the start is
// uncertain and is never repeated by us.
//
// The child gets an argument array, the allow-listed variables and nothing else,
// the event's body on stdin, / as working directory, and a process group of its
// own. Its output is read for the acknowledgement and then forgotten: no part of
// stdout, stderr, arguments or environment reaches an outcome, an error or a log.
package command

import (
	"context"
	"errors"
	"time"

	"drawbridge/shared/callback"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/process"
	"drawbridge/shared/profile"
	"drawbridge/shared/strictjson"
)

const (
	waitDelay     = 2 * time.Second // for output after the end of the child (host-profile §5.3)
	maxAcceptance = 1024            // code points kept of an acceptance id
)

// Attempt is one delivery as its row has it.
type Attempt struct {
	Number   int64 // from 1
	ID       string
	Route    callback.Route
	Envelope callback.Envelope
}

// Transport delivers under one Profile. The caller makes it anew for each
// attempt, from the Profile as it is on disk at that moment.
type Transport struct {
	Profile profile.Profile
	Session string   // the captured controller session; not looked at under route_bound_v1
	Environ []string // from which the allow-listed variables are taken
	Now     func() time.Time
}

// Call is an attempt that passed all checks and has not been started.
type Call struct {
	transport Transport
	attempt   Attempt
	spec      process.Spec
}

// Prepare makes the checks that come before a process, in their order. A nil
// Call means that the outcome is final and nothing was started.
func (t Transport) Prepare(a Attempt) (*Call, callback.Outcome) {
	if code := t.refuse(a); code != "" {
		return nil, callback.NoProcess(callback.PermanentFailure, code)
	}
	args, err := t.Profile.Arguments(profile.Values{
		SessionID:      a.Route.ControllerSessionID,
		DeliveryID:     a.Envelope.DeliveryID,
		MessageID:      a.Envelope.Event.ID,
		IdempotencyKey: a.Envelope.IdempotencyKey,
	})
	if err != nil {
		return nil, callback.NoProcess(callback.PermanentFailure, callback.CodeConfiguration)
	}
	return &Call{t, a, process.Spec{
		Path:      t.Profile.Executable(),
		Args:      args,
		Env:       t.Profile.Environment(t.Environ),
		Dir:       "/",
		Stdin:     []byte(a.Envelope.Event.Body),
		MaxStdout: t.Profile.MaxOutput(),
		MaxStderr: t.Profile.MaxOutput(),
		Timeout:   t.Profile.Timeout(),
		WaitDelay: waitDelay,
		Complete:  func(stdout []byte) bool { _, ok := document(stdout); return ok },
		Started:   func(process.Incarnation) { crashpoint.At("callback_child_running") },
	}}, callback.Outcome{}
}

// refuse gives the code of the first of rows 1 to 5 that applies.
func (t Transport) refuse(a Attempt) string {
	switch {
	case a.Route.Valid() != nil:
		return callback.CodeRouteInvalid
	case a.Route.Transport != t.Profile.Transport():
		return callback.CodeTransport
	case a.Route.ProfileID != t.Profile.ID():
		return callback.CodeProfileMismatch
	case a.Route.ProfileRevision != t.Profile.Revision():
		return callback.CodeRevisionMismatch
	case t.Profile.Scope() != profile.ScopeRouteBound && a.Route.ControllerSessionID != t.Session:
		return callback.CodeSessionMismatch
	case a.Envelope.Route != callback.Identity(a.Route):
		return callback.CodeEnvelopeRoute
	case a.Number < 1 || strictjson.TrimSpace(a.ID) == "":
		return callback.CodeAttemptInvalid
	}
	return ""
}

// Run starts the program and blocks until it has ended or hit a limit. ctx ends
// the child with SIGKILL; a drain does not end it.
func (c *Call) Run(ctx context.Context) callback.Outcome {
	res := process.Run(ctx, c.spec)
	crashpoint.At("callback_child_ended")
	out := c.judge(res)
	out.Status, out.Signal = res.Exit, res.Signal
	return out
}

// judge is rows 7 to 18; the first that applies.
func (c *Call) judge(res process.Result) callback.Outcome {
	uncertain := func(code string) callback.Outcome {
		return callback.Outcome{Disposition: callback.Uncertain, Code: code}
	}
	if !res.Ran {
		var start *process.StartError
		if errors.As(res.Err, &start) && start.Unavailable() {
			return callback.Outcome{Disposition: callback.PermanentFailure, Code: callback.CodeExecutable}
		}
		return callback.Outcome{Disposition: callback.RetryableFailure, Code: callback.CodeSpawnFailed}
	}
	switch {
	case res.Limit == process.Cancelled:
		return uncertain(callback.CodeExecution)
	case res.Limit != process.None:
		return uncertain(callback.CodeExecutionLimit)
	case res.Err != nil:
		return uncertain(callback.CodeExecution)
	}
	tree, ok := document(res.Stdout)
	if !ok {
		if res.Exit != 0 || res.Signal != "" {
			return uncertain(callback.CodeExitUnacknowledged)
		}
		return uncertain(callback.CodeAcknowledgement)
	}
	return c.acknowledged(tree)
}

// acknowledged is rows 12 to 18: what a well-formed document says.
func (c *Call) acknowledged(tree any) callback.Outcome {
	fail := func(d callback.Disposition, code string) callback.Outcome {
		return callback.Outcome{Disposition: d, Code: code}
	}
	ack := c.transport.Profile.Acknowledgement()
	word, ok := textAt(tree, ack.Disposition)
	if !ok || strictjson.TrimSpace(word) == "" {
		return fail(callback.Uncertain, callback.CodeAcknowledgement)
	}
	disposition, ok := ack.Mapping[word]
	if !ok {
		return fail(callback.Uncertain, callback.CodeDispositionUnknown)
	}
	delivery, ok1 := textAt(tree, ack.DeliveryID)
	message, ok2 := textAt(tree, ack.MessageID)
	if !ok1 || !ok2 {
		return fail(callback.Uncertain, callback.CodeAcknowledgement)
	}
	if delivery != c.attempt.Envelope.DeliveryID || message != c.attempt.Envelope.Event.ID {
		return fail(callback.Uncertain, callback.CodeIdentityMismatch)
	}
	switch disposition {
	case callback.Accepted:
		id, ok := textAt(tree, ack.AcceptanceID)
		if !ok || strictjson.TrimSpace(id) == "" {
			return fail(callback.Uncertain, callback.CodeAcknowledgement)
		}
		return callback.Outcome{Disposition: callback.Accepted, AcceptanceID: bounded(id), AcceptedAt: c.transport.Now()}
	case callback.RetryableFailure:
		return fail(callback.RetryableFailure, callback.CodeRetryable)
	case callback.PermanentFailure:
		return fail(callback.PermanentFailure, callback.CodePermanent)
	}
	return fail(callback.Uncertain, callback.CodeUncertain)
}

// document reads stdout as one strict JSON document. Its size is bounded by the
// Profile's output limit already.
func document(stdout []byte) (any, bool) {
	tree, err := strictjson.Parse(stdout, strictjson.Limits{MaxBytes: profile.MaxOutput})
	if err != nil {
		return nil, false
	}
	return tree, true
}

func textAt(tree any, pointer string) (string, bool) {
	v, ok := strictjson.Pointer(tree, pointer)
	if !ok {
		return "", false
	}
	s, ok := v.(string)
	return s, ok
}

// bounded keeps the head of an acceptance id: it is evidence, not a key.
func bounded(id string) string {
	if r := []rune(id); len(r) > maxAcceptance {
		return string(r[:maxAcceptance])
	}
	return id
}

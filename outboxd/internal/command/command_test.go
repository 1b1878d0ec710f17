package command_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"drawbridge/outboxd/internal/command"
	"drawbridge/outboxd/internal/fakehost"
	"drawbridge/shared/callback"
	"drawbridge/shared/process"
)

const session = "trusted-session-id"

var clock = time.Date(2026, 8, 25, 12, 0, 0, 0, time.UTC)

func TestMain(m *testing.M) {
	fakehost.Main()
	goleak.VerifyTestMain(m)
}

func transport(t *testing.T, h *fakehost.Host) command.Transport {
	t.Helper()
	p, _ := h.Load()
	return command.Transport{Profile: p, Session: session, Environ: fakehost.Environ(session), Now: func() time.Time { return clock }}
}

func attempt(t *testing.T, h *fakehost.Host, body string) command.Attempt {
	t.Helper()
	route := h.Capture(session).Route
	return command.Attempt{
		Number: 1, ID: "attempt-1", Route: route,
		Envelope: callback.TurnEnvelope(route, callback.TurnSource("s", "t"), callback.Event{ID: "msg-1", Type: callback.EventDone, Body: body}),
	}
}

// run prepares and runs; a test that wants no process uses Prepare.
func run(t *testing.T, tr command.Transport, a command.Attempt) callback.Outcome {
	t.Helper()
	call, out := tr.Prepare(a)
	if call == nil {
		t.Fatalf("refused before the start: %+v", out)
	}
	return call.Run(context.Background())
}

// Proves host-profile 15.25, rows 1 to 6: the code, and no process.
func TestPrepare_Refusals(t *testing.T) {
	other := func(change func(*command.Transport, *command.Attempt)) func(*command.Transport, *command.Attempt) {
		return change
	}
	for name, c := range map[string]struct {
		change func(*command.Transport, *command.Attempt)
		code   string
	}{
		"1 route without a session": {other(func(_ *command.Transport, a *command.Attempt) { a.Route.ControllerSessionID = "" }), callback.CodeRouteInvalid},
		"1 route of another schema": {other(func(_ *command.Transport, a *command.Attempt) { a.Route.Schema = "x" }), callback.CodeRouteInvalid},
		"2 another transport":       {other(func(_ *command.Transport, a *command.Attempt) { a.Route.Transport = "openclaw_v1" }), callback.CodeTransport},
		"3 another profile":         {other(func(_ *command.Transport, a *command.Attempt) { a.Route.ProfileID = "other" }), callback.CodeProfileMismatch},
		"3 another revision":        {other(func(_ *command.Transport, a *command.Attempt) { a.Route.ProfileRevision = "old" }), callback.CodeRevisionMismatch},
		// Proves host-profile 15.31 (the second half).
		"3 another session":          {other(func(_ *command.Transport, a *command.Attempt) { a.Route.ControllerSessionID = "other" }), callback.CodeSessionMismatch},
		"4 the envelope's copy":      {other(func(_ *command.Transport, a *command.Attempt) { a.Envelope.Route.ControllerSessionID = "other" }), callback.CodeEnvelopeRoute},
		"5 attempt zero":             {other(func(_ *command.Transport, a *command.Attempt) { a.Number = 0 }), callback.CodeAttemptInvalid},
		"5 blank attempt id":         {other(func(_ *command.Transport, a *command.Attempt) { a.ID = " \u00a0" }), callback.CodeAttemptInvalid},
		"6 a value opens a template": {other(func(_ *command.Transport, a *command.Attempt) { a.Envelope.DeliveryID = "x${y}" }), callback.CodeConfiguration},
		"6 a value with NUL":         {other(func(_ *command.Transport, a *command.Attempt) { a.Envelope.Event.ID = "x\x00" }), callback.CodeConfiguration},
		"the first row wins": {other(func(_ *command.Transport, a *command.Attempt) {
			a.Number, a.Route.ProfileRevision, a.Route.ProfileID = 0, "old", "other"
		}), callback.CodeProfileMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakehost.New(t)
			tr, a := transport(t, h), attempt(t, h, "body")
			c.change(&tr, &a)
			call, out := tr.Prepare(a)
			want := callback.Outcome{Disposition: callback.PermanentFailure, Code: c.code, Status: -1}
			if d := cmp.Diff(want, out); d != "" || call != nil {
				t.Errorf("(-want +got):\n%s", d)
			}
			if n := len(h.Calls()); n != 0 {
				t.Errorf("%d processes were started", n)
			}
		})
	}
}

func text(s string) *string { return &s }

// Proves host-profile 15.25 (rows 8 to 18) and host-profile 15.26: what a process proves.
func TestRun_Outcomes(t *testing.T) {
	accepted := callback.Outcome{Disposition: callback.Accepted, AcceptanceID: "acceptance-1", AcceptedAt: clock}
	fail := func(d callback.Disposition, code string, status int) callback.Outcome {
		return callback.Outcome{Disposition: d, Code: code, Status: status}
	}
	with := func(o callback.Outcome, status int) callback.Outcome { o.Status = status; return o }
	killed := callback.Outcome{Disposition: callback.Uncertain, Code: callback.CodeExecutionLimit, Status: -1, Signal: "SIGKILL"}
	for name, c := range map[string]struct {
		script  fakehost.Script
		replace []string
		want    callback.Outcome
	}{
		"8 timeout":                    {fakehost.Script{SleepBefore: 60000}, []string{"8000", "150"}, killed},
		"8 timeout after the answer":   {fakehost.Script{Word: "accepted", SleepAfter: 60000}, []string{"8000", "1500"}, killed},
		"8 output limit":               {fakehost.Script{Noise: 70000, SleepAfter: 60000}, nil, killed},
		"8 answer beyond the limit":    {fakehost.Script{Word: "accepted", Noise: 65536, SleepAfter: 60000}, nil, killed},
		"8 error output limit":         {fakehost.Script{Stderr: 70000, SleepAfter: 60000}, nil, killed},
		"8 answer, then error flood":   {fakehost.Script{Word: "accepted", Stderr: 70000, SleepAfter: 60000}, nil, killed},
		"10 nothing printed":           {fakehost.Script{}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"10 no JSON":                   {fakehost.Script{Raw: text("ok\n")}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"10 two documents":             {fakehost.Script{Raw: text("{}{}")}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"10 half a document":           {fakehost.Script{Raw: text(`{"result":`)}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"10 a member twice":            {fakehost.Script{Raw: text(`{"a":1,"a":1}`)}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"11 nothing printed, status 3": {fakehost.Script{Exit: 3}, nil, fail(callback.Uncertain, callback.CodeExitUnacknowledged, 3)},
		"11 no JSON, a signal": {fakehost.Script{Raw: text("x"), Kill: true}, nil,
			callback.Outcome{Disposition: callback.Uncertain, Code: callback.CodeExitUnacknowledged, Status: -1, Signal: "SIGTERM"}},
		"12 disposition absent":        {fakehost.Script{Raw: text(`{"request":{}}`)}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"12 disposition a number":      {fakehost.Script{Raw: text(`{"result":{"status":1}}`)}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"12 disposition blank":         {fakehost.Script{Word: " \ufeff"}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"13 unknown word":              {fakehost.Script{Word: "Accepted"}, nil, fail(callback.Uncertain, callback.CodeDispositionUnknown, 0)},
		"13 before 15":                 {fakehost.Script{Word: "other", Delivery: "x"}, nil, fail(callback.Uncertain, callback.CodeDispositionUnknown, 0)},
		"14 delivery id a number":      {fakehost.Script{Word: "accepted", Delivery: 5}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"14 message id absent":         {fakehost.Script{Raw: text(`{"result":{"status":"retry"},"request":{"delivery_id":"x"}}`)}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"15 another delivery":          {fakehost.Script{Word: "accepted", Delivery: "x"}, nil, fail(callback.Uncertain, callback.CodeIdentityMismatch, 0)},
		"15 another message":           {fakehost.Script{Word: "rejected", Message: "msg-2"}, nil, fail(callback.Uncertain, callback.CodeIdentityMismatch, 0)},
		"15 padded message":            {fakehost.Script{Word: "accepted", Message: "msg-1 "}, nil, fail(callback.Uncertain, callback.CodeIdentityMismatch, 0)},
		"16 acceptance id absent":      {fakehost.Script{Word: "accepted", NoAccept: true}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"16 acceptance id blank":       {fakehost.Script{Word: "accepted", Acceptance: "\u2003"}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"16 acceptance id a number":    {fakehost.Script{Word: "accepted", Acceptance: 42}, nil, fail(callback.Uncertain, callback.CodeAcknowledgement, 0)},
		"17 accepted":                  {fakehost.Script{Word: "accepted"}, nil, accepted},
		"17 accepted with status 7":    {fakehost.Script{Word: "accepted", Exit: 7}, nil, with(accepted, 7)},
		"17 accepted, then a signal":   {fakehost.Script{Word: "accepted", Kill: true}, nil, func() callback.Outcome { o := with(accepted, -1); o.Signal = "SIGTERM"; return o }()},
		"17 accepted, stdin unread":    {fakehost.Script{Word: "accepted", Unread: true}, nil, accepted},
		"17 accepted at the limit":     {fakehost.Script{Word: "accepted", Noise: 65536 - 300}, nil, accepted},
		"17 error output is no answer": {fakehost.Script{Word: "accepted", Stderr: 1000}, nil, accepted},
		"18 retry":                     {fakehost.Script{Word: "retry"}, nil, fail(callback.RetryableFailure, callback.CodeRetryable, 0)},
		"18 retry needs no acceptance": {fakehost.Script{Word: "retry", NoAccept: true, Exit: 1}, nil, fail(callback.RetryableFailure, callback.CodeRetryable, 1)},
		"18 rejected":                  {fakehost.Script{Word: "rejected"}, nil, fail(callback.PermanentFailure, callback.CodePermanent, 0)},
		"18 unknown":                   {fakehost.Script{Word: "unknown"}, nil, fail(callback.Uncertain, callback.CodeUncertain, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := fakehost.New(t, c.replace...)
			h.Script(c.script)
			got := run(t, transport(t, h), attempt(t, h, "body"))
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			// A child that a limit ended may not have come to its record.
			if n := len(h.Calls()); n > 1 || n == 0 && c.want.Signal != "SIGKILL" {
				t.Errorf("%d processes were started", n)
			}
		})
	}
}

// Proves host-profile 15.25, rows 7 and 7a.
func TestRun_StartErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	busy := file("busy", "", 0o755)
	copyProgram(t, busy)
	f, err := os.OpenFile(busy, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, c := range map[string]struct {
		executable string
		want       callback.Outcome
	}{
		"7 missing":               {filepath.Join(dir, "none"), callback.NoProcess(callback.PermanentFailure, callback.CodeExecutable)},
		"7 below a file":          {busy + "/x", callback.NoProcess(callback.PermanentFailure, callback.CodeExecutable)},
		"7 a directory":           {dir, callback.NoProcess(callback.PermanentFailure, callback.CodeExecutable)},
		"7 not executable":        {file("plain", "#!/bin/sh\n", 0o644), callback.NoProcess(callback.PermanentFailure, callback.CodeExecutable)},
		"7 interpreter missing":   {file("script", "#!/nonexistent/interpreter\n", 0o755), callback.NoProcess(callback.PermanentFailure, callback.CodeExecutable)},
		"7a busy (ETXTBSY)":       {busy, callback.NoProcess(callback.RetryableFailure, callback.CodeSpawnFailed)},
		"7a no program (ENOEXEC)": {file("text", "hello", 0o755), callback.NoProcess(callback.RetryableFailure, callback.CodeSpawnFailed)},
	} {
		t.Run(name, func(t *testing.T) {
			h := fakehost.New(t, "/usr/local/bin/my-agent", c.executable)
			got := run(t, transport(t, h), attempt(t, h, "body"))
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// Proves host-profile 15.27: the allow-listed, set variables and nothing else.
func TestRun_Environment(t *testing.T) {
	t.Setenv("CANARY_SECRET", "CANARY-parent")
	h := fakehost.New(t, `"MY_AGENT_TOKEN"`, `"MY_AGENT_TOKEN", "NOT_SET", "EMPTY"`, `"PATH"`, `"NOT_SET_EITHER"`)
	tr := transport(t, h)
	tr.Environ = append(tr.Environ, "EMPTY=")
	run(t, tr, attempt(t, h, "body"))
	got := h.Calls()[0]
	slices.Sort(got.Env)
	if d := cmp.Diff([]string{"EMPTY=", "MY_AGENT_TOKEN=CANARY-token"}, got.Env); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got.Dir != "/" {
		t.Errorf("working directory: got %s", got.Dir)
	}
}

func TestRun_EmptyEnvironment(t *testing.T) {
	h := fakehost.New(t, `"MY_AGENT_TOKEN"`, `"NOT_SET"`, `"PATH"`, `"NOT_SET_EITHER"`)
	run(t, transport(t, h), attempt(t, h, "body"))
	if got := h.Calls()[0].Env; len(got) != 0 {
		t.Errorf("got %q", got)
	}
}

// Proves host-profile 15.28: the body byte for byte on stdin, and nowhere else.
func TestRun_Body(t *testing.T) {
	for name, body := range map[string]string{
		"shell":    "$(touch /tmp/x) `id` \"quotes\" 'q' ${envelope.body} $HOME ; | & \\\n",
		"newlines": "\n\n a \r\n\ttab\n",
		"empty":    "",
		"unicode":  "é \u2028 \ufeff 🙂",
		"1 MiB":    strings.Repeat("0123456789abcde\n", 1<<16),
	} {
		t.Run(name, func(t *testing.T) {
			h := fakehost.New(t)
			if out := run(t, transport(t, h), attempt(t, h, body)); out.Disposition != callback.Accepted {
				t.Fatalf("got %+v", out)
			}
			got := h.Calls()[0]
			sum := sha256.Sum256([]byte(body))
			if got.BodyLength != len(body) || got.BodySHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("got %d bytes, want %d", got.BodyLength, len(body))
			}
			for _, a := range got.Args {
				if body != "" && strings.Contains(a, body) {
					t.Errorf("argument %q holds the body", a)
				}
			}
		})
	}
}

// A child that does not read 1 MiB is no hindrance.
func TestRun_BodyUnread(t *testing.T) {
	h := fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", Unread: true})
	if out := run(t, transport(t, h), attempt(t, h, strings.Repeat("x", 1<<20))); out.Disposition != callback.Accepted {
		t.Errorf("got %+v", out)
	}
}

func TestRun_Arguments(t *testing.T) {
	h := fakehost.New(t)
	a := attempt(t, h, "body")
	run(t, transport(t, h), a)
	want := []string{h.Dir, session, a.Envelope.DeliveryID, "msg-1", a.Envelope.IdempotencyKey}
	if d := cmp.Diff(want, h.Calls()[0].Args); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Under route_bound_v1 the session is the route's.
func TestRun_RouteBound(t *testing.T) {
	h := fakehost.New(t, `"driver": "environment_v1"`, `"driver": "environment_v1", "scope": "route_bound_v1"`)
	p, _ := h.Load()
	route := callback.Route{
		Schema: "agent-knock-knock/callback-route", Version: 1, Transport: "command_json_v1",
		ProfileID: p.ID(), ProfileRevision: p.Revision(), ControllerSessionID: "another-session",
	}
	tr := command.Transport{Profile: p, Environ: fakehost.Environ(session), Now: time.Now}
	a := command.Attempt{Number: 1, ID: "a", Route: route, Envelope: callback.TurnEnvelope(route, callback.TurnSource("s", "t"), callback.Event{ID: "m", Type: "done"})}
	if out := run(t, tr, a); out.Disposition != callback.Accepted {
		t.Fatalf("got %+v", out)
	}
	if got := h.Calls()[0].Session; got != "another-session" {
		t.Errorf("session: got %s", got)
	}
}

// Proves host-profile 15.29.
func TestRun_TimeoutEndsTheGroup(t *testing.T) {
	h := fakehost.New(t, "8000", "500")
	h.Script(fakehost.Script{Grandchild: true, SleepBefore: 60000})
	begin := time.Now()
	out := run(t, transport(t, h), attempt(t, h, "body"))
	if out.Code != callback.CodeExecutionLimit {
		t.Errorf("got %+v", out)
	}
	if d := time.Since(begin); d > 1500*time.Millisecond {
		t.Errorf("it took %v", d)
	}
	for _, pid := range []int{h.Calls()[0].PID, h.PID("grandchild")} {
		deadline := time.Now().Add(time.Second)
		for alive(pid) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d is still there", pid)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func alive(pid int) bool {
	info, err := process.Stat(pid)
	return err == nil && !info.Dead() && syscall.Kill(pid, 0) == nil
}

// A complete answer counts although a descendant keeps stdout, and at once.
func TestRun_DescendantHoldsOutput(t *testing.T) {
	h := fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", Holder: true})
	begin := time.Now()
	out := run(t, transport(t, h), attempt(t, h, "body"))
	if out.Disposition != callback.Accepted {
		t.Errorf("got %+v", out)
	}
	if d := time.Since(begin); d >= 2*time.Second { // the wait for output
		t.Errorf("it took %v", d)
	}
	if !alive(h.PID("holder")) {
		t.Error("the descendant of a clean exit was ended")
	}
}

// Without an answer the wait for a descendant's output is bounded.
func TestRun_DescendantHoldsOutputWithoutAnswer(t *testing.T) {
	h := fakehost.New(t)
	h.Script(fakehost.Script{Holder: true})
	begin := time.Now()
	out := run(t, transport(t, h), attempt(t, h, "body"))
	if out.Code != callback.CodeAcknowledgement {
		t.Errorf("got %+v", out)
	}
	if d := time.Since(begin); d > 4*time.Second {
		t.Errorf("it took %v", d)
	}
	h.PID("holder") // ends it
}

// A context that ends kills the child, and nothing is claimed about it.
func TestRun_Cancelled(t *testing.T) {
	h := fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", SleepAfter: 60000})
	ctx, cancel := context.WithCancel(context.Background())
	call, _ := transport(t, h).Prepare(attempt(t, h, "body"))
	go func() {
		for len(h.Calls()) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		cancel()
	}()
	if out := call.Run(ctx); out.Code != callback.CodeExecution || out.Disposition != callback.Uncertain {
		t.Errorf("got %+v", out)
	}
}

func TestRun_LongAcceptanceIDIsCut(t *testing.T) {
	h := fakehost.New(t)
	h.Script(fakehost.Script{Word: "accepted", Acceptance: strings.Repeat("é", 5000)})
	if out := run(t, transport(t, h), attempt(t, h, "body")); out.AcceptanceID != strings.Repeat("é", 1024) {
		t.Errorf("kept %d bytes", len(out.AcceptanceID))
	}
}

// Part of host-profile 15.37: an outcome has no text of the child or of us.
func TestRun_OutcomeHoldsNoSecret(t *testing.T) {
	h := fakehost.New(t)
	h.Script(fakehost.Script{Raw: text("CANARY-output"), Stderr: 10, Exit: 3})
	out := run(t, transport(t, h), attempt(t, h, "CANARY-body"))
	if s := fmt.Sprintf("%+v", out); strings.Contains(s, "CANARY") || strings.Contains(s, session) || strings.Contains(s, h.Dir) {
		t.Errorf("got %s", s)
	}
}

package connector

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"drawbridge/bridge/internal/hostbridge"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/process"
	"drawbridge/shared/strictjson"
)

// How the Host's pane is found.
const (
	paneThread  = "thread"  // its proven native thread is the controller session
	paneCurrent = "current" // its agent process started, over bridge and outboxd, this one
)

const (
	head     = "drawbridge callback (a program wrote this, not the user):\n"
	maxTyped = handoff.MaxRequest - 256 // bytes of a body that is typed
	cutNote  = "\n[cut: the rest is in the record of the Turn; status shows it]"
	idlePoll = 300 * time.Millisecond
	// margin is what is left for the answer when the time is over.
	margin = time.Second
)

// intoPane types the body into the Host's own pane, once for each idempotency key,
// and believes only the Host's transcript. While the Host is busy it waits.
//
// The message goes as a Turn of a controller session of its own, without a
// route, so what was typed is a row before it is typed and a repeated attempt
// finds it. A Turn that was accepted is closed at once: the Host's answer is
// nobody's business.
func (s *settings) intoPane(ctx context.Context, stderr io.Writer) Verdict {
	s.Session = hidden(s.message.Session)
	b, err := s.Open(ctx, stderr)
	if err != nil {
		return refuse(Retry, "%v", err)
	}
	defer b.Close()
	ctx, cancel := before(ctx, margin)
	defer cancel()
	call := handoff.Call{
		ToolCallID: "connector:" + string(strictjson.List(s.message.IdempotencyKey, s.message.MessageID)),
		Tool:       "connector",
	}
	in := handoff.SendInput{Request: typed(s.message.Body)}
	if s.pane == paneThread {
		in.Thread = strings.ToLower(s.message.Session)
	}
	last := refuse(Retry, "the time is over")
	for {
		in.TerminalID, err = s.find(ctx, b)
		if err == nil {
			var out handoff.Outcome
			if out, err = b.Desk.Send(ctx, call, in); err == nil {
				return s.settled(ctx, b, call, in, out)
			}
		}
		if last = judge(err); last.Word != Retry || !wait(ctx, idlePoll) {
			return last
		}
	}
}

// find gives the terminal id of the Host's pane.
func (s *settings) find(ctx context.Context, b *hostbridge.Bench) (string, error) {
	if s.pane == paneThread {
		return b.Desk.PaneOfThread(ctx, strings.ToLower(s.message.Session))
	}
	return b.Desk.PaneOfProcess(ctx, ancestors())
}

// settled waits until the submission is decided, and closes its Turn.
func (s *settings) settled(ctx context.Context, b *hostbridge.Bench, call handoff.Call, in handoff.SendInput, out handoff.Outcome) Verdict {
	for {
		r, ok := out.Body.(handoff.SendResult)
		if !ok {
			return refuse(Unknown, "the send answered something else")
		}
		switch r.Outcome {
		case "agent_accepted":
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), margin)
			defer cancel()
			// What is left open is closed by its end: the monitor follows it.
			_, _ = b.Desk.Close(closing, handoff.Call{ToolCallID: call.ToolCallID + "/close", Tool: "connector"},
				handoff.CloseInput{TurnID: r.TurnID, Reason: "delivered to the Host"})
			return Verdict{Word: Accepted, AcceptanceID: r.Message.ID}
		case "aborted":
			return refuse(Retry, "nothing was typed: %s", r.Reason)
		case "pending_acceptance":
			if wait(ctx, idlePoll) {
				next, err := b.Desk.Send(ctx, call, in) // a replay: it types nothing
				if err == nil {
					out = next
					continue
				}
			}
		}
		return refuse(Unknown, "%s: %s", r.Outcome, r.Reason)
	}
}

// judge says what a refusal of send means for the delivery.
func judge(err error) Verdict {
	f, ok := fault.As(err)
	switch {
	case !ok:
		return refuse(Retry, "%v", err) // before any input: what follows the mark is an outcome
	case f.Input != "" && f.Input != fault.InputNone, f.Code == fault.IdempotencyConflict: // sent into another pane before
		return refuse(Unknown, "%s", f.Message)
	case f.Code == fault.InvalidArguments, f.Code == fault.NativeSlashCommand:
		return refuse(Rejected, "%s", f.Message)
	}
	return refuse(Retry, "%s", f.Message)
}

// hidden is the controller session of the Turns that deliver: derived, so that
// the Host's own stands in no row but its route.
func hidden(session string) string {
	sum := sha256.Sum256([]byte("drawbridge.connector.v1\x00" + session))
	return "connector:" + hex.EncodeToString(sum[:16])
}

// typed is the body as a request: what it is, no control characters, bounded.
func typed(body string) string {
	body = strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(strings.ReplaceAll(body, "\r\n", "\n"), "\uFFFD"))
	body = strings.TrimSpace(body)
	if len(body) > maxTyped {
		at := maxTyped - len(cutNote)
		body = strings.ToValidUTF8(body[:at], "") + cutNote
	}
	return head + body
}

// ancestors lists the pids from our parent upwards.
func ancestors() []int {
	var out []int
	for pid := os.Getpid(); pid > 1; {
		info, err := process.Stat(pid)
		if err != nil || info.PPID <= 1 {
			break
		}
		out = append(out, info.PPID)
		pid = info.PPID
	}
	return out
}

// before ends d earlier than ctx.
func before(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if at, ok := ctx.Deadline(); ok {
		return context.WithDeadline(ctx, at.Add(-d))
	}
	return context.WithCancel(ctx)
}

func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

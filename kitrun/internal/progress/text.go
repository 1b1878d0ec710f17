package progress

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"

	"drawbridge/kitrun/internal/worker"
)

// text says in one line where the run is. The caller holds out.
func (p *Progress) text() string {
	e := p.last
	state := e.State
	if state == "" {
		state = "starting"
	}
	parts := []string{fmt.Sprintf("%s %s", Elapsed(p.opt.Now().Sub(p.since)), state)}
	if e.Reason != "" {
		parts[0] += " (" + name(e.Reason) + ")"
	}
	if e.Events > 0 {
		last := name(e.Codex)
		if e.Item != "" {
			last += " " + name(e.Item)
		}
		parts = append(parts, fmt.Sprintf("%s, last %s", many(int64(e.Events), "event"), last))
	}
	if p.known && p.lent.Requests+p.lent.Refused > 0 {
		text := many(p.lent.Requests, "request")
		if p.lent.Refused > 0 {
			text += fmt.Sprintf(" and %s refused", grouped(p.lent.Refused))
		}
		parts = append(parts, text)
	}
	switch in, out := e.InputTokens, e.OutputTokens; {
	case in >= 0 && out >= 0: // the turn's own count, which comes at its end
		parts = append(parts, Tokens(in, out))
	case p.known && p.lent.InputTokens+p.lent.OutputTokens > 0:
		parts = append(parts, Tokens(p.lent.InputTokens, p.lent.OutputTokens))
	}
	if e.ObservedBytes >= 0 && e.ObservedEntries >= 0 {
		parts = append(parts, fmt.Sprintf("disk %s in %s", Bytes(e.ObservedBytes), many(e.ObservedEntries, "entry")))
	}
	return strings.Join(parts, "; ")
}

// eventName is what Codex calls its events and their items.
var eventName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// name passes on what looks like the name of an event. It comes out of the
// container, and a terminal obeys what it is told.
func name(s string) string {
	if eventName.MatchString(s) {
		return s
	}
	return "(unnamed)"
}

// Elapsed writes a time as 0:07, 12:34 or 1:02:03.
func Elapsed(d time.Duration) string {
	s := int64(max(d, 0) / time.Second)
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// Tokens writes two counts of tokens.
func Tokens(in, out int64) string {
	return fmt.Sprintf("tokens %s in, %s out", grouped(in), grouped(out))
}

// Bytes writes a size with one digit after the point.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, i := float64(n), -1
	for value >= unit && i < 5 {
		value /= unit
		i++
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTPE"[i])
}

func many(n int64, noun string) string {
	if n != 1 {
		noun = strings.TrimSuffix(noun, "y") + map[bool]string{true: "ies", false: "s"}[strings.HasSuffix(noun, "y")]
	}
	return grouped(n) + " " + noun
}

// grouped writes 12345 as 12,345.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// cut shortens a line of plain characters to the columns that there are.
func cut(s string, columns int) string {
	if len(s) <= columns {
		return s
	}
	return s[:max(columns, 0)]
}

// Log gives a writer for whatever else goes to the same terminal: the line makes
// room and comes back.
func (p *Progress) Log() io.Writer { return logWriter{p} }

type logWriter struct{ p *Progress }

func (l logWriter) Write(data []byte) (int, error) {
	p := l.p
	p.out.Lock()
	defer p.out.Unlock()
	if p.shown == "" {
		return p.opt.Out.Write(data)
	}
	_, _ = io.WriteString(p.opt.Out, startOfLine)
	n, err := p.opt.Out.Write(data)
	_, _ = io.WriteString(p.opt.Out, p.shown)
	return n, err
}

// Outcome says in one line how a run ended.
func Outcome(r worker.Receipt, took time.Duration) string {
	how := "completed"
	switch t := r.Terminal; {
	case r.Completed:
	case r.StorageViolation != nil:
		how = "killed: " + name(*r.StorageViolation)
	case t.Timeout:
		how = "killed at its deadline"
	case t.Cancelled:
		how = "cancelled"
	case t.Overflow:
		how = "killed: too much output"
	case t.OOM:
		how = "out of memory"
	case t.Status != nil && *t.Status != 0:
		how = fmt.Sprintf("failed with status %d", *t.Status)
		if t.Signal != nil {
			// Neither a bound nor a signal of ours; the engine does not say whose it was.
			how += " (killed from elsewhere, as kitrun worker cancel does)"
		}
	default:
		how = "no complete turn"
	}
	text := fmt.Sprintf("worker %s: %s after %s", r.Observed.InvocationID, how, Elapsed(took))
	if r.Failure != "" {
		text += fmt.Sprintf(": Codex says %q", r.Failure)
	}
	if r.Usage.Complete {
		text += "; " + Tokens(r.Usage.InputTokens, r.Usage.OutputTokens)
	}
	return text
}

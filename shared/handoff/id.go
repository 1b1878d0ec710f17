package handoff

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Forms of the ids that a model sees (tools §2).
const (
	sessionPrefix = "session-"
	turnPrefix    = "turn-"
	watchPrefix   = "terminal-watch-"
)

// newID gives prefix + UTC time + 8 hex digits of randomness, e.g.
// turn-20261130T120000-1a2b3c4d.
func (d *Desk) newID(prefix string) string {
	sum := sha256.Sum256([]byte(d.NewID()))
	return prefix + d.now().UTC().Format("20060102T150405") + "-" + hex.EncodeToString(sum[:4])
}

// messageID derives the message id of one tool call: the same call gives the
// same id, so that a replay meets its own row (tools §5).
func messageID(controller string, call Call) string {
	doc, err := strictjson.Canonical([]any{controller, controller, call.Tool, call.ToolCallID})
	if err != nil { // strings only: cannot fail
		panic(err)
	}
	return "msg-host-" + hash(doc)
}

// checkTurnID refuses ids of another kind.
func checkTurnID(id string) error {
	for _, p := range []string{"@", "terminal:", sessionPrefix, watchPrefix} {
		if strings.HasPrefix(id, p) {
			return fault.New(fault.WrongIDKind, "%q is not a turn id", clip(id, 80)).
				WithHint("use the turn_id of a send result or of list")
		}
	}
	if id == "" {
		return fault.New(fault.InvalidArguments, "turn_id is missing")
	}
	return nil
}

func digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s;", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// clip cuts s to at most n code points and says so.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-3]) + "..."
}

func stamp(ms int64) string {
	if ms == 0 {
		return ""
	}
	return time.UnixMilli(ms).UTC().Format(time.RFC3339)
}

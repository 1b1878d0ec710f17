package operator

import (
	"context"
	"encoding/json"
	"strings"

	"drawbridge/bridge/internal/hostbridge"
	"drawbridge/shared/fault"
)

// A shape says which arguments of a tool stand on the command line without a
// name, in their order.
type shape struct {
	args  string   // for people
	takes []string // what each argument is: a member's name, or one of the kinds below
	least int
	long  string
	fixed map[string]any // members that one would never type
}

// Kinds of arguments that are not one member.
const (
	anyID      = "id"     // turn, watch or terminal, told by its beginning
	decisionID = "either" // turn_id or terminal_id
	stepID     = "step"   // turn_id or watch_id
	targetID   = "target" // session_id or terminal_id
)

const refs = "Ids may be short refs (@…) as list shows them."

var shapes = map[string]shape{
	"list":                   {},
	"status":                 {args: "<id>", takes: []string{anyID}, least: 1, long: "The id is that of a Turn, a Watch or a terminal. " + refs},
	"send":                   {args: "[<target>] <request>", takes: []string{targetID, "request"}, least: 0, long: "The target is a session or terminal id, and may be left out where exactly one pane is ready.\nThe request \"-\" is read from standard input. " + refs},
	"watch":                  {args: "<terminal>", takes: []string{"terminal_id"}, least: 1, long: refs},
	"unwatch":                {args: "<watch>", takes: []string{"watch_id"}, least: 1},
	"renew":                  {args: "<turn>", takes: []string{"turn_id"}, least: 1},
	"retry_callback":         {args: "<turn>", takes: []string{"turn_id"}, least: 1},
	"cancel":                 {args: "<turn>", takes: []string{"turn_id"}, least: 1},
	"close":                  {args: "<turn>", takes: []string{"turn_id"}, least: 1},
	"respond":                {args: "<turn> <request>", takes: []string{"turn_id", "request"}, least: 2},
	"respond_interaction":    {args: "<id>", takes: []string{stepID}, least: 1, long: "The id is that of a Turn or a Watch; --interaction-id and --answers are as status shows them."},
	"approve":                {args: "<id>", takes: []string{decisionID}, least: 1, long: "The id is that of a Turn or a terminal. It decides the prompt that status has just shown:\nrun bridge status first. --decision reject refuses it. " + refs},
	"native_inspect":         {args: "<terminal>", takes: []string{"terminal_id"}, least: 1, long: refs, fixed: map[string]any{"inspection": "status"}},
	"identify_foreground":    {args: "<terminal>", takes: []string{"terminal_id"}, least: 1, long: refs},
	"identify_and_send":      {args: "<terminal> <request>", takes: []string{"terminal_id", "request"}, least: 2, long: refs},
	"list_resumable_threads": {args: "<terminal>", takes: []string{"terminal_id"}, least: 1, long: refs},
	"new_thread":             {args: "<terminal>", takes: []string{"terminal_id"}, least: 1, long: refs},
	"resume_thread":          {args: "<terminal> <thread>", takes: []string{"terminal_id", "native_thread_id"}, least: 2, long: refs},
	"reconcile_binding":      {args: "<terminal> <session>", takes: []string{"terminal_id", "conflicting_session_id"}, least: 2, long: refs},
}

// fill puts the arguments into doc.
func (h shape) fill(ctx context.Context, s streams, b *hostbridge.Bench, args []string, doc map[string]any) error {
	for name, v := range h.fixed {
		if _, given := doc[name]; !given {
			doc[name] = v
		}
	}
	takes := h.takes
	if len(args) == 1 && len(takes) == 2 && h.least == 0 {
		takes = takes[1:] // send without a target
	}
	for i, arg := range args {
		name := takes[i]
		var err error
		if name == "request" {
			arg, err = s.argument(arg)
		} else {
			arg, err = resolve(ctx, b, arg)
		}
		if err != nil {
			return err
		}
		if name, err = member(name, arg); err != nil {
			return err
		}
		if _, given := doc[name]; given {
			return fault.New(fault.Usage, "%s is given twice, as an argument and as --%s", name, dashed(name))
		}
		doc[name] = arg
	}
	return nil
}

// member gives the member that an argument of several kinds stands for.
func member(kind, arg string) (string, error) {
	turn, watch := strings.HasPrefix(arg, "turn-"), strings.HasPrefix(arg, "terminal-watch-")
	terminal, session := strings.HasPrefix(arg, "terminal:"), strings.HasPrefix(arg, "session-")
	switch kind {
	case anyID:
		switch {
		case turn:
			return "turn_id", nil
		case watch:
			return "watch_id", nil
		case terminal:
			return "conversation_id", nil
		}
		return "", fault.New(fault.WrongIDKind, "%q is not the id of a Turn, a Watch or a terminal", arg).WithHint("bridge list shows the ids")
	case decisionID:
		if terminal {
			return "terminal_id", nil
		}
		return "turn_id", nil
	case stepID:
		if watch {
			return "watch_id", nil
		}
		return "turn_id", nil
	case targetID:
		if session {
			return "session_id", nil
		}
		return "terminal_id", nil
	}
	return kind, nil
}

// resolve gives the id that a short ref stands for. Tools take ids alone; the
// look-up is for people.
func resolve(ctx context.Context, b *hostbridge.Bench, arg string) (string, error) {
	if !strings.HasPrefix(arg, "@") {
		return arg, nil
	}
	res, err := Call(ctx, b.Tools, "list", []byte(`{"all":true,"noApprovalScan":true}`))
	if err != nil {
		return "", err
	}
	if res.IsError {
		f, err := refusal(res)
		if err != nil {
			return "", err
		}
		return "", f
	}
	var doc any
	if err := json.Unmarshal(res.Structured, &doc); err != nil {
		return "", err
	}
	found := map[string]bool{}
	lookFor(doc, arg, found)
	if len(found) == 1 {
		for id := range found {
			return id, nil
		}
	}
	if len(found) > 1 {
		return "", fault.New(fault.TerminalAmbiguous, "%s stands for several ids", arg).WithHint("use the id itself: bridge list -json")
	}
	return "", fault.New(fault.NotFound, "%s stands for nothing that list shows", arg).WithHint("bridge list shows the short refs")
}

// lookFor collects the ids that stand beside a short ref.
func lookFor(v any, ref string, found map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			lookFor(e, ref, found)
		}
	case map[string]any:
		for name, id := range map[string]string{"short_ref": "id", "session_short_ref": "session_id", "watch_short_ref": "watch_id"} {
			if v[name] != ref {
				continue
			}
			for _, id := range []string{id, "watch_id"} {
				if text, ok := v[id].(string); ok {
					found[text] = true
					break
				}
			}
		}
		for _, e := range v {
			lookFor(e, ref, found)
		}
	}
}

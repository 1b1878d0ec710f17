package catalog

import (
	"errors"
	"math"
	"regexp"
	"strings"
	"unicode"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// Rules of arguments that no schema expresses (tools §1, §2, §4).
const (
	maxMinutes = 10 * 366 * 24 * 60 // beyond it a deadline means nothing and times overflow
	maxID      = 512                // bytes of any id

	statusWaiting = "waiting_for_controller"
	statusAlias   = "waiting_for_openclaw" // the reference's name of it, as a filter
)

var (
	terminalForm = regexp.MustCompile(translatePattern(`^terminal:v[0-9]+:\S+$`))
	watchForm    = regexp.MustCompile(`^terminal-watch-[A-Za-z0-9._:-]+$`)
)

// turnArgs is the pair of names for one Turn; the schema lets only one through.
type turnArgs struct {
	TurnID         *string `json:"turn_id"`
	ConversationID *string `json:"conversation_id"` // deprecated alias
}

func (a turnArgs) turn() (string, error) {
	name, id := "turn_id", a.TurnID
	if id == nil {
		name, id = "conversation_id", a.ConversationID
	}
	if id == nil {
		return "", refuseArgument("give turn_id")
	}
	return *id, turnID(name, *id)
}

// turnID refuses ids of another kind before anything is looked up.
func turnID(name, id string) error {
	return idKind(name, id, "a turn id", "@", "terminal:", "session-", "terminal-watch-")
}

func sessionID(name, id string) error {
	return idKind(name, id, "a session id", "@", "terminal:", "turn-", "terminal-watch-")
}

func watchID(id string) error {
	if err := idKind("watch_id", id, "a watch id", "@", "terminal:", "session-", "turn-"); err != nil {
		return err
	}
	if !watchForm.MatchString(id) {
		return fault.New(fault.WrongIDKind, "watch_id is not a watch id").
			WithHint("use a watch_id of list or of a watch result").Safe()
	}
	return nil
}

func idKind(name, id, want string, others ...string) error {
	switch {
	case id == "":
		return refuseArgument("%s is empty", name)
	case len(id) > maxID || strings.ContainsFunc(id, unicode.IsControl):
		return refuseArgument("%s is not an id", name)
	}
	for _, prefix := range others {
		if strings.HasPrefix(id, prefix) {
			return fault.New(fault.WrongIDKind, "%s is not %s: it begins with %q", name, want, prefix).
				WithHint("take the id from list, status or a send result; a short ref is never an argument").Safe()
		}
	}
	return nil
}

// minutes refuses what is not a positive, finite span.
func minutes(name string, v *float64) error {
	switch {
	case v == nil:
		return nil
	case math.IsNaN(*v) || math.IsInf(*v, 0) || *v <= 0:
		return refuseArgument("%s must be a positive number of minutes", name)
	case *v > maxMinutes:
		return refuseArgument("%s must be at most %d minutes", name, maxMinutes)
	}
	return nil
}

func refuseArgument(format string, args ...any) error {
	return fault.New(fault.InvalidArguments, format, args...).Safe()
}

// statusInput sorts out what conversation_id stands for: a Turn, or the raw
// terminal selector that list prefilled.
func statusInput(args []byte) (handoff.StatusInput, error) {
	var raw struct {
		turnArgs
		WatchID            *string  `json:"watch_id"`
		IdleTimeoutMinutes *float64 `json:"idleTimeoutMinutes"`
		Trace              bool     `json:"trace"`
	}
	if err := decode(args, &raw); err != nil {
		return handoff.StatusInput{}, err
	}
	if err := minutes("idleTimeoutMinutes", raw.IdleTimeoutMinutes); err != nil {
		return handoff.StatusInput{}, err
	}
	in := handoff.StatusInput{IdleTimeoutMinutes: raw.IdleTimeoutMinutes, Trace: raw.Trace}
	switch {
	case raw.WatchID != nil:
		in.WatchID = *raw.WatchID
		return in, watchID(in.WatchID)
	case raw.ConversationID != nil && terminalForm.MatchString(*raw.ConversationID):
		in.TerminalID = *raw.ConversationID
		return in, idKind("conversation_id", in.TerminalID, "an id")
	}
	turn, err := raw.turn()
	in.TurnID = turn
	return in, err
}

func sendInput(args []byte) (handoff.SendInput, error) {
	var raw struct {
		handoff.SendInput
		Type string `json:"type"`
	}
	if err := decode(args, &raw); err != nil {
		return handoff.SendInput{}, err
	}
	in := raw.SendInput
	err := errors.Join(
		minutes("idleTimeoutMinutes", in.IdleTimeoutMinutes),
		minutes("agentTimeoutMinutes", in.AgentTimeoutMinutes),
		minutes("agentHardTimeoutMinutes", in.AgentHardTimeoutMinutes))
	if err != nil {
		return handoff.SendInput{}, err
	}
	switch {
	case raw.Type != "" && raw.Type != "task":
		return handoff.SendInput{}, refuseArgument("type must be task")
	case in.TurnID != "":
		return in, turnID("turn_id", in.TurnID)
	}
	if in.SessionID != "" {
		if err := sessionID("session_id", in.SessionID); err != nil {
			return handoff.SendInput{}, err
		}
	}
	return in, handoff.CheckRequest(in.Request)
}

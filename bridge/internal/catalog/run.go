package catalog

import (
	"context"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// Each tool decodes what its schema let through, applies the rules that no schema
// expresses, and asks handoff.

func runList(ctx context.Context, h Handoff, _ handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.ListInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("idleTimeoutMinutes", in.IdleTimeoutMinutes); err != nil {
		return handoff.Outcome{}, err
	}
	if in.Status == statusAlias {
		in.Status = statusWaiting
	}
	return h.List(ctx, in)
}

func runStatus(ctx context.Context, h Handoff, _ handoff.Call, args []byte) (handoff.Outcome, error) {
	in, err := statusInput(args)
	if err != nil {
		return handoff.Outcome{}, err
	}
	return h.Status(ctx, in)
}

func runSend(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	in, err := sendInput(args)
	if err != nil {
		return handoff.Outcome{}, err
	}
	return h.Send(ctx, call, in)
}

func runWatch(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.WatchInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("hardTimeoutMinutes", in.HardTimeoutMinutes); err != nil {
		return handoff.Outcome{}, err
	}
	return h.Watch(ctx, call, in)
}

func runUnwatch(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.UnwatchInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := watchID(in.WatchID); err != nil {
		return handoff.Outcome{}, err
	}
	return h.Unwatch(ctx, call, in)
}

func runRenew(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in struct {
		turnArgs
		Minutes *float64 `json:"minutes"`
	}
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("minutes", in.Minutes); err != nil {
		return handoff.Outcome{}, err
	}
	out, err := h.Renew(ctx, call, handoff.RenewInput{TurnID: turn, Minutes: in.Minutes})
	return out, about(err, "turn_id", turn)
}

func runRetryCallback(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in turnArgs
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if err != nil {
		return handoff.Outcome{}, err
	}
	out, err := h.RetryCallback(ctx, call, handoff.RetryCallbackInput{TurnID: turn})
	return out, about(err, "turn_id", turn)
}

func runCancel(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in struct {
		turnArgs
		IdleTimeoutMinutes *float64 `json:"idleTimeoutMinutes"`
	}
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if err != nil {
		return handoff.Outcome{}, err
	}
	if err := minutes("idleTimeoutMinutes", in.IdleTimeoutMinutes); err != nil {
		return handoff.Outcome{}, err
	}
	out, err := h.Cancel(ctx, call, handoff.CancelInput{TurnID: turn, IdleTimeoutMinutes: in.IdleTimeoutMinutes})
	return out, about(err, "turn_id", turn)
}

func runApprove(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.ApproveInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	err := turnID("turn_id", in.TurnID)
	if in.TerminalID != "" {
		err = idKind("terminal_id", in.TerminalID, "an id")
	}
	if err != nil {
		return handoff.Outcome{}, err
	}
	out, err := h.Approve(ctx, call, in)
	return out, about(err, "turn_id", in.TurnID)
}

func runRespond(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.RespondInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	if err := turnID("turn_id", in.TurnID); err != nil {
		return handoff.Outcome{}, err
	}
	if err := handoff.CheckRequest(in.Request); err != nil {
		return handoff.Outcome{}, err
	}
	out, err := h.Respond(ctx, call, in)
	return out, about(err, "turn_id", in.TurnID)
}

func runClose(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in struct {
		turnArgs
		Reason               string `json:"reason"`
		ExpectedMessageID    string `json:"expected_message_id"`
		ExpectedTransitionID string `json:"expected_transition_id"`
	}
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	turn, err := in.turn()
	if in.ConversationID != nil && in.ExpectedTransitionID != "" && terminalForm.MatchString(*in.ConversationID) {
		// A transition belongs to a pane, not to a Turn.
		turn, err = *in.ConversationID, idKind("conversation_id", *in.ConversationID, "an id")
	}
	if err != nil {
		return handoff.Outcome{}, err
	}
	out, err := h.Close(ctx, call, handoff.CloseInput{
		TurnID: turn, Reason: fault.CleanLine(in.Reason),
		ExpectedMessageID: in.ExpectedMessageID, ExpectedTransitionID: in.ExpectedTransitionID,
	})
	if terminalForm.MatchString(turn) {
		return out, err
	}
	return out, about(err, "turn_id", turn)
}

func runNativeInspect(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.NativeInspectInput
	if err := forPane(args, &in, &in.TerminalID); err != nil {
		return handoff.Outcome{}, err
	}
	return h.NativeInspect(ctx, call, in)
}

func runIdentifyForeground(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.IdentifyForegroundInput
	if err := forPane(args, &in, &in.TerminalID); err != nil {
		return handoff.Outcome{}, err
	}
	return h.IdentifyForeground(ctx, call, in)
}

func runIdentifyAndSend(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.IdentifyAndSendInput
	if err := forPane(args, &in, &in.TerminalID); err != nil {
		return handoff.Outcome{}, err
	}
	for _, m := range []struct {
		name  string
		value *float64
	}{
		{"idleTimeoutMinutes", in.IdleTimeoutMinutes}, {"agentTimeoutMinutes", in.AgentTimeoutMinutes},
		{"agentHardTimeoutMinutes", in.AgentHardTimeoutMinutes},
	} {
		if err := minutes(m.name, m.value); err != nil {
			return handoff.Outcome{}, err
		}
	}
	if err := handoff.CheckRequest(in.Request); err != nil {
		return handoff.Outcome{}, err
	}
	return h.IdentifyAndSend(ctx, call, in)
}

func runListResumableThreads(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.ListResumableThreadsInput
	if err := forPane(args, &in, &in.TerminalID); err != nil {
		return handoff.Outcome{}, err
	}
	return h.ListResumableThreads(ctx, call, in)
}

func runNewThread(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.NewThreadInput
	if err := forPane(args, &in, &in.TerminalID); err != nil {
		return handoff.Outcome{}, err
	}
	return h.NewThread(ctx, call, in)
}

func runResumeThread(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.ResumeThreadInput
	if err := forPane(args, &in, &in.TerminalID); err != nil {
		return handoff.Outcome{}, err
	}
	in.NativeThreadID = strings.ToLower(in.NativeThreadID) // compared in lower case (tools §2)
	return h.ResumeThread(ctx, call, in)
}

func runReconcileBinding(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.ReconcileBindingInput
	if err := forPane(args, &in, &in.TerminalID); err != nil {
		return handoff.Outcome{}, err
	}
	if err := sessionID("conflicting_session_id", in.ConflictingSessionID); err != nil {
		return handoff.Outcome{}, err
	}
	return h.ReconcileBinding(ctx, call, in)
}

func runRespondInteraction(ctx context.Context, h Handoff, call handoff.Call, args []byte) (handoff.Outcome, error) {
	var in handoff.RespondInteractionInput
	if err := decode(args, &in); err != nil {
		return handoff.Outcome{}, err
	}
	err := watchID(in.WatchID)
	if in.TurnID != "" {
		err = turnID("turn_id", in.TurnID)
	}
	if err != nil {
		return handoff.Outcome{}, err
	}
	out, err := h.RespondInteraction(ctx, call, in)
	return out, about(about(err, "turn_id", in.TurnID), "watch_id", in.WatchID)
}

// forPane decodes the arguments of a tool that acts on one pane.
func forPane(args []byte, in any, id *string) error {
	if err := decode(args, in); err != nil {
		return err
	}
	return idKind("terminal_id", *id, "an id")
}

// about names what a refusal is about, unless it does so itself: status, the usual
// next step, needs the id.
func about(err error, name, id string) error {
	f, ok := fault.As(err)
	if !ok || id == "" {
		return err
	}
	if _, named := f.Details[name]; !named {
		f.With(name, id) // in place: err may wrap it
	}
	return err
}

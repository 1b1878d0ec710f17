package handoff

// Call identifies one accepted tools/call. A repeated call with the same id is
// a replay and never types twice (tools §5).
type Call struct {
	ToolCallID string // "host-bridge:" + JSON([instance id, request id])
	Tool       string // full tool name, agent_knock_knock_send …
}

// Outcome is what a tool answers. Failed results are shown to the model with
// isError although they are no refusal (tools §4).
type Outcome struct {
	Body   any // marshals to one JSON object
	Failed bool
}

// ListInput selects what list shows.
type ListInput struct {
	Agent              string   `json:"agent,omitzero"`
	Status             string   `json:"status,omitzero"`
	All                bool     `json:"all,omitzero"`
	NoApprovalScan     bool     `json:"noApprovalScan,omitzero"`
	TerminalDebug      bool     `json:"terminalDebug,omitzero"`
	IdleTimeoutMinutes *float64 `json:"idleTimeoutMinutes,omitzero"`
}

// StatusInput names exactly one Turn, raw terminal or Watch. TerminalID is set
// by the catalog when conversation_id holds a raw terminal selector.
type StatusInput struct {
	TurnID             string   `json:"turn_id,omitzero"`
	TerminalID         string   `json:"terminal_id,omitzero"`
	WatchID            string   `json:"watch_id,omitzero"`
	IdleTimeoutMinutes *float64 `json:"idleTimeoutMinutes,omitzero"`
	Trace              bool     `json:"trace,omitzero"`
}

// SendInput is the request form (Request with at most one target) or the retry
// form (TurnID alone).
type SendInput struct {
	TurnID                  string   `json:"turn_id,omitzero"`
	SessionID               string   `json:"session_id,omitzero"`
	TerminalID              string   `json:"terminal_id,omitzero"`
	Request                 string   `json:"request,omitzero"`
	IdleTimeoutMinutes      *float64 `json:"idleTimeoutMinutes,omitzero"`      // retention
	AgentTimeoutMinutes     *float64 `json:"agentTimeoutMinutes,omitzero"`     // inactivity
	AgentHardTimeoutMinutes *float64 `json:"agentHardTimeoutMinutes,omitzero"` // hard lifetime

	// Thread is the native thread (lower case) that the pane must be proven to
	// hold when it is typed into; "" leaves it open. No tool has it.
	Thread string `json:"-"`
}

// WatchInput starts a Terminal Watch.
type WatchInput struct {
	TerminalID         string   `json:"terminal_id"`
	HardTimeoutMinutes *float64 `json:"hardTimeoutMinutes,omitzero"`
}

// UnwatchInput ends one.
type UnwatchInput struct {
	WatchID string `json:"watch_id"`
}

// RenewInput goes on monitoring a stalled Turn.
type RenewInput struct {
	TurnID  string   `json:"turn_id"`
	Minutes *float64 `json:"minutes,omitzero"`
}

// RetryCallbackInput makes a waiting callback due now.
type RetryCallbackInput struct {
	TurnID string `json:"turn_id"`
}

// CancelInput interrupts a Turn once.
type CancelInput struct {
	TurnID             string   `json:"turn_id"`
	IdleTimeoutMinutes *float64 `json:"idleTimeoutMinutes,omitzero"`
}

// CloseInput closes a Turn or resolves an orphan.
type CloseInput struct {
	TurnID               string `json:"turn_id"`
	Reason               string `json:"reason,omitzero"`
	ExpectedMessageID    string `json:"expected_message_id,omitzero"`
	ExpectedTransitionID string `json:"expected_transition_id,omitzero"`
}

// NativeInspectInput runs the agent's own status screen once.
type NativeInspectInput struct {
	TerminalID string `json:"terminal_id"`
	Inspection string `json:"inspection"` // status
}

// IdentifyForegroundInput asks which thread a pane shows.
type IdentifyForegroundInput struct {
	TerminalID string `json:"terminal_id"`
}

// IdentifyAndSendInput asks that and sends a task under the same hold.
type IdentifyAndSendInput struct {
	TerminalID              string   `json:"terminal_id"`
	Request                 string   `json:"request"`
	IdleTimeoutMinutes      *float64 `json:"idleTimeoutMinutes,omitzero"`
	AgentTimeoutMinutes     *float64 `json:"agentTimeoutMinutes,omitzero"`
	AgentHardTimeoutMinutes *float64 `json:"agentHardTimeoutMinutes,omitzero"`
}

// ListResumableThreadsInput lists what a pane could go on with.
type ListResumableThreadsInput struct {
	TerminalID string `json:"terminal_id"`
}

// NewThreadInput starts a clean native thread.
type NewThreadInput struct {
	TerminalID string `json:"terminal_id"`
}

// ResumeThreadInput goes on in an earlier native thread.
type ResumeThreadInput struct {
	TerminalID     string `json:"terminal_id"`
	NativeThreadID string `json:"native_thread_id"`
}

// ReconcileBindingInput detaches one stale Session from a pane.
type ReconcileBindingInput struct {
	TerminalID           string `json:"terminal_id"`
	ConflictingSessionID string `json:"conflicting_session_id"`
}

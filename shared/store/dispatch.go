package store

// Dispatch statuses and proof stages (core §5.2).
const (
	DispatchPrepared        = "prepared"
	DispatchTextInjected    = "text_injected"
	DispatchEnterDispatched = "enter_dispatched"
	DispatchAccepted        = "agent_accepted"
	DispatchNotAccepted     = "not_accepted"
	DispatchUncertain       = "uncertain"
	DispatchAborted         = "aborted"
)

// Kinds of dispatch.
const (
	KindTask   = "task"
	KindAnswer = "answer"
)

// Dispatch is the receipt of one message and the ledger of its submission.
type Dispatch struct {
	MessageID           string
	ToolCallID          string
	TurnID              string
	SessionID           string
	BindingID           string
	BindingGeneration   int64
	Kind                string
	TerminalKey         string
	Generation          int64 // counts the submissions into this pane
	PreviousMessageID   string
	Agent               string
	NativeThreadID      string // "" until a provisional one was accepted
	ControllerSessionID string
	BodyHash            string
	RequestHash         string
	Status              string
	LastProvenStage     string
	InputMayHaveStarted bool
	SafeToRetry         bool
	Anchor              []byte // JSON
	Acceptance          []byte // JSON or nil
	Dispatcher          string // holder
	LeaseEpoch          int64
	PreparedAt          int64
	TextInjectedAt      int64
	EnterDispatchedAt   int64
	AcceptedAt          int64
	SettledAt           int64
	ErrorCode           string
	ResolvedAt          int64 // 0: open
	ResolvedReason      string
}

// Fence says that one operation on a pane is unresolved.
type Fence struct {
	TerminalKey string
	Kind        string // dispatch, transition
	RefID       string // message id or transition id
	Generation  int64
	LeaseEpoch  int64
	CreatedAt   int64
}

// Attach says which Session a new Turn belongs to. Exactly one form:
//
//   - SessionID set: that bound Session at Revision (0: any), whose live binding
//     must be this process (IncarnationKey) and, if NativeThreadID is set, this
//     thread; else session_conflict.
//   - SessionID empty, NativeThreadID set: the proven live thread. The Session
//     with a live binding of this thread and process is used; else the detached
//     Session that had this thread last; else a new one (NewSessionID).
//   - both empty: provisional. A new Session and a binding without thread.
//
// A live binding of the same process to another thread (or to none) is
// session_conflict, unless Replace is set (terminal_follow_current): then it is
// released and its Session detached, provided no Turn of that Session blocks
// (active_owner; deferred_transfer while a provisional binding is still open).
type Attach struct {
	SessionID      string
	Revision       int64
	NativeThreadID string // lower case
	NewSessionID   string // id for the Session if one must be made; required unless SessionID
	Agent          string
	Workspace      string
	Replace        bool
	DeadBindings   []string // live binding ids whose process the caller proved dead; released first
	Binding        NewBinding
}

// NewDispatch is everything PrepareDispatch needs. Three forms:
//
//   - new Turn: Kind task, NewTurnID and Attach set;
//   - answer: Kind answer, TurnID of a Turn in waiting_for_controller;
//   - retry form of send: Kind task, TurnID of a stalled Turn whose dispatch is
//     not_accepted or uncertain.
//
// In the last two Attach.Binding.TerminalKey and IncarnationKey must be those
// of the Turn's live binding.
type NewDispatch struct {
	MessageID           string
	ToolCallID          string
	Kind                string
	TurnID              string
	NewTurnID           string
	Attach              Attach
	ControllerSessionID string
	Route               []byte // canonical JSON; nil: record only, no callbacks
	RequestText         string
	BodyHash            string
	RequestHash         string
	Anchor              []byte  // JSON
	InactivityMinutes   float64 // 0: 60
	HardMinutes         float64 // 0: 720
	RetentionMinutes    float64 // 0: 10080
}

// Receipt is what makes two calls with one message id the same call (tools §5).
// Empty fields other than the hashes are not compared.
type Receipt struct {
	MessageID           string
	Kind                string
	TurnID              string // answer and retry form
	SessionID           string // strict form
	TerminalKey         string
	Agent               string
	ControllerSessionID string
	NativeThreadID      string
	BodyHash            string
	RequestHash         string
}

// Submission is a dispatch with what it belongs to.
type Submission struct {
	Turn     Turn
	Session  Session
	Binding  Binding
	Dispatch Dispatch
	Replayed bool // the row existed: nothing was changed, nothing may be typed
}

// Acceptance stores the proof that the agent took exactly this request.
type Acceptance struct {
	MessageID      string
	NativeThreadID string // lower case
	Evidence       []byte // canonical JSON
	// Check recomputes the evidence against the stored dispatch; it must do no
	// IO. A nil Check is refused.
	Check func(d Dispatch, evidence []byte) error
}

// Settlement ends a dispatch without acceptance; its Turn becomes stalled.
type Settlement struct {
	MessageID string
	Status    string // uncertain or not_accepted
	Code      string // error_code of the dispatch
	Reason    string // stalled_reason of the Turn
	Callback  *NewCallback
}

// OpenDispatch is an unresolved dispatch as a recovery sweep sees it.
type OpenDispatch struct {
	Dispatch       Dispatch
	Turn           Turn
	DispatcherGone bool // its process is proven dead
	TerminalFree   bool // nobody holds the pane's terminal lease
	Fenced         bool // the pane's fence names this dispatch
}

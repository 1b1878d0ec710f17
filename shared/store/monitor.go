package store

// Monitor names the generation of a Turn that one monitor task follows. Every
// monitor move is conditional on all of it: lease_lost when the lease is not
// held any more, binding_superseded (detail "reason": generation_replaced or
// binding_superseded) when the Turn moved on. Both mean: stop at once.
type Monitor struct {
	TurnID            string
	MessageID         string
	BindingGeneration int64
	Lease             *Lease // MonitorLease(TurnID, MessageID)
}

// Activity is proof of life to be stored with a move.
type Activity struct {
	At    int64  // wall-clock ms; 0: none seen
	State []byte // monitor_json to keep, nil: unchanged
}

// NewApproval is a prompt that was seen for the first time.
type NewApproval struct {
	ApprovalID          string // "" : made by the Store
	Fingerprint         string
	ScreenDigest        string
	RequestID           string // of the transcript
	EvidenceFingerprint string
	Callback            *NewCallback // nil where the Turn has no route
	Detail              []byte       // JSON object for the event, or nil
}

// Approval is one notified prompt (core §11.1).
type Approval struct {
	ID                  string
	TurnID              string
	MessageID           string
	Fingerprint         string
	ScreenDigest        string
	RequestID           string
	EvidenceFingerprint string
	State               string // notified, reserved, consumed, cleared, expired, uncertain
	DeliveryID          string
	Decision            string
	DecidedBy           string
	PolicyRuleID        string
	NotifiedAt          int64
	ReservedAt          int64
	ConsumedAt          int64
	ClearedAt           int64
}

// NewInteraction is a questionnaire step that was proven on the screen.
type NewInteraction struct {
	InteractionID     string
	State             string // published or manual_required
	PromptFingerprint string
	SurfaceID         string
	StepIndex         int64
	StepTotal         int64
	Projection        []byte // JSON, at most 32 KiB
	Plan              []byte // JSON
	OwnerSession      string
	ProcessKey        string
	ExpiresAt         int64
	Callback          *NewCallback
	Detail            []byte
}

// Interaction is one questionnaire step (core §11.3).
type Interaction struct {
	ID                string
	TurnID            string
	WatchID           string
	MessageID         string
	State             string
	PromptFingerprint string
	SurfaceID         string
	StepIndex         int64
	StepTotal         int64
	Projection        []byte
	Plan              []byte
	OwnerSession      string
	BindingID         string
	BindingGeneration int64
	ProcessKey        string
	AnswerMessageID   string
	LastProvenStage   string
	CreatedAt         int64
	ExpiresAt         int64
	UpdatedAt         int64
}

// Outcomes of a completion.
const (
	OutcomeSuccess = "success"
	OutcomeFailure = "failure"
)

// Completion is a proven end of the agent's turn (core §6).
type Completion struct {
	Fingerprint string
	Outcome     string // success or failure
	DeliveryID  string // claim_delivery_id; "" : the callback's
	Callback    *NewCallback
	Detail      []byte
	Activity    Activity
}

// Stall says why a Turn is taken for stalled.
type Stall struct {
	Reason   string
	Callback *NewCallback // inserted once for each stall
	Detail   []byte
}

// Eligible is a Turn that wants a monitor, or the reason why it gets none.
type Eligible struct {
	Turn     Turn
	Dispatch Dispatch
	Binding  Binding
	Skip     string // "": eligible; else the reason
	Watched  bool   // somebody holds the live monitor lease
}

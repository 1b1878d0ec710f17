package handoff

// The projections that list and status answer. Member names are those of
// tools §8.1; whatever proves freshness or authority has no place here.

// Action is one thing that may be done now, with the arguments prefilled.
type Action struct {
	Tool               string         `json:"tool"`
	Arguments          map[string]any `json:"arguments"`
	MissingRequired    []string       `json:"missing_required,omitempty"`
	RequiresUserIntent bool           `json:"requires_user_intent,omitempty"`
	// RequiresConfirmation wants the user's word about exactly this.
	RequiresConfirmation bool   `json:"requires_explicit_user_confirmation,omitempty"`
	RequiresFreshStatus  bool   `json:"requires_fresh_status,omitempty"`
	BeforeCall           string `json:"before_call,omitempty"`
	Scope                string `json:"scope,omitempty"`
}

// Actions by name.
type Actions map[string]Action

// Scopes of a send: whose context the text goes to (tools §7).
const (
	ScopeSession = "session_exact"           // the Session's proven thread
	ScopeFollow  = "terminal_follow_current" // whatever the pane shows now
	ScopeAttach  = "initial_attach"          // a pane without a Session
)

// Row is one pane with an agent.
type Row struct {
	ID             string           `json:"id"`
	ShortRef       string           `json:"short_ref"`
	Agent          string           `json:"agent"`
	AgentVersion   string           `json:"agent_version,omitempty"`
	VersionClass   string           `json:"version_class,omitempty"`
	Provider       string           `json:"provider"`
	Target         string           `json:"target"`
	PID            int              `json:"pid"`
	Workspace      string           `json:"workspace"`
	ProcessState   string           `json:"process_state"`
	ScreenState    string           `json:"screen_state"`
	IdentityState  string           `json:"native_identity_state"`
	DurableState   string           `json:"durable_activity_state"`
	ActivityState  string           `json:"activity_state"`
	ActivityReason string           `json:"activity_reason"`
	ApprovalState  ApprovalState    `json:"approval_state"`
	Management     string           `json:"management_state"`
	ConflictKind   string           `json:"conflict_kind,omitempty"`
	HandoffState   string           `json:"handoff_state,omitempty"`
	Handoff        *HandoffDecision `json:"handoff_decision,omitempty"`
	Transition     *TransitionView  `json:"unresolved_transition,omitempty"`
	Managed        *Managed         `json:"managed,omitempty"`
	BlockingTurns  []BlockingTurn   `json:"blocking_turns,omitempty"`
	Warnings       []string         `json:"warnings,omitempty"`
	Debug          *RowDebug        `json:"terminal_debug,omitempty"`
	Actions        Actions          `json:"available_actions"`
}

// ApprovalState says whether a dialog stands in the way.
type ApprovalState struct {
	Scanned      bool   `json:"scanned"`
	Blocked      bool   `json:"blocked"`
	Approvable   bool   `json:"approvable"`
	DecisionMode string `json:"decision_mode,omitempty"` // keys
	PromptKind   string `json:"prompt_kind,omitempty"`
	Label        string `json:"label,omitempty"`
	Command      string `json:"command,omitempty"`
	Reason       string `json:"reason,omitempty"`
}

// Managed is the Session bound to a pane.
type Managed struct {
	SessionID    string       `json:"session_id"`
	ShortRef     string       `json:"session_short_ref"`
	CurrentTurn  *TurnSummary `json:"current_turn,omitempty"` // owner of the pane's dispatch
	RecentTurn   *TurnSummary `json:"recent_turn,omitempty"`
	TurnCount    int          `json:"turn_count"`
	HiddenTurns  int          `json:"hidden_turn_count"`
	SessionCount int          `json:"session_count"`
	Binding      string       `json:"binding_status"` // bound, provisional
	NativeThread string       `json:"native_thread_id,omitempty"`
}

// TurnSummary is a Turn in a list.
type TurnSummary struct {
	TurnID    string `json:"turn_id"`
	SessionID string `json:"session_id,omitempty"`
	Status    string `json:"status"`
	Request   string `json:"request"`
	StartedAt string `json:"started_at,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// BlockingTurn stands in the way of a send and says how to move it.
type BlockingTurn struct {
	TurnID   string  `json:"turn_id"`
	Status   string  `json:"status"`
	Reason   string  `json:"reason"`
	Recovery *Action `json:"recovery_action,omitempty"`
}

// RowDebug is shown on request: what the screen rules saw, without the screen.
type RowDebug struct {
	Rule     string   `json:"rule"`
	Evidence []string `json:"evidence"`
	Pane     string   `json:"pane"`
	Size     string   `json:"size"`
	Mode     string   `json:"mode"`
}

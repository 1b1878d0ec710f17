package fault

import "sort"

// Code is a stable name of a condition: lower snake case, never renamed, never
// reused. Every code is registered in codes with the sentence that
// docs/errors.md prints.
type Code string

// Codes of the tools (tools.md §4).
const (
	InvalidArguments    Code = "invalid_arguments"
	WrongIDKind         Code = "wrong_id_kind"
	NotFound            Code = "not_found"
	StoreUnavailable    Code = "store_unavailable"
	StoreIncompatible   Code = "store_incompatible"
	StoreBusy           Code = "store_busy"
	TerminalBusy        Code = "terminal_busy"
	TerminalNotFound    Code = "terminal_not_found"
	TerminalAmbiguous   Code = "terminal_ambiguous"
	TerminalChanged     Code = "terminal_changed"
	TerminalNotIdle     Code = "terminal_not_idle"
	ApprovalPending     Code = "approval_pending"
	InteractionPending  Code = "interaction_pending"
	ComposerNotEmpty    Code = "composer_not_empty"
	ObservationUnavail  Code = "observation_unavailable"
	ActionNotAdvertised Code = "action_not_advertised"
	OfferMissing        Code = "offer_missing"
	OfferExpired        Code = "offer_expired"
	OfferChanged        Code = "offer_changed"
	NativeSlashCommand  Code = "native_slash_command"
	SessionBusy         Code = "session_busy"
	DispatchUnresolved  Code = "dispatch_unresolved"
	LifecycleUnresolved Code = "lifecycle_unresolved"
	OwnerUnavailable    Code = "owner_unavailable"
	ActiveOwner         Code = "active_owner"
	BindingSuperseded   Code = "binding_superseded"
	SessionConflict     Code = "session_conflict"
	TransitionConflict  Code = "transition_conflict"
	WatchConflict       Code = "watch_conflict"
	ActiveWatchExists   Code = "active_watch_exists"
	IdentityUnverified  Code = "identity_unverified"
	VersionUnsupported  Code = "version_unsupported"
	CapabilityMissing   Code = "capability_missing"
	TurnStatusInvalid   Code = "turn_status_invalid"
	InputNotStarted     Code = "input_not_started"
	SubmissionUncertain Code = "submission_uncertain"
	SubmissionNotAccept Code = "submission_not_accepted"
	SubmissionPending   Code = "submission_pending_acceptance"
	SubmissionAborted   Code = "submission_aborted"
	SubmissionUnfenced  Code = "submission_unfenced"
	IdempotencyConflict Code = "idempotency_conflict"
	ClaimConflict       Code = "completion_claim_conflict"
	Expired             Code = "expired"
	DeferredTransfer    Code = "deferred_transfer"
	SiblingUnavailable  Code = "sibling_unavailable"

	// Codes of an answer to a questionnaire (tools.md §8.14).
	InvalidType         Code = "invalid_type"
	UnknownField        Code = "unknown_field"
	LimitExceeded       Code = "limit_exceeded"
	ControlCharacter    Code = "control_character"
	SecretNotAllowed    Code = "secret_not_allowed"
	InteractionMismatch Code = "interaction_mismatch"
	ResponseNotAllowed  Code = "response_not_allowed"
	AnswerKindMismatch  Code = "answer_kind_mismatch"
	UnknownQuestion     Code = "unknown_question"
	UnknownOption       Code = "unknown_option"
	MissingAnswer       Code = "missing_answer"

	ShuttingDown Code = "shutting_down"

	CallbackUnavailable Code = "callback_unavailable"
	CallbackInFlight    Code = "callback_in_flight"
	CallbackExhausted   Code = "callback_exhausted"
	CallbackPermanent   Code = "callback_permanent_failure"
	CallbackUncertain   Code = "callback_uncertain"
	CallbackConflict    Code = "callback_conflict"
)

// Codes of the Host Profile (host-profile.md §13).
const (
	ProfilePathInvalid      Code = "profile_path_invalid"
	ProfileUnreadable       Code = "profile_unreadable"
	ProfileTooLarge         Code = "profile_too_large"
	ProfileEncoding         Code = "profile_encoding"
	ProfileJSON             Code = "profile_json"
	ProfileSchema           Code = "profile_schema"
	ProfileVersion          Code = "profile_version"
	ProfileUnknownField     Code = "profile_unknown_field"
	ProfileMissingField     Code = "profile_missing_field"
	ProfileValue            Code = "profile_value"
	ProfileReservedID       Code = "profile_reserved_id"
	ProfileRange            Code = "profile_range"
	ProfileVariableUnsafe   Code = "profile_variable_unsafe"
	ProfileExecutableUnsafe Code = "profile_executable_unsafe"
	ProfileTemplate         Code = "profile_template"
	ProfileAcknowledgement  Code = "profile_acknowledgement"
	HostInputInvalid        Code = "host_input_invalid"
	HostIncompatible        Code = "host_incompatible"
	ControllerSession       Code = "controller_session_invalid"
	CallbackExecutable      Code = "callback_executable_unavailable"
	ScopeNotStandalone      Code = "scope_not_standalone"
	RelayIncomplete         Code = "host_profile_relay_incomplete"
	ProfileChanged          Code = "host_profile_changed"
)

// Codes of the programs themselves.
const (
	Internal          Code = "internal"
	Usage             Code = "usage"
	DependencyMissing Code = "dependency_missing"
	DrainExpired      Code = "drain_expired"
	LeaseHeld         Code = "lease_held"
	LeaseLost         Code = "lease_lost"
	RuntimeDirUnsafe  Code = "runtime_dir_unsafe"
	NotBuiltYet       Code = "not_built_yet"
	DoctorFindings    Code = "doctor_findings"
	InputTooLarge     Code = "input_too_large"
	JSONInvalid       Code = "json_invalid"
)

// Entry documents one code.
type Entry struct {
	Code Code
	Exit int    // exit status of a program that ends with it (style: 0,1,2,69,70,73,75)
	Text string // one sentence for docs/errors.md
}

var codes = map[Code]Entry{}

func register(exit int, code Code, text string) { codes[code] = Entry{code, exit, text} }

func init() {
	register(1, InvalidArguments, "A rule beyond the schema failed: exactly one target, positive minutes, a non-blank request of at most 32,768 bytes without control characters.")
	register(1, WrongIDKind, "The id is of another kind, for example a terminal id where a turn id is wanted.")
	register(1, NotFound, "No such Turn, Session or Watch in this Store.")
	register(73, StoreUnavailable, "The Store directory or database cannot be opened safely.")
	register(73, StoreIncompatible, "The Store has another format or writer protocol; it is read but never written.")
	register(75, StoreBusy, "The write lock of the Store was not obtained in 10 seconds.")
	register(75, TerminalBusy, "Another call holds the terminal; it was not obtained in 30 seconds.")
	register(1, TerminalNotFound, "No live pane has this terminal id.")
	register(1, TerminalAmbiguous, "The target was omitted and not exactly one pane can take a send, or several rows match.")
	register(1, TerminalChanged, "Process, pane, workspace or binding differs from what was observed first.")
	register(1, TerminalNotIdle, "The agent works, shows a dialog, is not ready, or the pane is in copy mode.")
	register(1, ApprovalPending, "An approval dialog is open in the pane.")
	register(1, InteractionPending, "A questionnaire is open in the pane.")
	register(1, ComposerNotEmpty, "The composer holds a draft that is not ours; it is never cleared.")
	register(75, ObservationUnavail, "The terminal or the agent's files cannot be read now: tmux missing, socket dead, file unreadable.")
	register(1, ActionNotAdvertised, "A fresh look does not show this action for this target.")
	register(1, OfferMissing, "No private offer of this controller session exists for the target; call list or status first.")
	register(1, OfferExpired, "The private offer is past its life; call list or status again.")
	register(1, OfferChanged, "What was shown is no longer current; call list or status again.")
	register(1, NativeSlashCommand, "The text begins with / (a native command) or ! (a shell without approval).")
	register(1, SessionBusy, "The Session has a Turn that is not finished.")
	register(1, DispatchUnresolved, "An earlier submission into this pane is not settled.")
	register(1, LifecycleUnresolved, "A native thread transition of this pane is not settled.")
	register(1, OwnerUnavailable, "The owner of the pane's last submission cannot be read, or is in another Store.")
	register(1, ActiveOwner, "Another Turn owns this pane.")
	register(1, BindingSuperseded, "The record belongs to an older binding generation.")
	register(1, SessionConflict, "The Session changed between observation and write.")
	register(1, TransitionConflict, "The transition changed between observation and write.")
	register(1, WatchConflict, "The Watch changed between observation and write.")
	register(1, ActiveWatchExists, "The same task or pane is already watched.")
	register(1, IdentityUnverified, "The native identity (thread, process) is not proven.")
	register(1, VersionUnsupported, "The agent's version is outside what the policy allows for this action.")
	register(1, CapabilityMissing, "The agent adapter has no proven way to do this.")
	register(1, TurnStatusInvalid, "The Turn's status does not allow the operation.")
	register(1, InputNotStarted, "The call failed before the first byte of input.")
	register(1, SubmissionUncertain, "Input may have reached the agent and neither acceptance nor refusal is proven; nothing is repeated.")
	register(1, SubmissionNotAccept, "The exact draft still stands in the composer: Enter was not taken.")
	register(1, SubmissionPending, "Enter was sent and acceptance is not seen yet; the monitor goes on looking.")
	register(1, SubmissionAborted, "The attempt ended before any input.")
	register(1, SubmissionUnfenced, "The request was accepted but its thread belongs to another Session; the Turn cannot follow it.")
	register(1, IdempotencyConflict, "The same message id was used with other content or another target.")
	register(1, ClaimConflict, "Another completion of the Turn was claimed first.")
	register(1, Expired, "The prompt or step is past its life.")
	register(1, DeferredTransfer, "A provisional first binding is still open for this terminal or Session.")
	register(69, SiblingUnavailable, "A program that the tool needs (watchd, outboxd) is marked failed and no other holds its lease.")
	register(1, InvalidType, "A member of an answer is of another kind than its response_kind wants.")
	register(1, UnknownField, "An answer holds a member that its response_kind does not have.")
	register(1, LimitExceeded, "An answer is longer, or names more, than its question takes.")
	register(1, ControlCharacter, "The text of an answer holds a control character.")
	register(1, SecretNotAllowed, "The question asks for a secret; only the person at the pane may answer it.")
	register(1, InteractionMismatch, "The step is not asked any more, or belongs to another Turn, Watch or controller session.")
	register(1, ResponseNotAllowed, "The step was answered before, an answer is in doubt, or only the person at the pane may answer it.")
	register(1, AnswerKindMismatch, "The step takes another kind of answer.")
	register(1, UnknownQuestion, "The step has no question of this id.")
	register(1, UnknownOption, "The question has no option of this id.")
	register(1, MissingAnswer, "There is no answer, or it lacks what its response_kind says.")
	register(75, ShuttingDown, "The bridge drains; the call was not executed.")
	register(1, CallbackUnavailable, "The Turn has no callback row that could be tried again.")
	register(1, CallbackInFlight, "The callback is being delivered now.")
	register(1, CallbackExhausted, "The callback used its five attempts.")
	register(1, CallbackPermanent, "The Host refused the callback for good.")
	register(1, CallbackUncertain, "The Host may have the callback; it is never repeated.")
	register(1, CallbackConflict, "A callback with this delivery id exists with other content.")

	register(1, ProfilePathInvalid, "The Profile path is empty, not resolvable, not a .json file, or not a regular file.")
	register(1, ProfileUnreadable, "The Profile file could not be opened or read.")
	register(1, ProfileTooLarge, "The Profile is larger than 262,144 bytes.")
	register(1, ProfileEncoding, "The Profile is not valid UTF-8 or holds an unpaired surrogate escape.")
	register(1, ProfileJSON, "The Profile is not one JSON document, repeats a member, or nests too deep.")
	register(1, ProfileSchema, "The $schema or schema member is wrong.")
	register(1, ProfileVersion, "The version member is not 1.")
	register(1, ProfileUnknownField, "An object of the Profile has a member that v1 does not know.")
	register(1, ProfileMissingField, "A required member of the Profile is absent.")
	register(1, ProfileValue, "A value of the Profile has the wrong type, length, pattern or range.")
	register(1, ProfileReservedID, "A user Profile may not use the builtin- prefix or a registered id.")
	register(1, ProfileRange, "compatibility.range is not one to four explicit SemVer comparators.")
	register(1, ProfileVariableUnsafe, "A variable name is unsafe, reserved or repeated.")
	register(1, ProfileExecutableUnsafe, "The callback executable path is not absolute and clean, or names a shell.")
	register(1, ProfileTemplate, "A callback argument has an unsupported placeholder, interpolation or shell syntax, or a required placeholder is missing.")
	register(1, ProfileAcknowledgement, "A JSON Pointer or the disposition mapping is invalid.")
	register(1, HostInputInvalid, "--host or --host-version is malformed or only one of them is given.")
	register(1, HostIncompatible, "The Host id differs or its version is outside the Profile's range.")
	register(1, ControllerSession, "The trusted controller session is missing or malformed in the environment.")
	register(69, CallbackExecutable, "The callback executable is missing, not executable, a shell behind a link, or its interpreter cannot be found.")
	register(1, ScopeNotStandalone, "A route_bound_v1 Profile cannot be used by the stand-alone bridge.")
	register(2, RelayIncomplete, "Some but not all of the private relay variables are set.")
	register(1, ProfileChanged, "The Profile file differs from the one captured at start.")

	register(70, Internal, "An unexpected error; its text is in the log.")
	register(2, Usage, "Flags, arguments, environment or configuration are wrong.")
	register(69, DependencyMissing, "A program or service that is needed is missing.")
	register(70, DrainExpired, "The drain deadline passed with work unfinished.")
	register(75, LeaseHeld, "Another process holds the lease.")
	register(75, LeaseLost, "The lease was lost; nothing more is written under it.")
	register(73, RuntimeDirUnsafe, "The runtime directory is not a private directory of this user.")
	register(69, NotBuiltYet, "This program is part of the design but not built yet.")
	register(1, DoctorFindings, "At least one check of doctor is in error; the report names it.")
	register(1, InputTooLarge, "An input is over its size limit.")
	register(1, JSONInvalid, "An input is not one strict JSON document.")
}

// Entries lists every registered code, sorted by code.
func Entries() []Entry {
	out := make([]Entry, 0, len(codes))
	for _, e := range codes {
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Code < out[j].Code })
	return out
}

// Known reports whether code is registered.
func Known(code Code) bool { _, ok := codes[code]; return ok }

// ExitCode gives the exit status for err: 0 for nil, 70 for an unknown error.
func ExitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := codes[CodeOf(err)]; ok {
		return e.Exit
	}
	return 70
}

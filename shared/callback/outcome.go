package callback

import (
	"time"

	"drawbridge/shared/profile"
)

// Disposition is the generic outcome of one attempt.
type Disposition = profile.Disposition

// The four outcomes.
const (
	Accepted         = profile.Accepted
	RetryableFailure = profile.RetryableFailure
	PermanentFailure = profile.PermanentFailure
	Uncertain        = profile.Uncertain
)

// Codes of an attempt that did not end accepted (host-profile §6.2). They are
// kept in rows and shown by status; never renamed.
const (
	CodeRouteInvalid       = "command_json_callback_route_invalid"
	CodeTransport          = "unsupported_callback_transport"
	CodeProfileMismatch    = "command_json_callback_profile_mismatch"
	CodeRevisionMismatch   = "command_json_callback_profile_revision_mismatch"
	CodeSessionMismatch    = "command_json_controller_session_mismatch"
	CodeEnvelopeRoute      = "callback_envelope_route_mismatch"
	CodeAttemptInvalid     = "command_json_callback_attempt_invalid"
	CodeConfiguration      = "command_json_callback_configuration_error"
	CodeExecutable         = "command_json_callback_executable_unavailable"
	CodeSpawnFailed        = "command_json_callback_spawn_failed"
	CodeExecutionLimit     = "command_json_callback_execution_limit_uncertain"
	CodeExecution          = "command_json_callback_execution_uncertain"
	CodeAcknowledgement    = "command_json_callback_acknowledgement_invalid"
	CodeExitUnacknowledged = "command_json_callback_exit_unacknowledged"
	CodeDispositionUnknown = "command_json_callback_acknowledgement_disposition_unknown"
	CodeIdentityMismatch   = "command_json_callback_acknowledgement_identity_mismatch"
	CodeRetryable          = "command_json_callback_retryable_failure"
	CodePermanent          = "command_json_callback_permanent_failure"
	CodeUncertain          = "command_json_callback_uncertain"
	CodeRuntimeMissing     = "host_profile_runtime_missing"
	CodeRuntimeInvalid     = "host_profile_runtime_invalid"
	CodeRouterRoute        = "host_profile_callback_route_mismatch"
	CodeRouterTransport    = "host_profile_callback_transport_invalid"
	CodeRouterThrew        = "host_profile_callback_transport_threw"
)

// An Outcome is what one attempt proved. Evidence is the process status alone,
// never its output, arguments or environment.
type Outcome struct {
	Disposition  Disposition
	Code         string    // one of the codes above; "" when accepted
	AcceptanceID string    // accepted only
	AcceptedAt   time.Time // accepted only; our clock
	Status       int       // exit status of the child; -1 when there is none
	Signal       string    // name of the signal that ended it, "SIGKILL"; "" otherwise
}

// NoProcess is an Outcome of an attempt that started no child.
func NoProcess(d Disposition, code string) Outcome {
	return Outcome{Disposition: d, Code: code, Status: -1}
}

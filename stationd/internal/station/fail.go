package station

import (
	"errors"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// fail asks for the stop of an attempt that could not be brought to ready, and says
// why in an event.
func (a *attempt) fail(err error) {
	reason := reasonOf(err)
	a.log.Warn("the attempt fails", "reason", reason, "err", err)
	detail := map[string]any{"reason": reason, "code": string(fault.CodeOf(err))}
	if f, ok := fault.As(err); ok { // another error's text stays in the log
		detail["message"] = a.redactor.Text(fault.CleanLine(f.Message))
		if f.Hint != "" {
			detail["hint"] = a.redactor.Text(fault.CleanLine(f.Hint))
		}
	}
	a.want(reason)
	a.note(FailedEvent, detail)
}

// FailedEvent is the kind of the event that says why an attempt was never ready, with
// code, message and hint.
const FailedEvent = "failed"

// stopError is a reason of station §4.2 that is known as such.
type stopError string

func (e stopError) Error() string { return "the attempt stops: " + string(e) }

// reasonOf is the reason of station §4.2 that an error on the way to ready is.
func reasonOf(err error) string {
	var stop stopError
	switch {
	case errors.As(err, &stop):
		return string(stop)
	case errors.Is(err, errNotReady):
		return store.StopNotReady
	case errors.Is(err, errBreach):
		return store.StopLoopback
	}
	switch fault.CodeOf(err) {
	case fault.IntegrityFailed, fault.ArtifactUnpinned:
		return store.StopIntegrity
	case fault.ShimLost:
		return store.StopLost
	}
	return store.StopLaunch
}

package callback

import (
	"drawbridge/shared/strictjson"
)

// TerminalMessageID is the id of the callback that reports a claimed completion
// (core §6): the same completion of the same Turn always has the same one.
// outcome is "success" or "failure".
func TerminalMessageID(conversationID, terminalMessageID, completionFingerprint, outcome string) string {
	digest := digestOf(strictjson.Ordered(
		"conversation_id", conversationID,
		"terminal_message_id", terminalMessageID,
		"completion_fingerprint", completionFingerprint,
		"outcome", outcome,
	))
	return terminalPrefix + digest[:terminalDigits]
}

// WatchNotificationID is the id of one notification of a Watch (core §7). kind is
// the notification's kind: approval, completed, failed, timed_out, invalidated
// or cancelled.
func WatchNotificationID(watchID, kind, evidenceFingerprint string) string {
	return notificationPrefix + digestOf(strictjson.Ordered(
		"schema", notificationSchema,
		"version", 1,
		"watch_id", watchID,
		"kind", kind,
		"evidence_fingerprint", evidenceFingerprint,
	))
}

// TimeoutEvidence is the evidence fingerprint of a Watch that reached its
// deadline, which is in Unix milliseconds.
func TimeoutEvidence(watchID string, deadlineAt int64, anchorFingerprint string) string {
	return digestOf(strictjson.Ordered(
		"version", 1,
		"watch_id", watchID,
		"kind", EventTimedOut,
		"deadline_at", deadlineAt,
		"anchor_fingerprint", anchorFingerprint,
	))
}

// CancelEvidence is the evidence fingerprint of a Watch that was cancelled.
func CancelEvidence(watchID, anchorFingerprint string) string {
	return digestOf(strictjson.Ordered(
		"version", 1,
		"watch_id", watchID,
		"kind", EventCancelled,
		"anchor_fingerprint", anchorFingerprint,
	))
}

package gate_test

import (
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/gate"
)

// Every code that a client can be told is registered, and has a status of failure.
func TestStatuses(t *testing.T) {
	for code, status := range gate.Statuses {
		if !fault.Known(code) || status < 400 || status > 599 {
			t.Errorf("%s: status %d", code, status)
		}
	}
}

package handoff_test

import (
	"testing"

	"drawbridge/shared/handoff"
	"drawbridge/shared/store"
)

// A retry is advertised only where it may still be proven that the agent never took
// the submission.
func TestActions_RetrySubmission(t *testing.T) {
	for name, tc := range map[string]struct {
		x    store.Dispatch
		want bool
	}{
		"the draft stands":         {store.Dispatch{Status: store.DispatchNotAccepted, LastProvenStage: store.DispatchEnterDispatched}, true},
		"died before the draft":    {store.Dispatch{Status: store.DispatchUncertain, LastProvenStage: store.DispatchPrepared}, true},
		"died before Enter":        {store.Dispatch{Status: store.DispatchUncertain, LastProvenStage: store.DispatchTextInjected}, true},
		"Enter was sent":           {store.Dispatch{Status: store.DispatchUncertain, LastProvenStage: store.DispatchEnterDispatched}, false},
		"proof does not recompute": {store.Dispatch{Status: store.DispatchUncertain, LastProvenStage: store.DispatchAccepted}, false},
		"thread of another":        {store.Dispatch{Status: store.DispatchUncertain, LastProvenStage: store.DispatchTextInjected, ErrorCode: "submission_unfenced"}, false},
		"an answer":                {store.Dispatch{Status: store.DispatchNotAccepted, Kind: store.KindAnswer}, false},
	} {
		if got := handoff.Reprovable(tc.x); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

package main

import (
	"encoding/json"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/evidence"
)

// cleanupMeans says what the cleanup of an attempt amounts to.
func cleanupMeans(st control.Status) string {
	switch {
	case st.Cleanup != "failed":
		return says["cleanup"][st.Cleanup]
	case st.Detail != nil && proven(st.Detail):
		return leaseKept(st.Detail)
	}
	return "something may be left"
}

// cleanupFailed is the error of a stop after which something may be left, or whose
// lease alone is.
func cleanupFailed(st control.Status) error {
	d := st.Detail
	if d == nil { // a viewer does not see the attempt
		return fault.New(fault.CleanupFailed, "stop: station %s has ended, and its cleanup failed", st.StationID)
	}
	how := "its cleanup failed: " + cleanupText(d.Left)
	if proven(d) {
		how = leaseKept(d)
	}
	return fault.New(fault.CleanupFailed, "stop: station %s has ended, and %s", st.StationID, how).
		WithHint("it is tried again every five minutes; stationd lease release %s tries now, and with -force -reason TEXT lets the lease go as it is", d.LeaseID)
}

// proven reports whether the processes of an attempt are known to be gone.
func proven(d *control.Detail) bool {
	var c evidence.CleanedUp
	if json.Unmarshal(d.Left, &c) != nil {
		return false
	}
	return c.Cleanup.Result == evidence.CleanupClean || c.Cleanup.Result == evidence.CleanupForced
}

// leaseKept says that only the lease is left of an attempt, and why.
func leaseKept(d *control.Detail) string {
	text := "no process of it is left"
	if d.ShimPID == 0 {
		text = "nothing of it was started"
	}
	text += ", but its lease of the provider " + d.Provider + " could not be given back"
	if d.LeaseFailure != "" {
		text += " (" + d.LeaseFailure + ")"
	}
	return text
}

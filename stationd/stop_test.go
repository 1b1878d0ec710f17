package main

import (
	"testing"
)

// A stop that is not waited for says that it was asked for, and never that the station
// is ready; one that has ended says so.
func TestStop_AskedFor(t *testing.T) {
	const head, tail = "station  stn_a\nattempt  2\n", "reason   operator_stop\n"
	for state, want := range map[string]string{
		"ready":    "stop     asked for; stationd stop -wait stn_a waits for the end, stationd status stn_a shows it\n",
		"terminal": "state    terminal\n",
	} {
		body := `{"stationId":"stn_a","attempt":2,"state":"` + state + `","stopReason":"operator_stop"}`
		if out, errs, status := call(t, "stop", "stn_a", "-runtime-dir", canned(t, 200, body)); status != 0 || out != head+want+tail {
			t.Errorf("%s: status %d, %s%s", state, status, out, errs)
		}
	}
}

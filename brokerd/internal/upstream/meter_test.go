package upstream_test

import (
	"strings"
	"testing"

	"drawbridge/shared/testkit"
)

// The page of metrics after some requests, one of each kind.
func TestMeter(t *testing.T) {
	w := newWorld(t)
	w.post("/responses", bound)
	w.post("/responses", "{}")
	w.post("/nothing", bound)
	w.row()
	var page strings.Builder
	testkit.Eventually(t, patience, func() bool { // the last of a request is counted behind its answer
		page.Reset()
		if err := w.meter.WriteText(&page); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(page.String(), `requests_total{outcome="completed"} 1`) && strings.Contains(page.String(), "inflight 0\n")
	})
	for _, line := range []string{
		"# TYPE drawbridge_broker_requests_total counter", `drawbridge_broker_refusals_total{code="binding_mismatch"} 1`, `drawbridge_broker_refusals_total{code="target"} 1`,
		`drawbridge_broker_tokens_total{kind="input"} 10`, `drawbridge_broker_tokens_total{kind="output"} 5`, `drawbridge_broker_tokens_total{kind="cached_input"} 3`,
		"drawbridge_broker_redactions_total 0", "drawbridge_broker_upstream_seconds_count 1", "drawbridge_broker_reservation_seconds_count 1",
		`drawbridge_broker_reservation_seconds_bucket{le="+Inf"} 1`, `drawbridge_broker_bytes_total{dir="in"} `, `drawbridge_broker_bytes_total{dir="out"} `,
	} {
		if !strings.Contains(page.String(), line) {
			t.Errorf("no line %q in\n%s", line, page.String())
		}
	}
	for _, secret := range []string{w.token, "bg_1", "gpt", "r1", secret} {
		if strings.Contains(page.String(), secret) {
			t.Errorf("%q is in the metrics", secret)
		}
	}
}

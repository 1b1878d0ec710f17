package e2e

import (
	"net"
	"strings"
	"testing"

	"drawbridge/scripts/internal/stationrig"
)

// stationd is killed while a client follows events, and starts anew: the daemon is the
// same process, the same ticket opens, the events go on. Then the attempt is replaced:
// the new one is another process, and the old ticket opens neither.
//
// Proves station 17.M10 and station 17.T8
func TestStation_StationdKilled(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gate := l.Addr().String()
	l.Close()
	h := newHarnessStation(t, stationrig.Options{Args: []string{"-listen", gate}})
	s := h.Start(h.with(nil))
	before := s.Status()
	first, err := stationrig.Namespace(before.Detail.DaemonPID)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Client("ada")
	stream := c.Stream("/events?every=20ms")
	last := stationrig.ID(stream.Until("id: 3"))
	h.Kill()
	stream.Close()
	h.Serve()

	if after := s.Status(); after.Detail.DaemonPID != before.Detail.DaemonPID || after.Detail.AttemptState != "ready" {
		t.Fatalf("before %+v, after %+v", before, after)
	}
	again := c.Stream("/events?every=20ms", "Last-Event-ID: "+last)
	if event, _ := again.Next(); stationrig.ID(event) != "4" {
		t.Errorf("after event %s comes %q", last, event)
	}

	next := s.Replace()
	if rest := again.Rest(); len(rest) == 0 || !strings.Contains(rest[len(rest)-1], `"reason":"attempt_replaced"`) {
		t.Errorf("the stream of the first attempt ended with %q", rest)
	}
	if left := stationrig.Members(first); len(left) > 0 {
		t.Errorf("%d processes of the first attempt are left", len(left))
	}
	onNext := c
	onNext.Station = next
	for which, client := range map[string]stationrig.Client{"the first": c, "the next": onNext} {
		if a := client.Do("GET", "/health", ""); a.Status < 400 {
			t.Errorf("the old ticket opens %s attempt: %d", which, a.Status)
		}
	}
	next.Client("bob").Must("GET", "/health", "")
	next.End()
	next.Verify()
	if e := evidenceOf(s); e.Stop.Reason != "attempt_replaced" {
		t.Errorf("the first attempt: %+v", e.Stop)
	}
}

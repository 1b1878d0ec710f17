package station_test

import (
	"testing"

	"drawbridge/shared/store"
)

// Proves station 17.M1: a start makes one station, one attempt and one lease.
func TestLife(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.ready(w.spec())
	if status, body := w.get(s, w.ticket(s), "/health"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
	row := w.stop(s)
	if row.StopReason != store.StopOperator || row.StopBy != w.ann.ID {
		t.Errorf("%+v", row)
	}
	t.Logf("%s", w.text(s))
	t.Log(w.events(s))
	w.clean(s)
}

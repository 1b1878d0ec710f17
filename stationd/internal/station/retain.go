package station

import (
	"context"

	"drawbridge/stationd/internal/evidence"
)

// retain removes what is past its time, until the term ends or is to end.
func (t *term) retain() {
	ctx, cancel := context.WithCancel(t.base)
	defer cancel()
	defer context.AfterFunc(t.quit, cancel)()
	r := evidence.Retention{Store: t.m.opts.Store, Lease: t.m.Lease, StateDir: t.m.opts.StateDir, Log: t.m.log}
	if err := r.Retain(ctx); err != nil {
		t.m.log.Warn("remove what is past its time", "err", err)
	}
}

package station

import (
	"context"

	"drawbridge/stationd/internal/evidence"
)

// Logs passes on the log of an attempt, redacted and in order; attempt 0 is the
// newest. stream is that of the daemon, or "" for a line that says what is missing.
// With follow it goes on until the log of an attempt that runs is closed. not_found
// when there is none, or not any more.
func (m *Manager) Logs(ctx context.Context, stationID string, attempt int64, follow bool, emit func(stream string, text []byte) error) error {
	if attempt == 0 {
		st, err := m.opts.Store.Station(ctx, stationID)
		if err != nil {
			return err
		}
		attempt = st.CurrentAttempt
	}
	if _, err := m.opts.Store.StationAttempt(ctx, stationID, attempt); err != nil {
		return err
	}
	if t := m.term(); t != nil {
		if a := t.live(stationID); a != nil && a.current().Number == attempt {
			if l := a.output(); l != nil {
				return l.Read(ctx, follow, emit)
			}
		}
	}
	return evidence.ReadLogs(ctx, evidence.LogDir(m.opts.StateDir, stationID, attempt), emit)
}

package station

import (
	"context"
	"time"

	"drawbridge/shared/store"
)

// Hurry makes everything that is done now and then more frequent.
func (m *Manager) Hurry(look, beat, leaseBeat, cleanup, release time.Duration) {
	m.pace = pace{look: look, beat: beat, leaseBeat: leaseBeat, cleanupAgain: cleanup, releaseAgain: release, stuck: usualPace.stuck}
}

// Stuck says how long a conductor's step may take.
func (m *Manager) Stuck(d time.Duration) { m.pace.stuck = d }

// Ask asks for a stop for any reason.
func (m *Manager) Ask(ctx context.Context, stationID, reason, by string) (store.StationAttempt, error) {
	return m.term().live(stationID).ask(ctx, reason, by)
}

// Claim begins an attempt of a station as far as that nobody else does.
func (m *Manager) Claim(st store.Station) error {
	t := m.term()
	return t.claim(t.newAttempt(st, plan{}))
}

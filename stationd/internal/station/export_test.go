package station

import "time"

// Hurry makes everything that is done now and then more frequent.
func (m *Manager) Hurry(look, beat, leaseBeat, cleanup, release time.Duration) {
	m.pace = pace{look: look, beat: beat, leaseBeat: leaseBeat, cleanupAgain: cleanup, releaseAgain: release}
}

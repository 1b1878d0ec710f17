package station

import (
	"context"
	"time"

	"drawbridge/shared/store"
	"drawbridge/stationd/internal/lease"
)

// Bounds of what the Manager waits for.
const (
	healthyFor   = 10 * time.Second // since the loop's last turn
	releaseTime  = 2 * time.Second  // to free Store leases at the end
	settleTime   = 30 * time.Second // recovery of one attempt, before others wait no longer for it
	leaseWait    = store.LeaseTTL + time.Second
	pingTime     = 5 * time.Second
	askTime      = 2 * time.Second       // one request to the shim while it stops
	launchTime   = 20 * time.Second      // "go", until the daemon's program is executed
	bridgeTime   = 2 * time.Second       // requests in flight at a stop (station §12 step 3)
	probeTime    = 2 * time.Second       // one try of a readiness probe
	probeFirst   = 10 * time.Millisecond // the pause after the first probe; it doubles up to
	probeEvery   = 200 * time.Millisecond
	emptyPoll    = 20 * time.Millisecond
	killedTime   = 500 * time.Millisecond // for killed processes to be reaped, with the shim there
	outputTime   = 500 * time.Millisecond // for the rest of the output
	cutBefore    = 6 * time.Second        // the drain's end, everything is killed (station §4.7)
	shimMargin   = 15 * time.Second       // beyond the grace, before the shim enforces the TTL itself
	adoptTime    = 10 * time.Second       // for a shim that is found to answer
	birthTime    = 2 * time.Second        // for a shim of a crashed stationd to say who it is
	cleanupTries = 10
	artifactTime = 30 * time.Second
	groundTime   = 15 * time.Minute // to fill a workspace, and to get a harness, also on a far machine
	machineTime  = 30 * time.Second // one request to a machine
	acquireTime  = 2 * time.Minute
	againLeast   = time.Second // pauses between tries to reach a shim again
	againMost    = 15 * time.Second
	storeAgain   = 200 * time.Millisecond // between tries of a write that must happen
)

// pace is how often things are done; tests have a faster one.
type pace struct {
	look         time.Duration // at the clock: TTL, idle; and at the lease of the host
	beat         time.Duration // of a station, which is missed after store.StationMissed
	leaseBeat    time.Duration // of a workspace
	cleanupAgain time.Duration // while processes are left
	releaseAgain time.Duration // while a lease cannot be given back
	stuck        time.Duration // how long a conductor's step may take, before stationd is not healthy
}

var usualPace = pace{
	look: time.Second, beat: store.StationBeat, leaseBeat: lease.BeatEvery, cleanupAgain: 30 * time.Second, releaseAgain: 5 * time.Minute,
	stuck: 20 * time.Minute,
}

// missed is how many beats in a row end an attempt.
const missed = int(store.StationMissed / store.StationBeat)

// sleep waits; false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

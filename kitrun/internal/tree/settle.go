package tree

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// settleTime is longer than a tick of the clock that stamps files. What was
// changed within the last tick can change again without a new stamp, so it is
// read only when its stamp is older.
const settleTime = 25 * time.Millisecond

var errUnsettled = errors.New("it is being written")

// settled gives the identity of an open file or directory that was not changed
// just now. What changes while it waits is being written.
func settled(fd int) (identity, error) {
	first, err := identityAt(fd)
	for id := first; ; id, err = identityAt(fd) {
		if err != nil {
			return identity{}, err
		}
		if id != first {
			return identity{}, errUnsettled
		}
		age := since(max(id.ctime, id.mtime))
		if age < -settleTime || age >= settleTime { // far ahead: stamped by another machine
			return id, nil
		}
		time.Sleep(settleTime - age + time.Millisecond)
	}
}

// since gives how long ago a stamp is on the clock that makes them.
func since(stamp int64) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return settleTime
	}
	return time.Duration(now.Nano() - stamp)
}

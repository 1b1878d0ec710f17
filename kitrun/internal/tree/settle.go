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

// settler knows the clock that stamps files, as it last looked.
type settler struct{ now time.Duration }

// wait returns when id, the identity of fd, is of no change of just now. What
// changes while it waits is being written.
func (s *settler) wait(fd int, id identity) error {
	stamp := time.Duration(max(id.ctime, id.mtime))
	for s.now-stamp < settleTime { // a stamp that is old needs no look at the clock
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts); err != nil {
			return err
		}
		s.now = time.Duration(ts.Nano())
		age := s.now - stamp
		if age < -settleTime { // far ahead: stamped by another machine
			return nil
		}
		if age < settleTime {
			time.Sleep(settleTime - age + time.Millisecond)
			again, err := identityAt(fd)
			if err != nil {
				return err
			}
			if again != id {
				return errUnsettled
			}
		}
	}
	return nil
}

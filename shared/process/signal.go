package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGone is returned when the process meant has ended.
var ErrGone = errors.New("process is gone")

// ErrUnproven is returned when it cannot be shown that a pid is the process
// meant; nothing was signalled.
var ErrUnproven = errors.New("process identity cannot be proven")

// groupFlag makes pidfd_send_signal reach the process group (Linux 6.9).
const groupFlag = 1 << 2 // PIDFD_SIGNAL_PROCESS_GROUP

// blindPoll is how often a process is looked at where pidfds are missing.
const blindPoll = 100 * time.Millisecond

// Signal sends sig to exactly this incarnation. The process is pinned by a pidfd
// before its birth is compared, so a reused pid is never hit.
func Signal(inc Incarnation, sig unix.Signal) error {
	fd, err := pin(inc)
	if err != nil {
		return fmt.Errorf("signal process %d: %w", inc.PID, err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			err = ErrGone
		}
		return fmt.Errorf("signal process %d: %w", inc.PID, err)
	}
	return nil
}

// signalGroup sends sig to the group that inc leads.
func signalGroup(inc Incarnation, sig unix.Signal) error {
	fd, err := pin(inc)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	info, err := Stat(inc.PID)
	if err != nil {
		return ErrGone
	}
	if info.PGRP != inc.PID || inc.PID == unix.Getpgrp() {
		return fmt.Errorf("process %d does not lead a group of its own: %w", inc.PID, ErrUnproven)
	}
	err = unix.PidfdSendSignal(fd, sig, nil, groupFlag)
	if errors.Is(err, unix.EINVAL) {
		// Older kernel. The pidfd keeps the pid only while the process is not
		// reaped, so a leader that ends just here leaves a gap of microseconds.
		err = unix.Kill(-inc.PID, sig)
	}
	if errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// pin opens a pidfd of inc and then proves that it is inc: the birth was read
// before, so a process that has it now has had the pid since.
func pin(inc Incarnation) (fd int, err error) {
	if inc.PID <= 1 || inc.PID == os.Getpid() {
		return -1, ErrUnproven
	}
	fd, err = unix.PidfdOpen(inc.PID, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, err
	}
	switch gone, known := inc.Gone(); {
	case !known:
		err = ErrUnproven
	case gone:
		err = ErrGone
	default:
		return fd, nil
	}
	unix.Close(fd)
	return -1, err
}

// Wait blocks until inc has ended (nil) or ctx is done (its error). A process
// that nobody has reaped yet counts as ended.
func Wait(ctx context.Context, inc Incarnation) error {
	fd, err := pin(inc)
	switch {
	case errors.Is(err, ErrGone):
		return nil
	case errors.Is(err, ErrUnproven):
		return fmt.Errorf("wait for process %d: %w", inc.PID, err)
	case err != nil:
		return waitBlind(ctx, inc)
	}
	return waitReadable(ctx, fd)
}

// waitReadable waits on a pidfd, which it closes.
func waitReadable(ctx context.Context, fd int) error {
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n > 0 || (err != nil && !errors.Is(err, unix.EINTR))
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// waitBlind polls, for kernels without pidfds.
func waitBlind(ctx context.Context, inc Incarnation) error {
	t := time.NewTicker(blindPoll)
	defer t.Stop()
	for {
		if gone, known := inc.Gone(); gone && known {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
}

package service

import (
	"context"
	"errors"
	"os"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
)

// LifelineVariable names the descriptor of the lifeline in a sibling's environment.
const LifelineVariable = "DRAWBRIDGE_LIFELINE_FD"

// Lifeline is the read end of a pipe whose other end only the owner holds. Its
// end means that the owner is gone, in whatever way.
type Lifeline struct{ file *os.File }

// OpenLifeline takes the lifeline from the environment; nil when there is none.
// The variable is removed and the descriptor closed on exec, so that no child
// inherits either.
func OpenLifeline() (*Lifeline, error) {
	value := os.Getenv(LifelineVariable)
	if value == "" {
		return nil, nil
	}
	fd, err := strconv.Atoi(value)
	var st unix.Stat_t
	if err != nil || fd < 3 || unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, usageError("%s does not name a pipe", LifelineVariable)
	}
	unix.CloseOnExec(fd)
	// Non-blocking before os.NewFile, or a read could not be interrupted.
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, usageError("%s: %w", LifelineVariable, err)
	}
	if err := os.Unsetenv(LifelineVariable); err != nil {
		return nil, err
	}
	return &Lifeline{os.NewFile(uintptr(fd), "lifeline")}, nil
}

// Run is an actor: it returns nil when the owner is gone or ctx is done.
func (l *Lifeline) Run(ctx context.Context) error {
	defer l.file.Close()
	stop := context.AfterFunc(ctx, func() { l.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 64)
	for ctx.Err() == nil {
		if _, err := l.file.Read(buf); err != nil && !errors.Is(err, unix.EINTR) {
			return nil // the end, or an error that is as good as the end
		}
	}
	return nil
}

// AddLifeline adds the lifeline as an actor when the program has one; call it
// before all other Add. A program without one is stopped by signals alone.
func (g *Group) AddLifeline() error {
	line, err := OpenLifeline()
	if line == nil || err != nil {
		return err
	}
	g.Sibling = true
	g.Add("lifeline", line.Run)
	return nil
}

// Ready tells systemd or the bridge that the program works. It does nothing
// where nobody asked to be told.
func Ready() { notify(daemon.SdNotifyReady) }

// Stopping tells that the drain has begun.
func Stopping() { notify(daemon.SdNotifyStopping) }

// State tells in a few words what the program does now, for example "standby":
// waiting for a lease is healthy.
func State(text string) { notify("STATUS=" + fault.CleanLine(text)) }

// notify is best effort: whoever asked may be gone.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }

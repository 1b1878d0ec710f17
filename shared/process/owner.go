package process

import (
	"context"
	"errors"
	"os"
)

// ErrOwnerGone is what Owner.Run returns when the owner has ended.
var ErrOwnerGone = errors.New("owner process is gone")

// Owner is the process that started this one, fixed while it is surely still the
// parent. Its end means that nobody wants this program any more, even if some
// other process keeps our stdin open (core §16).
type Owner struct {
	inc  Incarnation
	gone bool // ended while it was being looked at
}

// OpenOwner fixes the owner. Call it first thing in a program: a parent that
// ended before cannot be told from one that never was. A program without a
// visible parent (init, or one of another pid namespace) has an Owner that
// never ends.
func OpenOwner() Owner {
	ppid := os.Getppid()
	if ppid <= 1 {
		return Owner{}
	}
	inc, err := Of(ppid)
	if os.Getppid() != ppid {
		return Owner{gone: true}
	}
	if err != nil {
		return Owner{}
	}
	return Owner{inc: inc}
}

// Incarnation names the owner; zero when there is none to watch.
func (o Owner) Incarnation() Incarnation { return o.inc }

// Run is an actor: it returns ErrOwnerGone when the owner has ended and nil when
// ctx is done first.
func (o Owner) Run(ctx context.Context) error {
	if o.gone {
		return ErrOwnerGone
	}
	if !o.inc.IsZero() {
		err := Wait(ctx, o.inc)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			return ErrOwnerGone
		}
	}
	<-ctx.Done()
	return nil
}

package process

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// How EndTree and EndGroup look for what is left.
const (
	endPoll   = 5 * time.Millisecond
	killLimit = 2 * time.Second // for the kernel to end what was killed
)

// EndGroup ends the process group that leader leads: SIGTERM, then after grace
// SIGKILL, and waits until the leader has ended. A leader that is already gone
// is no error, but then the rest of its group is not touched: the number may be
// another group's by now.
func EndGroup(leader Incarnation, grace time.Duration) error {
	err := signalGroup(leader, unix.SIGTERM)
	if err == nil && waitFor(leader, grace) != nil {
		err = signalGroup(leader, unix.SIGKILL)
		if err == nil {
			err = waitFor(leader, killLimit)
		}
	}
	if err == nil || errors.Is(err, ErrGone) {
		return nil
	}
	return fmt.Errorf("end process group %d: %w", leader.PID, err)
}

// EndTree ends root and all its descendants, those in other groups and sessions
// too: SIGTERM to root alone, so that it can end its own children, and after
// grace SIGKILL to whatever of the tree is left, walked again until nothing new
// appears.
//
// A descendant that detached before EndTree was called (double fork, so that
// its parent is init) is no longer in the tree and is not found.
func EndTree(root Incarnation, grace time.Duration) error {
	tree := &tree{root: root, known: map[Incarnation]bool{root: true}}
	if gone, known := root.Gone(); !known {
		return fmt.Errorf("end process tree %d: %w", root.PID, ErrUnproven)
	} else if gone {
		return nil
	}
	tree.grow()
	if err := Signal(root, unix.SIGTERM); err != nil && !errors.Is(err, ErrGone) {
		return fmt.Errorf("end process tree: %w", err)
	}
	for end := time.Now().Add(grace); time.Now().Before(end) && tree.left() > 0; time.Sleep(endPoll) {
		tree.grow()
	}
	for end := time.Now().Add(killLimit); tree.left() > 0; time.Sleep(endPoll) {
		if time.Now().After(end) {
			return fmt.Errorf("end process tree %d: %d processes do not end", root.PID, tree.left())
		}
		tree.grow()
		for inc := range tree.known {
			if err := Signal(inc, unix.SIGKILL); err != nil && !errors.Is(err, ErrGone) {
				return fmt.Errorf("end process tree %d: %w", root.PID, err)
			}
		}
	}
	return nil
}

// tree remembers every process that was once seen below root: when a parent
// ends, its children are init's and can no longer be found by walking.
type tree struct {
	root  Incarnation
	known map[Incarnation]bool
}

// grow adds the descendants of all known members and drops those that ended.
func (t *tree) grow() {
	for inc := range t.known {
		if !inc.Alive() {
			continue
		}
		below, err := Descendants(inc.PID)
		if err != nil {
			continue
		}
		for _, info := range below {
			if info.Dead() {
				continue
			}
			t.known[Incarnation{PID: info.PID, BootID: inc.BootID, Start: info.Start, Namespace: inc.Namespace}] = true
		}
	}
	for inc := range t.known {
		if gone, known := inc.Gone(); gone && known {
			delete(t.known, inc)
		}
	}
}

// left counts the members that are not proven to have ended.
func (t *tree) left() int {
	n := 0
	for inc := range t.known {
		if gone, known := inc.Gone(); !gone || !known {
			n++
		}
	}
	return n
}

func waitFor(inc Incarnation, d time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return Wait(ctx, inc)
}

package storage

import (
	"context"
	"math"
	"os"
)

// Add is how sizes are summed.
var Add = add

// Below walks what stands under name in dir, as a walk does that took it for a
// directory a moment ago; it gives the reason.
func Below(dir, name string, depth int) (string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	w := newWalk(context.Background(), Budget{math.MaxInt64, math.MaxInt64, math.MaxInt64, 0})
	device, err := deviceOf(int(d.Fd()))
	if err != nil {
		return "", err
	}
	(&hand{walk: w}).below(int(d.Fd()), name, device, depth)
	w.hands.Wait()
	return w.seen.Reason, w.err
}

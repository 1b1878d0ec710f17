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
	w := walk{ctx: context.Background(), budget: Budget{math.MaxInt64, math.MaxInt64, math.MaxInt64, 0}}
	w.levels = make([]level, depth)
	r, err := w.deviceOf(int(d.Fd()))
	if err != nil {
		return "", err
	}
	err = w.below(int(d.Fd()), name, r, depth)
	return w.seen.Reason, err
}

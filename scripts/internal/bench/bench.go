// Package bench measures drawbridge against what bounds it: each figure stands
// beside a baseline that does the same work with nothing of drawbridge in it, in
// the same run, taken in turn with ours, so that a busy machine slows both.
//
// cmd/bench calls Run. Everything is real but the agents, which are scripted
// (testkit/scripted): the programs are those of scripts/build, started as a Host
// starts them, on a private tmux server and a private Store. What a run starts it
// ends, and a run that was killed is swept by the next one (package rig).
//
// One file holds one group of figures. docs/performance.md says how each is
// taken; keep the two together.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"drawbridge/scripts/internal/rig"
)

// Figure is one line of the output. Ours and Base are in Unit; Ratio is Ours
// through Base.
type Figure struct {
	Name  string  `json:"name"`
	Ours  float64 `json:"ours"`
	Base  float64 `json:"base"`
	Ratio float64 `json:"ratio"`
	Bound string  `json:"bound"` // what has to hold, of ratio or of ours
	Unit  string  `json:"unit"`
	N     int     `json:"n"` // measurements on each side
	OK    bool    `json:"ok"`
}

// group is what one NAME of the command line selects.
type group struct {
	name    string
	measure func(context.Context, *stand) ([]Figure, error)
}

// groups are in the order in which they disturb each other least: list wants to
// see the panes grow.
var groups = []group{
	{"start", start},
	{"claim", claim},
	{"deliver", deliver},
	{"list", list},
	{"status", status},
	{"callback", callbackTime},
	{"idle", idle},
	{"mixed", mixed},
	{"kit", kits},
	{"broker", broker},
	{"storage", storage},
	{"worker", worker},
	{"station", station},
	{"egress", egress},
}

// Names lists the groups.
func Names() []string {
	var out []string
	for _, g := range groups {
		out = append(out, g.name)
	}
	return out
}

// Options of Run. Bin, Self, Stamp and Out are required.
type Options struct {
	Bin   string   // directory of the built programs
	Self  string   // executable that plays the roles (Role)
	Stamp string   // callback executable (cmd/stamp)
	Names []string // groups to measure; none means all
	Out   io.Writer
	Log   func(format string, args ...any) // what is going on; may be nil
}

// Run measures and writes each figure as one JSON line when it is known. missed
// names the figures whose bound does not hold.
func Run(ctx context.Context, o Options) (missed []string, err error) {
	chosen, err := choose(o.Names)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	out := json.NewEncoder(o.Out)
	out.SetEscapeHTML(false)
	err = rig.Do(ctx, "bench", o.Log, func(tb rig.TB) {
		s := newStand(tb, o)
		for _, g := range chosen {
			begin := time.Now()
			figures, err := g.measure(ctx, s)
			if err != nil {
				tb.Fatalf("measure %s: %v", g.name, err)
			}
			o.Log("%s took %.1f s", g.name, time.Since(begin).Seconds())
			for _, f := range figures {
				if !f.OK {
					missed = append(missed, f.Name)
				}
				if err := out.Encode(f); err != nil {
					tb.Fatalf("write a figure: %v", err)
				}
			}
		}
	})
	return missed, err
}

func choose(names []string) ([]group, error) {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("no figure is called %q; there are %s", n, strings.Join(Names(), ", "))
		}
	}
	if len(names) == 0 {
		return groups, nil
	}
	var out []group
	for _, g := range groups {
		if slices.Contains(names, g.name) {
			out = append(out, g)
		}
	}
	return out, nil
}

// newFigure fills in everything but the bound.
func newFigure(name, unit string, n int, ours, base float64) Figure {
	return Figure{Name: name, Ours: round(ours), Base: round(base), Ratio: round(ours / base), Unit: unit, N: n}
}

// ratioMost, ratioLeast, oursMost and addedMost give the figure its bound.
func (f Figure) ratioMost(limit float64) Figure  { return f.bounded("ratio", f.Ratio, "<=", limit) }
func (f Figure) ratioLeast(limit float64) Figure { return f.bounded("ratio", f.Ratio, ">=", limit) }
func (f Figure) oursMost(limit float64) Figure   { return f.bounded("ours", f.Ours, "<=", limit) }

// addedMost bounds what ours takes beyond the baseline.
func (f Figure) addedMost(limit float64) Figure {
	return f.bounded("ours - base", f.Ours-f.Base, "<=", limit)
}

func (f Figure) bounded(what string, value float64, sign string, limit float64) Figure {
	f.Bound = fmt.Sprintf("%s %s %g", what, sign, limit)
	f.OK = value <= limit
	if sign == ">=" {
		f.OK = value >= limit
	}
	return f
}

// round keeps four digits: more are noise.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// samples are measurements of one thing.
type samples []float64

// quantile gives the value that a share q of the samples does not exceed.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(i, 0), len(sorted)-1)]
}

func (s samples) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	switch {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// alternate runs ours and base in turn, n times each after warm rounds that do
// not count, and gives how long each took, in milliseconds.
func alternate(n, warm int, ours, base func() error) (o, b samples, err error) {
	took, err := inTurn(n, warm, ours, base)
	if err != nil {
		return nil, nil, err
	}
	return took[0], took[1], nil
}

// inTurn is alternate for any number; each round has an order of its own.
func inTurn(n, warm int, all ...func() error) ([]samples, error) {
	took := make([]samples, len(all))
	for i := range warm + n {
		for _, at := range rand.Perm(len(all)) {
			begin := time.Now()
			if err := all[at](); err != nil {
				return nil, err
			}
			if i >= warm {
				took[at] = append(took[at], milliseconds(time.Since(begin)))
			}
		}
	}
	return took, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// until polls ok every few milliseconds.
func until(ctx context.Context, limit time.Duration, what string, ok func() (bool, error)) error {
	deadline := time.Now().Add(limit)
	for {
		done, err := ok()
		switch {
		case err != nil:
			return fmt.Errorf("wait until %s: %w", what, err)
		case done:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case time.Now().After(deadline):
			return fmt.Errorf("wait until %s: not within %s", what, limit)
		}
		time.Sleep(pollEvery)
	}
}

// pollEvery is short against what is measured and long against a look.
const pollEvery = 4 * time.Millisecond

// patience bounds every wait for something that comes soon.
const patience = 30 * time.Second

// below gives a directory of the stand.
func (s *stand) below(parts ...string) string {
	return filepath.Join(append([]string{s.rig.Dir}, parts...)...)
}

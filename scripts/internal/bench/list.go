package bench

import (
	"context"
	"strconv"
)

// listRounds is the number of measurements at each size.
const listRounds = 25

// list compares the tool with two bare tmux clients that list and capture the
// same panes. Panes are added between the sizes; where another figure has made
// them before, the sizes below do not exist any more and are left out.
func list(ctx context.Context, s *stand) ([]Figure, error) {
	var out []Figure
	for _, size := range []int{1, 10, manyPanes} {
		if len(s.panes) > size {
			continue
		}
		if err := s.grow(ctx, size); err != nil {
			return nil, err
		}
		ours, base, err := alternate(listRounds, 3,
			func() error {
				var body struct{}
				return s.call(ctx, "list", nil, &body)
			},
			func() error {
				_, err := s.bareLook(ctx)
				return err
			})
		if err != nil {
			return nil, err
		}
		f := newFigure("list_"+strconv.Itoa(size), "ms", listRounds, ours.median(), base.median())
		out = append(out, f.ratioMost(2))
	}
	return out, nil
}

package bench

import (
	"context"
	"fmt"
	"strconv"
)

// listRounds is the number of measurements at each size.
const listRounds = 25

// list compares the tool with two bare tmux clients that list and capture the
// same panes. The answer is taken whole and not decoded, as the baseline's output
// is. Panes are added between the sizes; where another figure has made them
// before, the smaller sizes do not exist any more and are left out.
func list(ctx context.Context, s *stand) ([]Figure, error) {
	return s.lists(ctx, "list_", 1, 10, manyPanes)
}

// lists takes the tool at the sizes.
func (s *stand) lists(ctx context.Context, prefix string, sizes ...int) (out []Figure, err error) {
	if err := s.grow(ctx, 1); err != nil { // answered by the stand's own Host
		return nil, err
	}
	cmd, err := s.bridge("list")
	if err != nil {
		return nil, err
	}
	srv, err := s.spawn(cmd)
	if err != nil {
		return nil, err
	}
	defer func() { err = srv.end(err) }()
	for _, size := range sizes {
		if len(s.panes) > size {
			continue
		}
		if err := s.grow(ctx, size); err != nil {
			return nil, err
		}
		want := fmt.Sprintf(`"terminal_count":%d,`, size)
		ours, base, err := alternate(listRounds, 3,
			func() error {
				return srv.ask(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"agent_knock_knock_list","arguments":{}}}`+"\n", want)
			},
			func() error {
				_, err := s.bareLook(ctx)
				return err
			})
		if err != nil {
			return nil, err
		}
		f := newFigure(prefix+strconv.Itoa(size), "ms", listRounds, ours.median(), base.median())
		out = append(out, f.ratioMost(2))
	}
	return out, nil
}

package bench

import "context"

// mixed takes the figures that depend on the agent once more, where every second
// pane holds Claude Code: list with all panes, a status of a turn that runs in
// one, and the callback of one.
func mixed(ctx context.Context, s *stand) ([]Figure, error) {
	s = newMixed(s.tb, s.opts)
	out, err := s.lists(ctx, "list_mixed_", manyPanes)
	if err != nil {
		return nil, err
	}
	claude := s.panes[1]
	turn, err := s.send(ctx, claude, s.request(claude))
	if err != nil {
		return nil, err
	}
	live, err := s.liveStatus(ctx, claude, turn)
	if err != nil {
		return nil, err
	}
	live.Name += "_claude"
	if err := s.settled(ctx, []*pane{claude}); err != nil {
		return nil, err
	}
	bare, err := newReflex(s)
	if err != nil {
		return nil, err
	}
	defer bare.close()
	ours, base, err := s.oneByOne(ctx, bare, []*pane{claude}, aloneRounds, 1)
	if err != nil {
		return nil, err
	}
	return append(append(out, live), callbackFigures("callback_claude", ours, base)...), nil
}

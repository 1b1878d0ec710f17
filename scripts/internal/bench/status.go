package bench

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	statusRounds = 300
	liveRounds   = 60
	// liveMargin is what a live status may cost beside one bare capture.
	liveMargin = 5.0 // ms
)

// status takes the round trip of three status calls: a settled Watch and an idle
// Turn, which need the Store alone, against a bare SDK server that answers as
// many bytes; and a Turn that runs, whose pane is looked at.
func status(ctx context.Context, s *stand) ([]Figure, error) {
	if err := s.grow(ctx, 1); err != nil {
		return nil, err
	}
	p := s.panes[0]
	echo, end, err := s.echo(ctx)
	if err != nil {
		return nil, err
	}
	defer end()

	watch, err := s.settledWatch(ctx, p)
	if err != nil {
		return nil, err
	}
	turn, err := s.send(ctx, p, s.request(p))
	if err != nil {
		return nil, err
	}
	live, err := s.liveStatus(ctx, p, turn)
	if err != nil {
		return nil, err
	}
	if err := s.settled(ctx, []*pane{p}); err != nil {
		return nil, err
	}
	var out []Figure
	for _, c := range []struct {
		name string
		args map[string]any
	}{
		{"status_watch", map[string]any{"watch_id": watch}},
		{"status_turn", map[string]any{"turn_id": turn}},
	} {
		f, err := s.storeStatus(ctx, echo, c.name, c.args)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return append(out, live), nil
}

// settledWatch makes a Watch of work by hand and lets it end.
func (s *stand) settledWatch(ctx context.Context, p *pane) (string, error) {
	s.byHand(p)
	id, err := s.watch(ctx, p)
	if err != nil {
		return "", err
	}
	if err := s.release(p); err != nil {
		return "", err
	}
	return id, until(ctx, patience, "the Watch is settled", func() (bool, error) {
		var body struct {
			Watch struct {
				Status string `json:"status"`
			} `json:"watch"`
		}
		err := s.call(ctx, "status", map[string]any{"watch_id": id}, &body)
		return body.Watch.Status == "completed", err
	})
}

// watch makes a Watch of the work in p, once list offers it.
func (s *stand) watch(ctx context.Context, p *pane) (string, error) {
	var made struct {
		Watch struct {
			ID string `json:"watch_id"`
		} `json:"watch"`
	}
	var refused error // the turn that was typed has not begun
	err := until(ctx, patience, fmt.Sprintf("pane %d can be watched", p.n), func() (bool, error) {
		refused = s.call(ctx, "watch", map[string]any{"terminal_id": p.terminal}, &made)
		return refused == nil, nil
	})
	if err != nil {
		err = fmt.Errorf("%w; the last refusal: %w", err, refused)
	}
	return made.Watch.ID, err
}

// storeStatus alternates our status with a bare echo of the same size.
func (s *stand) storeStatus(ctx context.Context, echo *mcp.ClientSession, name string, args map[string]any) (Figure, error) {
	call := &mcp.CallToolParams{Name: "agent_knock_knock_status", Arguments: args}
	sample, err := s.host.Session().CallTool(ctx, call)
	if err != nil {
		return Figure{}, err
	}
	if sample.IsError {
		return Figure{}, fmt.Errorf("status was refused: %v", sample.StructuredContent)
	}
	size := 0
	for _, c := range sample.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			size += len(t.Text)
		}
	}
	bare := &mcp.CallToolParams{Name: "echo", Arguments: echoInput{Size: size}}
	ours, base, err := alternate(statusRounds, 20,
		func() error { _, err := s.host.Session().CallTool(ctx, call); return err },
		func() error { _, err := echo.CallTool(ctx, bare); return err })
	if err != nil {
		return Figure{}, err
	}
	return newFigure(name, "ms", statusRounds, ours.median(), base.median()).ratioMost(2), nil
}

// liveStatus compares the status of a running Turn with one bare capture of its
// pane and a margin.
func (s *stand) liveStatus(ctx context.Context, p *pane, turn string) (Figure, error) {
	ours, base, err := alternate(liveRounds, 5,
		func() error {
			var body struct {
				Terminal struct {
					Reachable bool `json:"reachable"`
				} `json:"terminal_status"`
			}
			err := s.call(ctx, "status", map[string]any{"turn_id": turn}, &body)
			if err == nil && !body.Terminal.Reachable {
				err = fmt.Errorf("the pane of %s was not reached", turn)
			}
			return err
		},
		func() error {
			_, _, err := s.tmux(ctx, "", "capture-pane", "-e", "-p", "-t", p.id)
			return err
		})
	if err != nil {
		return Figure{}, err
	}
	return newFigure("status_live", "ms", liveRounds, ours.median(), base.median()+liveMargin).ratioMost(1), nil
}

// echo starts the bare server and gives a session with it.
func (s *stand) echo(ctx context.Context) (*mcp.ClientSession, func(), error) {
	client := mcp.NewClient(&mcp.Implementation{Name: "bench", Version: "1.0.0"}, nil)
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: exec.Command(s.opts.Self, "role", roleEcho)}, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("start the echo server: %w", err)
	}
	return session, func() { _ = session.Close() }, nil // its end is waited for; how it ended says nothing
}

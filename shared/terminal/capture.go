package terminal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"drawbridge/shared/fault"
)

const endMark = "end"

// frame is one pane's facts and screen as one run of the server gave them.
type frame struct {
	pane   Pane
	server int
	body   []byte // exactly pane.Height lines, part of the whole answer
}

// Capture reads the screens of panes: one client for each socket (of up to
// maxBatch panes), sockets in parallel. The result is keyed by Pane.Key.
//
// A pane that vanished is absent. A pane that was respawned is present, with
// its present PID in Screen.Pane: compare before believing that it is the same
// program. An error says that some socket gave no whole answer; the screens
// that were whole are returned beside it.
func (t *Tmux) Capture(ctx context.Context, panes []Pane) (map[string]Screen, error) {
	var order []Endpoint
	groups := map[Endpoint][]string{}
	for _, p := range panes {
		if !validPaneID(p.ID) {
			return nil, fault.New(fault.Internal, "capturing pane %q: not a pane id", p.ID)
		}
		if groups[p.Endpoint] == nil {
			order = append(order, p.Endpoint)
		}
		groups[p.Endpoint] = append(groups[p.Endpoint], p.ID)
	}
	var (
		mu      sync.Mutex
		screens = make(map[string]Screen, len(panes))
		errs    = make([]error, len(order))
		g       errgroup.Group
	)
	g.SetLimit(maxParallel)
	for i, ep := range order {
		g.Go(func() error {
			ids := groups[ep]
			for len(ids) > 0 && errs[i] == nil {
				n := min(len(ids), maxBatch)
				var got []Screen
				got, errs[i] = t.capture(ctx, ep, ids[:n])
				ids = ids[n:]
				mu.Lock()
				for _, s := range got {
					screens[s.Pane.Key()] = s
				}
				mu.Unlock()
			}
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	return screens, errors.Join(errs...)
}

// capture reads panes of one server.
func (t *Tmux) capture(ctx context.Context, ep Endpoint, ids []string) ([]Screen, error) {
	nonce := newNonce()
	res, err := t.ask(ctx, ep.Socket, ids, nonce)
	frames, whole := parseFrames(res.out, nonce)
	if errors.Is(err, errNotStarted) {
		return nil, clientFault("capturing panes", err)
	}
	// The server at the socket may be another one by now. It answered with its
	// pid, so it is enough that this pid still has the birth we know.
	if !ep.Server.Alive() {
		return nil, nil
	}
	screens := screensOf(frames, ep)
	switch {
	case err != nil:
		return screens, clientFault("capturing panes", err)
	case !whole:
		return screens, fault.New(fault.ObservationUnavail, "capturing panes of tmux server %d: no whole answer: %s", ep.Server.PID, res.reason()).
			WithHint("a hook of this tmux server that prints (show-hooks -g) would do that").Safe()
	}
	return screens, nil
}

// ask asks for a frame of each pane and for the end mark. Commands for one pane
// fit in the client's arguments, which saves the server to ask back for a script.
func (t *Tmux) ask(ctx context.Context, socket string, ids []string, nonce string) (output, error) {
	if len(ids) != 1 {
		return t.script(ctx, socket, captureScript(ids, nonce), len(ids))
	}
	id := ids[0]
	return t.run(ctx, socket, nil,
		"display-message", "-p", "-t", id, nonce+" "+factsFormat, ";",
		// A command that fails would end the whole, so the pane is asked for first.
		"if-shell", "-F", "-t", id, "#{pane_id}", "capture-pane -e -p -t "+id, ";",
		"display-message", "-p", nonce+" "+endMark)
}

// captureScript asks for a frame of each pane, and for the end mark.
func captureScript(ids []string, nonce string) string {
	var script strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&script, "display-message -p -t %s '%s %s'\ncapture-pane -e -p -t %s\n", id, nonce, factsFormat, id)
	}
	fmt.Fprintf(&script, "display-message -p '%s %s'\n", nonce, endMark)
	return script.String()
}

// screensOf gives the frames that this very server answered.
func screensOf(frames []frame, ep Endpoint) []Screen {
	var screens []Screen
	for _, f := range frames {
		if f.server == ep.Server.PID {
			f.pane.Endpoint = ep
			screens = append(screens, Screen{Pane: f.pane, Text: f.body})
		}
	}
	return screens
}

// parseFrames gives the whole frames of out. A frame counts only if the line
// behind its body is ours again: then nothing foreign (the output of a user's
// hook) stands in it. whole is false where anything was cut, foreign or
// dropped, so that a pane that is absent from a whole answer has vanished.
func parseFrames(out []byte, nonce string) (frames []frame, whole bool) {
	mark := []byte(nonce + " ")
	whole = true
	for len(out) > 0 {
		if !bytes.HasPrefix(out, mark) {
			whole = false
			next := bytes.Index(out, append([]byte("\n"), mark...))
			if next < 0 {
				return frames, false
			}
			out = out[next+1:]
			continue
		}
		line, rest, ok := bytes.Cut(out[len(mark):], []byte("\n"))
		if !ok {
			return frames, false
		}
		out = rest
		if string(line) == endMark {
			return frames, whole && len(out) == 0
		}
		f := strings.SplitN(string(line), " ", factsFields)
		if len(f) == factsFields && f[1] == "" {
			continue // a pane that is gone: a header without facts or body
		}
		if len(f) != factsFields {
			whole = false
			continue
		}
		pane, server, err := parseFacts(f)
		if err != nil {
			whole = false
			continue
		}
		end := linesEnd(out, pane.Height)
		if end < 0 {
			return frames, false
		}
		if bytes.HasPrefix(out[end:], mark) {
			frames = append(frames, frame{pane: pane, server: server, body: out[:end:end]})
		} else {
			whole = false
		}
		out = out[end:]
	}
	return frames, false
}

// linesEnd gives the offset behind the first n lines of b, or -1.
func linesEnd(b []byte, n int) int {
	end := 0
	for ; n > 0; n-- {
		i := bytes.IndexByte(b[end:], '\n')
		if i < 0 {
			return -1
		}
		end += i + 1
	}
	return end
}

// Settled captures p until two captures that lie gap apart are equal, facts
// included, and gives the second. At least two are made, however slow tmux is; none
// begins later than timeout. A screen that has not settled by then is
// terminal_not_idle with ErrUnsettled in its chain, beside the last screen seen; a
// pane or server that is gone is terminal_not_found, another process in the pane
// terminal_changed.
func (t *Tmux) Settled(ctx context.Context, p Pane, gap, timeout time.Duration) (Screen, error) {
	last, err := t.CaptureOne(ctx, p)
	if err != nil {
		return Screen{}, err
	}
	for end := time.Now().Add(timeout); ; {
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("watching pane %s settle: %w", p.ID, ctx.Err())
		case <-time.After(gap):
		}
		screen, err := t.CaptureOne(ctx, p)
		switch {
		case err != nil:
			return last, err
		case screen.Pane == last.Pane && bytes.Equal(screen.Text, last.Text):
			return screen, nil
		case time.Now().After(end):
			return screen, fault.New(fault.TerminalNotIdle, "watching pane %s settle: %w for %s", p.ID, ErrUnsettled, timeout).
				WithHint("the program in the pane is drawing; wait until it is idle").Safe()
		}
		last = screen
	}
}

// CaptureOne captures p once and proves that it is still what it was: a pane or
// server that is gone is terminal_not_found, another server or another process
// in the pane terminal_changed.
func (t *Tmux) CaptureOne(ctx context.Context, p Pane) (Screen, error) {
	screens, err := t.Capture(ctx, []Pane{p})
	if err != nil {
		return Screen{}, err
	}
	screen, ok := screens[p.Key()]
	if !ok {
		if _, err := t.Look(ctx, p); err != nil {
			return Screen{}, err
		}
		return Screen{}, fault.New(fault.ObservationUnavail, "capturing pane %s: it gave no screen", p.ID).Safe()
	}
	if screen.Pane.PID != p.PID {
		return Screen{}, changedProcess(p, screen.Pane.PID)
	}
	return screen, nil
}

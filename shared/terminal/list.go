package terminal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

// Formats of one pane's facts. Only the last field of each may hold blanks; the
// session name comes last of all, since tmux versions differ in which bytes of
// it they escape.
const (
	closedFormat = "#{?pane_in_mode,1,#{?pane_input_off,1,#{?pane_synchronized,1,0}}}"
	factsFormat  = "#{pid} #{pane_id} #{pane_pid} #{pane_width} #{pane_height} #{pane_dead} " + closedFormat + " #{alternate_on} #{pane_tty}"
	placeFormat  = "#{pid} #{pane_id} #{pane_pid} #{pane_width} #{pane_height} #{pane_dead} " + closedFormat + " #{alternate_on} #{pane_tty} #{session_id} #{window_index} #{pane_index} #{session_name}"
	factsFields  = 9
	placeFields  = 13
)

// Listing is what one look at all configured sockets found. A socket has its
// panes in Panes or its reason in Errors, never both.
type Listing struct {
	Panes  []Pane // by socket as configured, then session, window, index
	Errors []SocketError
}

// Panes lists the panes of all configured sockets, in parallel. A socket that
// cannot be read is reported in the Listing; an error means that nothing could
// be listed at all (no tmux program, or ctx ended).
func (t *Tmux) Panes(ctx context.Context) (Listing, error) {
	listing, _, err := t.look(ctx, false)
	return listing, err
}

// Survey is Panes with the screens of those panes that the last Survey met: to
// start a client costs more than all that it asks, so one asks both. The result
// is keyed by Pane.Key. A pane without a screen is new, or its answer was not
// whole: Capture it.
func (t *Tmux) Survey(ctx context.Context) (Listing, map[string]Screen, error) {
	listing, screens, err := t.look(ctx, true)
	if err == nil {
		t.mu.Lock()
		t.known = listing.Panes
		t.mu.Unlock()
	}
	return listing, screens, err
}

// Known gives the panes that the last Survey met. Whoever wants to know what runs
// in them may look while the next one is under way; a pane of it that differs has
// to be looked at again.
func (t *Tmux) Known() []Pane {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.known)
}

// look lists all sockets, with the screens of the known panes.
func (t *Tmux) look(ctx context.Context, capture bool) (Listing, map[string]Screen, error) {
	if _, err := t.find(); err != nil {
		return Listing{}, nil, clientFault("listing panes", err)
	}
	ids := map[string][]string{} // by socket
	if capture {
		for _, p := range t.Known() {
			if at := p.Endpoint.Socket; len(ids[at]) < maxBatch {
				ids[at] = append(ids[at], p.ID)
			}
		}
	}
	type found struct {
		panes   []Pane
		screens []Screen
		err     *SocketError
	}
	results := make([]found, len(t.sockets))
	seen := map[string]bool{}
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i, socket := range t.sockets {
		path, problem := resolve(socket)
		if problem != nil {
			results[i].err = problem
			continue
		}
		if seen[path] { // two names of one socket
			continue
		}
		seen[path] = true
		g.Go(func() error {
			results[i].panes, results[i].screens, results[i].err = t.list(ctx, socket, path, ids[path])
			return nil
		})
	}
	_ = g.Wait() // the functions return nil
	if err := ctx.Err(); err != nil {
		return Listing{}, nil, fmt.Errorf("listing panes: %w", err)
	}
	var all Listing
	screens := map[string]Screen{}
	for _, r := range results {
		all.Panes = append(all.Panes, r.panes...)
		for _, s := range r.screens {
			screens[s.Pane.Key()] = s
		}
		if r.err != nil {
			all.Errors = append(all.Errors, *r.err)
		}
	}
	return all, screens, nil
}

// list lists one server, and captures the panes ids of it.
func (t *Tmux) list(ctx context.Context, socket, path string, ids []string) ([]Pane, []Screen, *SocketError) {
	bad := func(p SocketProblem, reason string) ([]Pane, []Screen, *SocketError) {
		return nil, nil, &SocketError{Socket: socket, Problem: p, Reason: fault.CleanLine(reason)}
	}
	nonce, frameNonce := newNonce(), newNonce()
	script := "list-panes -a -F '" + nonce + " " + placeFormat + " " + nonce + "'\n" +
		"display-message -p '" + nonce + " " + endMark + " #{pid} " + nonce + "'\n"
	if len(ids) > 0 {
		script += captureScript(ids, frameNonce)
	}
	res, err := t.script(ctx, path, script, len(ids))
	if err != nil {
		return bad(SocketUnreadable, err.Error())
	}
	if res.unreached() {
		if bytes.HasPrefix(res.diag, []byte("no server running on ")) || bytes.Contains(res.diag, []byte("(Connection refused)")) {
			return bad(SocketStale, "the socket's tmux server is gone")
		}
		return bad(SocketUnreadable, res.reason())
	}
	records, server, rest, err := parseListing(res.out, nonce)
	if err == nil && len(ids) == 0 && len(rest) > 0 {
		err = errors.New("the listing does not end with its server")
	}
	if err != nil {
		if len(res.diag) > 0 {
			err = fmt.Errorf("%w: %s", err, res.reason())
		}
		return bad(SocketUnreadable, err.Error())
	}
	inc, err := process.Of(server)
	if err != nil {
		return bad(SocketUnreadable, fmt.Sprintf("reading the tmux server's process: %v", err))
	}
	ep := Endpoint{Socket: path, Server: inc}
	frames, _ := parseFrames(rest, frameNonce) // what is not whole is captured again
	return merge(records, ep), screensOf(frames, ep), nil
}

// placed is a pane in one of the sessions that show it.
type placed struct {
	pane    Pane
	server  int
	session int // number of session_id
}

// parseListing reads records that stand between two nonces each, so that a
// session name may hold any bytes, and demands the end mark. Anything beside
// the records (the output of a user's hook) spoils the whole. What follows the end
// mark is given back.
func parseListing(out []byte, nonce string) (records []placed, server int, behind []byte, err error) {
	for rest := string(out); rest != ""; {
		body, begins := strings.CutPrefix(rest, nonce+" ")
		rec, next, ends := strings.Cut(body, " "+nonce+"\n")
		if !begins || !ends {
			return nil, 0, nil, errors.New("the listing is cut or has foreign output in it")
		}
		rest = next
		if pid, ok := strings.CutPrefix(rec, endMark+" "); ok {
			server, err = number(pid)
			if err != nil || server == 0 {
				return nil, 0, nil, errors.New("the listing does not end with its server")
			}
			for _, r := range records {
				if r.server != server {
					return nil, 0, nil, errors.New("the listing names two servers")
				}
			}
			return records, server, out[len(out)-len(rest):], nil
		}
		r, err := parsePlace(rec)
		if err != nil {
			return nil, 0, nil, err
		}
		records = append(records, r)
	}
	return nil, 0, nil, errors.New("the listing has no end")
}

// parsePlace reads one record of placeFormat.
func parsePlace(rec string) (placed, error) {
	f := strings.SplitN(rec, " ", placeFields)
	if len(f) != placeFields {
		return placed{}, fmt.Errorf("pane record has %d fields, not %d", len(f), placeFields)
	}
	p, server, err := parseFacts(f[:factsFields])
	if err != nil {
		return placed{}, err
	}
	id, dollar := strings.CutPrefix(f[9], "$")
	session, err1 := number(id)
	window, err2 := number(f[10])
	index, err3 := number(f[11])
	if err := errors.Join(err1, err2, err3); err != nil || !dollar || f[12] == "" {
		return placed{}, fmt.Errorf("pane record %s has no place: %q", p.ID, f[9:])
	}
	p.Window, p.Index, p.Session = window, index, f[12]
	return placed{pane: p, server: server, session: session}, nil
}

// parseFacts reads the fields of factsFormat. A pane that does not exist has
// empty fields and is an error here.
func parseFacts(f []string) (p Pane, server int, err error) {
	if !validPaneID(f[1]) {
		return Pane{}, 0, fmt.Errorf("pane record has no pane id: %q", f[1])
	}
	var n [7]int
	for i, s := range []string{f[0], f[2], f[3], f[4], f[5], f[6], f[7]} {
		if n[i], err = number(s); err != nil {
			return Pane{}, 0, fmt.Errorf("pane record %s: %w", f[1], err)
		}
	}
	if n[0] == 0 || n[2] < 1 || n[2] > maxEdge || n[3] < 1 || n[3] > maxEdge {
		return Pane{}, 0, fmt.Errorf("pane record %s is out of range: %q", f[1], f[:5])
	}
	return Pane{
		ID: f[1], PID: n[1], Width: n[2], Height: n[3],
		Dead: n[4] != 0, InMode: n[5] != 0, Alternate: n[6] != 0, TTY: f[8],
	}, n[0], nil
}

// merge makes one Pane of each pane id. A pane that several sessions show
// (groups, linked windows) is placed in the oldest, so that a session that
// someone adds does not rename it.
func merge(records []placed, ep Endpoint) []Pane {
	slices.SortStableFunc(records, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.session, b.session), cmp.Compare(a.pane.Window, b.pane.Window))
	})
	seen := map[string]bool{}
	var panes []Pane
	for _, r := range records {
		if seen[r.pane.ID] {
			continue
		}
		seen[r.pane.ID] = true
		r.pane.Endpoint = ep
		panes = append(panes, r.pane)
	}
	slices.SortStableFunc(panes, func(a, b Pane) int {
		return cmp.Or(cmp.Compare(a.Session, b.Session), cmp.Compare(a.Window, b.Window), cmp.Compare(a.Index, b.Index))
	})
	return panes
}

// validPaneID reports whether id is "%" and a number as tmux writes it. Only
// such an id ever becomes part of a command.
func validPaneID(id string) bool {
	digits, ok := strings.CutPrefix(id, "%")
	if !ok {
		return false
	}
	_, err := number(digits)
	return err == nil
}

// number reads a decimal number of at most ten digits, without sign or leading zero.
func number(s string) (int, error) {
	if s == "" || len(s) > 10 || (len(s) > 1 && s[0] == '0') {
		return 0, fmt.Errorf("not a number: %q", s)
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("not a number: %q", s)
		}
	}
	return strconv.Atoi(s)
}

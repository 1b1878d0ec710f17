package terminal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"drawbridge/shared/fault"
)

// What the server compares with what is expected. bracketFormat is 1 only where
// tmux knows that the program has not asked for bracketed paste: older versions
// do not tell, and the rules of the agent's screen decide there.
const (
	guardFormat   = "#{pid} #{pane_id} #{pane_pid} #{pane_dead} #{?pane_in_mode,1,0} #{?pane_input_off,1,0} #{?pane_synchronized,1,0}"
	bracketFormat = "#{?#{==:#{bracket_paste_flag},0},1,0}"
	guardFields   = 8 // of both
)

// Marks of the two answers.
const (
	doneMark    = "done"
	refusedMark = "refused"
)

// Look reads the pane again. A server or pane that is gone is
// terminal_not_found; another server at the socket, or another process in the
// pane, is terminal_changed. A pane that is dead or in a mode is no error: see
// the flags. Nothing is typed.
func (t *Tmux) Look(ctx context.Context, p Pane) (Pane, error) {
	doing := "looking at pane " + p.ID
	if err := serverLives(p, doing); err != nil {
		return Pane{}, err
	}
	if !validPaneID(p.ID) {
		return Pane{}, fault.New(fault.Internal, "looking at pane %q: not a pane id", p.ID)
	}
	nonce := newNonce()
	res, err := t.run(ctx, p.Endpoint.Socket, nil, "display-message", "-p", "-t", p.ID, nonce+" "+placeFormat+" "+nonce)
	if err != nil {
		return Pane{}, clientFault(doing, err)
	}
	rec, ok := strings.CutPrefix(string(res.out), nonce+" ")
	rec, _, whole := strings.Cut(rec, " "+nonce+"\n")
	if !ok || !whole {
		if err := serverLives(p, doing); err != nil {
			return Pane{}, err
		}
		if strings.Contains(string(res.diag), "can't find pane") {
			return Pane{}, paneGone(p)
		}
		return Pane{}, fault.New(fault.ObservationUnavail, "%s: %s", doing, res.reason()).Safe()
	}
	if f := strings.SplitN(rec, " ", 3); len(f) == 3 && f[1] == "" {
		return Pane{}, paneGone(p)
	}
	got, err := parsePlace(rec)
	switch {
	case err != nil:
		return Pane{}, fault.New(fault.ObservationUnavail, "%s: %w", doing, err).Safe()
	case got.server != p.Endpoint.Server.PID:
		return Pane{}, changedServer(p, got.server)
	case got.pane.PID != p.PID:
		return Pane{}, changedProcess(p, got.pane.PID)
	}
	got.pane.Endpoint = p.Endpoint
	return got.pane, nil
}

// PasteOption changes how Paste types.
type PasteOption string

// LineFeeds keeps line feeds as they are.
const LineFeeds PasteOption = "line_feeds"

// Paste hands text to the program in p as one paste, bracketed if the program
// asked for that; line feeds go as carriage returns, as a terminal sends the
// line ends of a paste, unless LineFeeds is given. The text goes through the client's standard input into
// a buffer of this call's own name.
//
// The server takes the text, compares itself, pane, pane process, liveness,
// mode, input lock and synchronisation with what is expected, and pastes, in
// that order and with nothing between comparison and paste. The buffer is gone
// afterwards in every case but the death of the client in the middle.
//
// nil means handed over, whole and once. Otherwise the error's Input says
// whether anything may have been typed (package comment). Text that is empty,
// over MaxPaste, not UTF-8, or has a control character other than line feed and
// tab (an escape could end the bracket) is refused.
//
// Once begun, a paste is not cancelled with ctx: the answer is worth more than
// the few milliseconds.
func (t *Tmux) Paste(ctx context.Context, p Pane, text string, how ...PasteOption) error {
	if err := pasteable(text); err != nil {
		return err
	}
	lines := ""
	if slices.Contains(how, LineFeeds) {
		lines = " -r"
	}
	nonce := newNonce()
	buffer := "drawbridge-" + nonce
	return t.enter(ctx, p, entry{
		doing:   "pasting into pane " + p.ID,
		nonce:   nonce,
		bracket: true,
		stdin:   []byte(text),
		first:   []string{"load-buffer", "-b", buffer, "-", ";"},
		effect:  fmt.Sprintf("paste-buffer -p%s -d -b %s -t %s", lines, buffer, p.ID),
		undo:    "delete-buffer -b " + buffer,
	})
}

// Press presses one key in p, under the same comparison and with the same
// promises as Paste. In a window with synchronized panes it is refused: tmux
// would press the key in the other panes, too.
func (t *Tmux) Press(ctx context.Context, p Pane, k Key) error {
	if !k.Valid() {
		return fault.New(fault.Internal, "pressing %q: not a key of the closed set", string(k))
	}
	return t.enter(ctx, p, entry{
		doing:  fmt.Sprintf("pressing %s in pane %s", k, p.ID),
		nonce:  newNonce(),
		effect: fmt.Sprintf("send-keys -t %s %s", p.ID, k),
	})
}

// entry is one guarded effect.
type entry struct {
	doing   string
	nonce   string
	bracket bool     // refuse a program that is known not to bracket
	stdin   []byte   // for first
	first   []string // harmless commands before the comparison
	effect  string   // the one command that types
	undo    string   // removes what first left, when effect was not run
}

// enter runs first, the comparison, and effect or undo as one client.
func (t *Tmux) enter(ctx context.Context, p Pane, e entry) error {
	if !validPaneID(p.ID) {
		return fault.New(fault.Internal, "%s: not a pane id", e.doing)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s: %w", e.doing, err)
	}
	if err := serverLives(p, e.doing); err != nil {
		return err
	}
	mark := e.nonce + " "
	guard, expected := guardFormat, fmt.Sprintf("%d %s %d 0 0 0 0", p.Endpoint.Server.PID, p.ID, p.PID)
	if e.bracket {
		guard, expected = guard+" "+bracketFormat, expected+" 0"
	}
	yes := e.effect + " ; display-message -p '" + mark + doneMark + "'"
	no := "display-message -p -t " + p.ID + " '" + mark + refusedMark + " " + guardFormat + " " + bracketFormat + "'"
	if e.undo != "" {
		no += " ; " + e.undo
	}
	args := append(e.first, "if-shell", "-F", "-t", p.ID, "#{==:"+guard+","+expected+"}", yes, no)

	sure := context.WithoutCancel(ctx)
	res, err := t.run(sure, p.Endpoint.Socket, e.stdin, args...)
	for line := range strings.Lines(string(res.out)) {
		answer, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), mark)
		switch {
		case !ok:
		case answer == doneMark:
			return nil
		case strings.HasPrefix(answer, refusedMark+" "):
			return refusal(p, e.doing, strings.Split(answer, " ")[1:])
		}
	}
	switch {
	case errors.Is(err, errNotStarted):
		return clientFault(e.doing, err)
	case err == nil && res.unreached():
		if err := serverLives(p, e.doing); err != nil {
			return err
		}
		return fault.New(fault.ObservationUnavail, "%s: %s", e.doing, res.reason()).Safe()
	}
	if e.undo != "" {
		// Best effort: the buffer holds the request's text and should not stay.
		short, cancel := context.WithTimeout(sure, undoTimeout)
		_, _ = t.run(short, p.Endpoint.Socket, []byte(e.undo+"\n"), "source-file", "-")
		cancel()
	}
	if err == nil {
		err = errors.New(res.reason())
	}
	return fault.New(fault.SubmissionUncertain, "%s: tmux gave no answer: %w", e.doing, err).
		WithHint("look at the pane; nothing is repeated").WithInput(fault.InputPossible)
}

// Typed tells from the error of Paste or Press what was typed: sent for nil,
// possible where nothing is proven, and none otherwise.
func Typed(err error) fault.Input {
	if err == nil {
		return fault.InputSent
	}
	if e, ok := fault.As(err); ok && e.Input != "" {
		return e.Input
	}
	return fault.InputNone
}

// refusal says which part of the comparison failed. f are the fields of
// guardFormat as the server had them.
func refusal(p Pane, doing string, f []string) error {
	if len(f) != guardFields {
		return fault.New(fault.ObservationUnavail, "%s: tmux refused without a reason", doing).Safe()
	}
	busy := func(why, hint string) error {
		return fault.New(fault.TerminalNotIdle, "%s: %s", doing, why).WithHint("%s", hint).Safe()
	}
	server, _ := number(f[0])
	pid, _ := number(f[2])
	switch {
	case server != p.Endpoint.Server.PID:
		return changedServer(p, server)
	case f[1] != p.ID:
		return paneGone(p)
	case pid != p.PID:
		return changedProcess(p, pid)
	case f[3] != "0":
		return fault.New(fault.TerminalChanged, "%s: the pane's program has ended", doing).WithHint("call list again").Safe()
	case f[4] != "0":
		return busy("the pane is in copy mode or another mode of tmux", "leave the mode in the pane (q) and try again")
	case f[5] != "0":
		return busy("input to the pane is disabled", "enable it with select-pane -e")
	case f[6] != "0":
		return busy("the window's panes are synchronized, so input would reach other panes", "turn synchronize-panes off")
	case f[7] != "0": // only Paste compares it, and it is last
		return busy("the program in the pane has not asked for bracketed paste", "wait until the agent shows its composer")
	}
	return fault.New(fault.ObservationUnavail, "%s: tmux refused without a reason", doing).Safe()
}

// pasteable checks a text before anything is done with it.
func pasteable(text string) error {
	switch {
	case text == "":
		return fault.New(fault.InvalidArguments, "pasting: the text is empty").Safe()
	case len(text) > MaxPaste:
		return fault.New(fault.InputTooLarge, "pasting: the text has %d bytes, at most %d are allowed", len(text), MaxPaste).Safe()
	case !utf8.ValidString(text):
		return fault.New(fault.InvalidArguments, "pasting: the text is not UTF-8").Safe()
	}
	for i, r := range text {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return fault.New(fault.InvalidArguments, "pasting: the text has the control character %U at byte %d", r, i).Safe()
		}
	}
	return nil
}

// serverLives proves that the pane's server is the process it was.
func serverLives(p Pane, doing string) error {
	gone, known := p.Endpoint.Server.Gone()
	switch {
	case !known:
		return fault.New(fault.ObservationUnavail, "%s: the tmux server's process %d cannot be read", doing, p.Endpoint.Server.PID).Safe()
	case gone:
		return fault.New(fault.TerminalNotFound, "%s: its tmux server (pid %d) is gone", doing, p.Endpoint.Server.PID).WithHint("call list again").Safe()
	}
	return nil
}

func paneGone(p Pane) error {
	return fault.New(fault.TerminalNotFound, "pane %s is gone", p.ID).WithHint("call list again").Safe()
}

func changedServer(p Pane, pid int) error {
	return fault.New(fault.TerminalChanged, "pane %s: another tmux server (pid %d, not %d) answers at its socket", p.ID, pid, p.Endpoint.Server.PID).
		WithHint("call list again").Safe()
}

func changedProcess(p Pane, pid int) error {
	return fault.New(fault.TerminalChanged, "pane %s: its process is %d, not %d", p.ID, pid, p.PID).WithHint("call list again").Safe()
}

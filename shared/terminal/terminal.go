// Package terminal finds tmux panes, reads their screens and types into them.
// It knows nothing of agents.
//
// # What a terminal is
//
// A pane is named by the canonical path of its server's socket, the server's
// process incarnation and the pane id (Pane.Key). tmux never gives a pane id
// out twice in one server, but it starts again at %0 in the next one, and a
// respawned pane keeps its id with another program in it; so whoever types says
// which server and which pane process it means, and both are compared in the
// server itself, in the same run of commands as the effect (see Paste). Session
// and window names are shown to people and never used as a target.
//
// # How tmux is asked
//
// Every question is one short-lived tmux client with -N (never start a server),
// -S (exactly this socket) and -u; TMUX and TMUX_TMPDIR are not in its
// environment. Many questions go through the standard input of one
// "source-file -" and come back as frames: a header line that begins with 128
// random bits, then exactly as many lines as the header's pane height. The
// exit status is ignored, since one vanished pane spoils it for all; a frame
// that is whole is believed, everything else is dropped. A pane cannot forge a
// frame: it does not know the bits, and its lines are counted.
//
// # What typing promises
//
// Paste and Press return nil only when tmux said that it handed the bytes to
// the pane; a fault.Error with Input none when it is proven that nothing was
// typed; and one with Input possible otherwise. They never repeat anything.
// "Handed to the pane" is a queue: a program that does not read gets the bytes
// later, in order. That the program took them is for its own records to say.
//
// # Locks
//
// Lock excludes everyone else of this user from one terminal, across programs
// and Stores (spec core §3.2). It is taken by the caller, not by Paste.
package terminal

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"drawbridge/shared/fault"
)

// Bounds of one tmux client.
const (
	clientTimeout = 5 * time.Second
	undoTimeout   = time.Second            // for tidying up after a client without answer
	clientGrace   = 500 * time.Millisecond // for the pipes of a killed client
	maxOutput     = 64 << 20               // bytes; 50 panes of 300×100 with a colour per cell
	maxDiagnostic = 1 << 20
	spareOutput   = 1 << 9 // beyond what a screen took the last time
)

// MaxPaste is the largest text that Paste takes, in bytes.
const MaxPaste = 256 << 10

const (
	maxParallel = 8   // sockets asked at once
	maxBatch    = 200 // panes in one invocation
	maxEdge     = 10000
)

// ErrNoTmux is in the chain of every error that means: no tmux program.
var ErrNoTmux = errors.New("no tmux program found")

// ErrUnsettled is in the chain of Settled's error for a screen that kept changing.
var ErrUnsettled = errors.New("screen kept changing")

// Options configure a Tmux.
type Options struct {
	// Sockets are the servers to search: an absolute path, or a name in
	// /tmp/tmux-<uid>. Empty means "default" there. An inherited TMUX or
	// TMUX_TMPDIR decides nothing.
	Sockets []string

	// TmuxPath is the tmux program; empty means "tmux" on PATH.
	TmuxPath string
}

// Tmux asks the tmux servers of the configured sockets. It holds no connection
// and no state but the program's path and the panes that the last Survey met, and
// may be used by several goroutines.
type Tmux struct {
	sockets []string
	program string
	env     []string
	screen  atomic.Int64 // bytes that one screen of the last answer took

	mu    sync.Mutex
	path  string // program, once found
	known []Pane // of the last Survey
}

// New makes a Tmux; nothing is run or looked up yet.
func New(o Options) *Tmux {
	t := &Tmux{sockets: o.Sockets, program: o.TmuxPath, env: environment(os.Environ())}
	if len(t.sockets) == 0 {
		t.sockets = []string{defaultSocket}
	}
	if t.program == "" {
		t.program = "tmux"
	}
	return t
}

// Version gives what "tmux -V" prints, for example "tmux 3.3a".
func (t *Tmux) Version(ctx context.Context) (string, error) {
	res, err := t.run(ctx, "", nil, "-V")
	if err != nil {
		return "", clientFault("asking tmux for its version", err)
	}
	line, _, _ := strings.Cut(string(res.out), "\n")
	if res.code != 0 || !strings.HasPrefix(line, "tmux ") {
		return "", fault.New(fault.ObservationUnavail, "asking tmux for its version: %s", res.reason()).Safe()
	}
	return line, nil
}

// newNonce gives 128 random bits in hex.
func newNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails since Go 1.24
	return hex.EncodeToString(b[:])
}

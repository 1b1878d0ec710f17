package terminal

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"drawbridge/shared/process"
)

// Endpoint is one incarnation of one tmux server.
type Endpoint struct {
	Socket string              `json:"socket"` // canonical path
	Server process.Incarnation `json:"server"`
}

// Pane is what one look at tmux says of one pane. Session, Window and Index are
// for people: no command ever uses them as a target.
type Pane struct {
	Endpoint  Endpoint `json:"endpoint"`
	ID        string   `json:"id"` // "%3"
	Session   string   `json:"session"`
	Window    int      `json:"window"`
	Index     int      `json:"index"`
	PID       int      `json:"pid"` // pane_pid: the anchor of the process tree
	TTY       string   `json:"tty"`
	Width     int      `json:"width"`
	Height    int      `json:"height"`
	Dead      bool     `json:"dead"`
	InMode    bool     `json:"in_mode"` // copy mode and the like, input switched off, or synchronized: keys would not reach this program, or not it alone
	Alternate bool     `json:"alternate"`
}

// Screen is one styled capture of one pane: exactly Pane.Height lines as
// `capture-pane -e -p` gives them. Pane holds the facts of the same moment
// (id, pid, dead, mode, size); it does not carry Session, Window and Index.
type Screen struct {
	Pane Pane
	Text []byte
}

// Key is the terminal_key (core §4): the hex SHA-256 of provider, endpoint and
// pane id. It is equal in every program and Store of the user, and new after a
// server restart. The program in the pane is not part of it.
func (p Pane) Key() string { return digest("drawbridge.terminal.v1", p.terminal()...) }

// IncarnationKey is the incarnation_key (core §4): the terminal, the pane's
// process and one agent process in it. A new process in the same pane has
// another key.
func IncarnationKey(p Pane, agent process.Incarnation) string {
	return digest("drawbridge.incarnation.v1", append(p.terminal(), strconv.Itoa(p.PID), agent.String())...)
}

func (p Pane) terminal() []string {
	return []string{provider, p.Endpoint.Socket, p.Endpoint.Server.String(), p.ID}
}

// digest hashes parts with a NUL behind each; none of them can hold one.
func digest(domain string, parts ...string) string {
	h := sha256.New()
	h.Write([]byte(domain + "\x00" + strings.Join(parts, "\x00") + "\x00"))
	return hex.EncodeToString(h.Sum(nil))
}

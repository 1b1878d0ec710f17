package terminal

import (
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
	InMode    bool     `json:"in_mode"` // copy mode and the like: keys would not reach the program
	Alternate bool     `json:"alternate"`
}

// Screen is one styled capture of one pane: exactly Pane.Height lines as
// `capture-pane -e -p` gives them. Pane holds the facts of the same moment
// (id, pid, dead, mode, size); it does not carry Session, Window and Index.
type Screen struct {
	Pane Pane
	Text []byte
}

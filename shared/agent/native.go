package agent

import (
	"context"
	"time"

	"drawbridge/shared/terminal"
)

// Op is one thing that an agent's own closed commands do. Nothing else that
// begins with a slash is ever typed.
type Op string

// The closed commands.
const (
	OpStatus Op = "status" // show the agent's own status; changes nothing
	OpNew    Op = "new"    // go on in a clean native thread
	OpResume Op = "resume" // go on in an earlier native thread
)

// Command is one closed command as it is typed: Text by paste, then one Enter.
type Command struct {
	Text    string
	Dismiss terminal.Key // closes the panel that the command opens, once it was proven; "" where it leaves none
	Columns int          // least pane width in which its outcome can be read; 0: any
	Rows    int
	Profile string // name of the behaviour that the version was proven to have
	// Standing reports whether a screen shows exactly this command in the
	// composer, so that Enter runs it and nothing else.
	Standing func(terminal.Screen) bool
}

// Card is one complete reading of an agent's own status screen.
type Card struct {
	ThreadID string // lower case
	Version  string // "" where the screen does not name it
	Fields   []Field
	Excerpt  string // the card's rows, plain
	// Above are the rows directly above the card, top down: they tell it from an
	// earlier one with the same text.
	Above []string
	// Last: nothing was printed below the card, so it shows the thread that is
	// current on this very screen (agents repaint, or print, when it changes).
	Last bool
}

// Field is one line of a Card.
type Field struct {
	Label string `json:"label"`
	Value string `json:"value"`
}

// Liveness says whether a native thread is open in a process.
type Liveness string

// Where a thread is open.
const (
	NotLive       Liveness = "not_live"
	LiveHere      Liveness = "live_here"      // it is the process's own current thread
	LiveElsewhere Liveness = "live_elsewhere" // another living process holds it
	LiveUnknown   Liveness = "unknown"        // cannot be decided; counts as live elsewhere
)

// Thread is one earlier native thread of an agent home.
type Thread struct {
	ID        string // lower case UUID
	Title     string
	Preview   string
	UpdatedAt time.Time
	Archived  bool
	Workspace string
	Path      string // of its transcript; never leaves the process
	File      FileID
	Live      Liveness
}

// Native is an Adapter whose agent has closed commands. Their texts, and what
// the screens look like that they open, are data of the version's rule file.
type Native interface {
	Adapter

	// Command gives the closed command for op, or version_unsupported where the
	// version has none that is proven. thread is for OpResume.
	Command(version string, op Op, thread string) (Command, error)

	// Cards reads every complete status card or panel on the screen, top to
	// bottom. A card that is cut, or of another agent version, is left out.
	Cards(version string, screen terminal.Screen) []Card

	// Threads lists the threads of proc's home and workspace, newest first,
	// without typing and without reading message texts beyond title and preview.
	Threads(ctx context.Context, proc Process) ([]Thread, error)
}

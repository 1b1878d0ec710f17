package terminal

// Key is one named key that may be pressed. The set is closed: a key that can
// quit an agent (C-c, C-d) or choose by number (a digit) is not in it.
type Key string

// The keys. Their values are tmux's names.
const (
	Enter    Key = "Enter"
	Escape   Key = "Escape"
	Tab      Key = "Tab"
	Space    Key = "Space"
	Up       Key = "Up"
	Down     Key = "Down"
	Left     Key = "Left"
	Right    Key = "Right"
	Yes      Key = "y"
	LineEnd  Key = "C-e"
	KillLine Key = "C-u" // from the line's start to the cursor
	NewLine  Key = "C-j"
)

// Valid reports whether k is one of the constants above.
func (k Key) Valid() bool {
	switch k {
	case Enter, Escape, Tab, Space, Up, Down, Left, Right, Yes, LineEnd, KillLine, NewLine:
		return true
	}
	return false
}

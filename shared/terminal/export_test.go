package terminal

// Doors for the external tests.
var (
	ParseFrames  = parseFrames
	ParseListing = parseListing
	ParseRecord  = parseRecord
	Environment  = environment
)

type (
	Frame  = frame
	Placed = placed
)

func (f frame) Parts() (Pane, int, []byte) { return f.pane, f.server, f.body }
func (p placed) Parts() (Pane, int, int)   { return p.pane, p.server, p.session }

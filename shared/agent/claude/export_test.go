package claude

import "drawbridge/shared/agent/journal"

// What only the tests of this package see.

// Slug is slug.
var Slug = slug

// Interactive is interactive.
var Interactive = interactive

// Program is program.
var Program = program

// Recorded is recorded.
var Recorded = recorded

// IdleGrace is idleGrace.
const IdleGrace = idleGrace

// SetReach replaces AcceptanceLimit.
func (a *Adapter) SetReach(n int64) { a.reach = n }

// ParseRecord reports whether parseRecord takes a line.
func ParseRecord(line []byte) error {
	_, err := parseRecord(journal.Line{Data: line})
	return err
}

// ParseEntry gives the session of a registry file.
func ParseEntry(data []byte) (session string, err error) {
	e, err := parseEntry(data)
	return e.Session, err
}

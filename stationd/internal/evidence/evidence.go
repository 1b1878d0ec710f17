// Package evidence is what remains of an attempt: one document that says what was
// run, how it was reached and how it ended, and the redacted log of the daemon
// (station §13).
//
// Document builds the JSON from Facts, which have no field for what evidence must
// not hold: no body, header value, query, environment value or absolute path. Texts
// that came from outside go through the redactor, and the result is searched once
// more by rules of its own. When anything is found there, or the redactor fails, a
// minimal document of checked words and numbers takes its place. There is always a
// document.
//
// Logs keeps the output of one daemon below the state directory, within a bound of
// disk that no daemon can exceed, and goes on after a restart of stationd where the
// shim was acknowledged. Retain removes logs and whole attempts when their time is
// over.
package evidence

import (
	"time"

	"drawbridge/shared/store"
	"drawbridge/stationd/internal/artifact"
)

// Names in the document.
const (
	Schema  = "drawbridge/station-evidence"
	Version = 1
)

// Bounds of the document, and how long things stay (station §13.2, §13.4).
const (
	MaxTickets   = 200
	LogKeep      = 14 * 24 * time.Hour
	EvidenceKeep = store.StationKeep

	maxLeft     = 256 // processes, signals, findings
	maxCommand  = 256 // words of a command
	maxDocument = 4 << 20
)

// Manifest and File are an attempt's artifacts.
type (
	Manifest = artifact.Manifest
	File     = artifact.File
)

package codex

import (
	"drawbridge/shared/agent"
)

// What only the tests of this package see.

// ParseArgs is parseArgs.
func ParseArgs(argv []string) (tui, noDaemon, remote bool) {
	a := parseArgs(argv)
	return a.tui, a.noDaemon, a.remote
}

// ParseDaemon is parseDaemon.
func ParseDaemon(data []byte) (pid int, boot string, start uint64, err error) {
	r, err := parseDaemon(data)
	return r.pid, r.bootID, r.start, err
}

// RolloutName is rolloutName.
var RolloutName = rolloutName

// FindLock is findLock.
func FindLock(table string, dev, ino uint64) int {
	return findLock(table, agent.FileID{Dev: dev, Ino: ino})
}

// SetReach replaces AcceptanceLimit.
func (a *Adapter) SetReach(n int64) { a.reach = n }

// Visible is visible.
var Visible = visible

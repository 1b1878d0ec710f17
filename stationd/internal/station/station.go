// Package station is the life of stations and their attempts: it starts what a spec
// asks for on a leased workspace, watches over it, stops it in the one order that
// leaves nothing behind, and takes up after a crash what an earlier stationd left
// (station §3, §4, §6.8, §7.3, §7.4, §10.5, §12).
//
// Whoever may ask for it is decided before: Start, Replace and Stop take the
// principal as given. The Manager acts only under the Store lease of its host, and
// on an attempt only under the lease of its station; a second stationd of the same
// host stands by.
//
// Each attempt has one conductor, a goroutine that does its steps in order: every
// step that has an effect follows a committed row that announces it. Others only
// ask: whoever wants the end writes the first reason, which ends the context of all
// that still starts, and the conductor goes on with the stop.
//
// # Crash points
//
// Besides those behind the Store's commits (package store), these names of package
// crashpoint stand behind an effect and before the row that records it:
// workspace_acquired, workspace_synced, artifact_obtained, shim_started,
// daemon_launched, bridge_opened, term_sent, daemon_killed, shim_ended,
// evidence_built, workspace_released. What an earlier stationd left at each of them
// is a row of station §4.6, in recover.go.
package station

import (
	"log/slog"
	"net/netip"
	"time"

	"drawbridge/shared/store"
	"drawbridge/stationd/internal/access"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
)

// What is done with attempts when stationd ends (station §4.7).
const (
	OnExitStop = "stop" // they end, with service_shutdown
	OnExitKeep = "keep" // they are left to the next stationd, or to the orphan rule
)

// Defaults of Options.
const (
	DefaultOrphan = 2 * time.Minute
	DefaultDrain  = 20 * time.Second
)

// Options configures New. Store, Host, Access and StateDir are required.
type Options struct {
	Store  *store.Store
	Host   string // names this stationd's machine in the Store
	Gate   *gate.Gate
	Access *access.Access
	// Providers by the names that specs give them.
	Providers map[string]lease.Provider
	Profiles  launch.Profiles // nil: the built-in ones
	Egress    egress.Profiles
	Internal  []netip.AddrPort // addresses of gate, control and broker: no way out leads there
	StateDir  string           // absolute; evidence logs are kept below
	Environ   []string         // of stationd, NAME=value: what a spec's env.allow picks from
	Orphan    time.Duration    // how long a shim lives without a stationd; 0: DefaultOrphan
	Grace     time.Duration    // between TERM and KILL where a spec says nothing; 0: the spec's default
	Drain     time.Duration    // until everything has ended at the end of Run; 0: DefaultDrain
	OnExit    string           // OnExitStop or OnExitKeep; "" is OnExitStop
	Log       *slog.Logger     // nil discards
}

// Package worker runs one Codex turn in a locked container, watches it, and
// leaves a private record of what happened: worker.md in code.
//
// # One run
//
// Run checks its options and the storage, lets the host prepare the workspace,
// makes a container, compares what the engine says it made with what was asked
// for, and refuses on the first difference or on a mount that overlaps a
// forbidden root. Only then it starts the container, feeds it the prompt, and
// waits under a deadline, a storage budget and bounds on the output. Whatever
// happens, the container is killed, removed, and proven gone. Only what comes
// from outside the container is believed: the engine's words and the bytes that
// were captured.
//
// A run that started always gives a receipt. An error without a receipt means
// that codex was never started, except removal_unverified.
//
// # On disk
//
// Five files in the artifact root, <invocation>.context.json, .stdin.txt,
// .stdout.jsonl, .stderr.log and .receipt.json, mode 0400, never overwritten; the
// receipt comes last. The capability is in none of them.
//
// # A crash
//
// A row of the Store is committed before a container is made (admitted), right
// after it (created), before it starts (running) and when it is gone (removed).
// The container carries the invocation and the Store as labels, so that one made
// just before a crash is found without its row. Sweep removes what a killed
// kitrun left, and invents no receipt. Crash points, some of them in the Store:
// worker_admitted, worker_made, worker_created, worker_running, worker_started,
// worker_turn, worker_gone, worker_receipt, worker_ended.
package worker

import (
	"log/slog"
	"time"

	"drawbridge/shared/store"
)

// Deps are what a run works with.
type Deps struct {
	Engine Engine
	Store  *store.Store
	Log    *slog.Logger     // nil discards
	Now    func() time.Time // nil: the wall clock
	NewID  func() string    // nil: random UUIDs

	// Progress, when set, is told what happens, one call at a time. It must not
	// block for long: the turn's output waits for it.
	Progress func(Event)

	RuntimeDir  string // private directory that no worker may see; "": none
	NetworkName string // "": workernet.DefaultName
	Relay       string // the static program that serves the network socket; "": there is none
}

// States of a run, as Progress sees them.
const (
	StateAdmitted  = "admitted"  // options and storage are good
	StatePrepared  = "prepared"  // the host's preparation is done
	StateCreated   = "created"   // the container is made and verified
	StateRunning   = "running"   // the turn runs
	StateEnding    = "ending"    // killed, or ended by itself
	StateRemoved   = "removed"   // the container is proven gone
	StateCompleted = "completed" // the receipt is written: one complete turn
	StateFailed    = "failed"    // the receipt is written: anything else
)

// Event is what is known of a run at a moment. Counts that are not known are -1.
type Event struct {
	InvocationID    string        `json:"invocation_id"`
	State           string        `json:"state"`
	At              time.Time     `json:"at"`
	Elapsed         time.Duration `json:"elapsed_ns"`
	Codex           string        `json:"codex_event,omitempty"` // type of the turn's last event
	Item            string        `json:"codex_item,omitempty"`  // and of its item
	Events          int           `json:"codex_events"`          // how many there were
	InputTokens     int64         `json:"input_tokens"`
	OutputTokens    int64         `json:"output_tokens"`
	ObservedBytes   int64         `json:"observed_bytes"`
	ObservedEntries int64         `json:"observed_entries"`
	Reason          string        `json:"reason,omitempty"` // why it is ending: timeout, cancelled, overflow, a storage reason
}

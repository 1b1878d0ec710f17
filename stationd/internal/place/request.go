package place

import (
	"net/netip"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/strictjson"
	"drawbridge/stationd/internal/artifact"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

// Ops of a Request.
const (
	OpAbout     = "about"
	OpMake      = "make"
	OpCheck     = "check"
	OpPrepare   = "prepare"
	OpUnpack    = "unpack" // the archive follows the request
	OpPut       = "put"    // the harness follows the request
	OpIdentify  = "identify"
	OpStart     = "start"
	OpNonce     = "nonce"
	OpRecorded  = "recorded"
	OpEnded     = "ended"
	OpAlive     = "alive"
	OpKill      = "kill"
	OpUnlink    = "unlink"
	OpArtifacts = "artifacts"
	OpWipe      = "wipe"
	OpRelease   = "release"
)

// MaxAnswer bounds an answer: the longest one lists artifacts.
const MaxAnswer = 4 << 20

// Request is one thing to do with a place of another machine: one line on stdin of
// the shim's command lease, and for some ops content behind it.
type Request struct {
	ID    int64  `json:"id"`
	Op    string `json:"op"`
	Base  Base   `json:"base"`
	Lease string `json:"lease,omitempty"`

	User        *wire.User           `json:"user,omitempty"`        // prepare, unpack
	Path        string               `json:"path,omitempty"`        // identify: a program; unlink: a socket's name
	Paths       []string             `json:"paths,omitempty"`       // artifacts
	MaxBytes    int64                `json:"max_bytes,omitempty"`   // artifacts
	SHA256      string               `json:"sha256,omitempty"`      // put, unpack: what has to arrive
	Incarnation *process.Incarnation `json:"incarnation,omitempty"` // alive, kill
	WaitMS      int64                `json:"wait_ms,omitempty"`     // alive: for its end
	Spec        *wire.Spec           `json:"spec,omitempty"`        // start
	LeftMS      int64                `json:"left_ms,omitempty"`     // start: until the deadline
	AllowRoot   bool                 `json:"allow_root,omitempty"`  // start
}

// Answer is one line on stdout, with the id of its request. Error carries a fault's
// code.
type Answer struct {
	ID    int64       `json:"id"`
	Error *wire.Error `json:"error,omitempty"`

	BootID      string               `json:"boot_id,omitempty"`   // about, check
	Addresses   []netip.Addr         `json:"addresses,omitempty"` // about
	Layout      *Layout              `json:"layout,omitempty"`    // make, check
	Path        string               `json:"path,omitempty"`      // put: where it lies; make: the lease's directory
	SHA256      string               `json:"sha256,omitempty"`    // identify
	Birth       *wire.Birth          `json:"birth,omitempty"`     // start
	Incarnation *process.Incarnation `json:"incarnation,omitempty"`
	Nonce       string               `json:"nonce,omitempty"`
	End         *wire.End            `json:"end,omitempty"`
	Alive       bool                 `json:"alive,omitempty"`
	Cleanup     *Cleanup             `json:"cleanup,omitempty"` // kill: with an error, too
	Manifest    *artifact.Manifest   `json:"manifest,omitempty"`
}

// Cleanup is supervise.Cleanup on its way.
type Cleanup struct {
	Signalled bool             `json:"signalled"`
	TookMS    int64            `json:"took_ms"`
	Left      []supervise.Left `json:"left,omitempty"`
}

// Result is what came of it.
func (c Cleanup) Result() supervise.Cleanup {
	return supervise.Cleanup{Signalled: c.Signalled, Took: time.Duration(c.TookMS) * time.Millisecond, Left: c.Left}
}

// Fault gives the refusal of an answer as an error.
func (a Answer) Fault() error {
	if a.Error == nil {
		return nil
	}
	code := fault.Code(a.Error.Code)
	if !fault.Known(code) {
		code = fault.LeaseUnavailable
	}
	return fault.New(code, "%s", fault.CleanLine(a.Error.Message))
}

// Read reads an answer.
func Read(data []byte) (a Answer, err error) {
	err = strictjson.Decode(data, &a, strictjson.Limits{MaxBytes: MaxAnswer, MaxDepth: 8})
	return a, err
}

// Package wire is what stationd and the station shim say to each other (station
// §6.9): the specification that the shim reads from its stdin, the requests and
// messages of ctl.sock, and the files that the shim leaves in its runtime
// directory.
//
// Both directions are lines of JSON. A client begins with the request hello, which
// carries the nonce of the attempt; everything else on that connection is answered
// by a message with the id of its request. Messages with id 0 are events. Output
// stays in the shim's memory until the client acknowledges it, so what one
// connection had not taken goes to the next.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"drawbridge/shared/strictjson"
)

// Names in the runtime directory.
const (
	Control = "ctl.sock"    // requests of stationd
	In      = "in.sock"     // leads to the daemon's port
	Egress  = "egress.sock" // stationd's filter proxy
	PID     = "shim.pid"    // a Birth
	Nonce   = "nonce"       // the nonce, for a stationd that starts anew
	Exit    = "exit.json"   // an End
)

// ProxyAddress is where programs find the way out, when the profile has one
// (station §9.2).
const ProxyAddress = "127.0.0.1:3128"

// Bounds of the protocol.
const (
	MaxLine   = 1 << 20
	MaxChunk  = 64 << 10  // of one output event
	MaxUntold = 256 << 10 // output on its way that was not acknowledged yet
	RingBytes = 1 << 20   // of each stream
)

// Ops of a Request.
const (
	OpHello     = "hello"
	OpLaunch    = "launch"
	OpSignal    = "signal"
	OpStatus    = "status"
	OpListeners = "listeners"
	OpStats     = "stats"
	OpKill      = "kill"
	OpPing      = "ping"
	OpAck       = "ack" // has no answer
)

// Targets of a signal.
const (
	Group = "group" // the daemon's process group
	All   = "all"   // everything but the shim
)

// Streams of the daemon's output.
const (
	Stdout = "stdout"
	Stderr = "stderr"
)

// Reasons of an End, and of a kill where the shim itself decides.
const (
	ReasonExited   = "daemon_exited"
	ReasonTTL      = "ttl_expired"
	ReasonOrphaned = "orphaned"
	ReasonKilled   = "killed"
)

// Spec is everything about an attempt that the shim knows before the daemon starts.
// It arrives on stdin, never in arguments.
type Spec struct {
	Runtime   string    `json:"runtime"`            // absolute, 0700, of the shim's user
	Nonce     string    `json:"nonce"`              // proves stationd to the shim
	UID       int       `json:"uid"`                // of stationd: who may use the sockets
	RunAs     *User     `json:"run_as,omitempty"`   // of the daemon; the shim's own user when absent
	Workspace string    `json:"workspace"`          // absolute; read and write
	Home      string    `json:"home"`               // absolute; private, read and write
	Temp      string    `json:"temp"`               // absolute; private, read and write
	Artifact  *Artifact `json:"artifact,omitempty"` // the program, when it is not of the workspace
	Hide      []string  `json:"hide,omitempty"`     // besides /run, /tmp, homes and the like: state, Store, runtime
	Port      int       `json:"port"`               // where in.sock leads
	Egress    bool      `json:"egress,omitempty"`   // relay ProxyAddress to egress.sock
	Deadline  int64     `json:"deadline"`           // of the TTL, boot-time milliseconds
	OrphanMS  int64     `json:"orphan_ms"`
	GraceMS   int64     `json:"grace_ms"` // how much later than Deadline a shim with a stationd ends
	Limits    Limits    `json:"limits"`
}

// User is a uid and gid. Supplementary groups are always cleared.
type User struct {
	UID int `json:"uid"`
	GID int `json:"gid"`
}

// Artifact is a verified file. The shim opens it once, compares the digest of what
// it opened, and later executes that descriptor.
type Artifact struct {
	Path   string `json:"path"`
	SHA256 string `json:"sha256"` // 64 hexadecimal digits
}

// Limits are rlimits; 0 is the default of station §6.6.
type Limits struct {
	Files     uint64 `json:"files,omitempty"`
	Processes uint64 `json:"processes,omitempty"`
}

// Defaults of Limits.
const (
	DefaultFiles     = 4096
	DefaultProcesses = 512
)

// Launch is the go: what to execute. The artifact replaces Args[0] as the file, not
// as the argument.
type Launch struct {
	Args       []string `json:"args"`
	Env        []string `json:"env"` // the whole environment
	Dir        string   `json:"dir"` // absolute, in the workspace
	Credential string   `json:"credential,omitempty"`
	File       string   `json:"file,omitempty"` // below CredentialDir: the credential is written there, too
}

// CredentialDir holds the file of a credential that a daemon reads from a file.
const CredentialDir = "/run/station"

// Request is one line to the shim.
type Request struct {
	ID     int64   `json:"id"`
	Op     string  `json:"op"`
	Nonce  string  `json:"nonce,omitempty"`
	Launch *Launch `json:"launch,omitempty"`
	Target string  `json:"target,omitempty"`
	Signal int     `json:"signal,omitempty"`
	Reason string  `json:"reason,omitempty"`
	Stream string  `json:"stream,omitempty"`
	Seq    int64   `json:"seq,omitempty"` // of ack: everything before it was taken
}

// Message is one line from the shim: the answer to a request, or an event.
type Message struct {
	ID        int64      `json:"id,omitempty"`
	Error     *Error     `json:"error,omitempty"`
	Status    *Status    `json:"status,omitempty"`
	Listeners []Listener `json:"listeners,omitempty"`
	Stats     *Stats     `json:"stats,omitempty"`

	Event   string   `json:"event,omitempty"`
	Started *Started `json:"started,omitempty"`
	Exit    *End     `json:"exit,omitempty"`
	Stream  string   `json:"stream,omitempty"`
	Data    []byte   `json:"data,omitempty"`
	Seq     int64    `json:"seq,omitempty"`   // of the first byte of Data, or where a gap begins
	Bytes   int64    `json:"bytes,omitempty"` // length of a gap
}

// Events of a Message.
const (
	EventStarted = "started"
	EventExit    = "exit"
	EventOutput  = "output"
	EventDropped = "dropped"
)

// Error is a refusal of the shim.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return e.Message }

// Codes of an Error.
const (
	CodeRequest   = "bad_request"
	CodeNonce     = "nonce_wrong"
	CodeLaunched  = "launched_already"
	CodeIntegrity = "integrity_failed"
	CodeStart     = "start_failed"
	CodeFailed    = "failed"
)

// Birth names the shim as its starter sees it: a pid of that pid namespace.
type Birth struct {
	PID       int    `json:"pid"`
	Start     uint64 `json:"start"` // field 22 of /proc/PID/stat
	BootID    string `json:"boot_id"`
	Namespace uint64 `json:"pid_namespace"` // inode of the namespace that the shim is the first process of
}

// Started names the daemon.
type Started struct {
	PID   int    `json:"pid"`   // in the starter's pid namespace, 0 when it ended at once
	Inner int    `json:"inner"` // in the shim's
	Start uint64 `json:"start"`
	Group int    `json:"pgid"` // in the starter's namespace; the daemon leads it
}

// Status is what the shim knows.
type Status struct {
	Birth      Birth    `json:"birth"`
	Started    *Started `json:"started,omitempty"`
	Exit       *End     `json:"exit,omitempty"`
	Port       int      `json:"port"`
	Credential string   `json:"credential,omitempty"`
}

// End says how the daemon and the shim ended: exit.json, and the event exit.
type End struct {
	Reason  string `json:"reason"`
	Code    *int   `json:"code,omitempty"`   // of the daemon, when it ended by itself
	Signal  string `json:"signal,omitempty"` // of the daemon, as SIGKILL
	EndedAt int64  `json:"ended_at"`         // Unix milliseconds
	Final   bool   `json:"final,omitempty"`  // the shim itself ended, and with it everything
}

// Listener is one listening socket of the shim's network namespace.
type Listener struct {
	Protocol string `json:"protocol"` // tcp, tcp6, udp, udp6
	Address  string `json:"address"`
	Port     int    `json:"port"`
	Loopback bool   `json:"loopback"`
	PID      int    `json:"pid,omitempty"`     // in the shim's namespace; 0 when nobody was found
	Program  string `json:"program,omitempty"` // its short name
	Own      bool   `json:"own,omitempty"`     // the shim's
}

// Stats are counters.
type Stats struct {
	Processes int              `json:"processes"` // besides the shim
	Names     []string         `json:"names,omitempty"`
	Output    map[string]int64 `json:"output"`  // bytes of each stream so far
	Dropped   map[string]int64 `json:"dropped"` // of them lost, because nobody took them
}

var limits = strictjson.Limits{MaxBytes: MaxLine, MaxDepth: 8}

// Decode reads one document strictly.
func Decode(data []byte, v any) error { return strictjson.Decode(data, v, limits) }

// Write sends v as one line, in one write.
func Write(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a line: %w", err)
	}
	if len(data) >= MaxLine {
		return fmt.Errorf("encode a line: %d bytes are too many", len(data))
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// Reader reads lines.
type Reader struct{ buf *bufio.Reader }

// NewReader reads lines of r, none longer than MaxLine.
func NewReader(r io.Reader) *Reader { return &Reader{bufio.NewReaderSize(r, MaxLine)} }

// Read decodes the next line; io.EOF at the end between two lines.
func (r *Reader) Read(v any) error {
	line, err := r.buf.ReadSlice('\n')
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return fmt.Errorf("read a line: longer than %d bytes", MaxLine)
	case errors.Is(err, io.EOF) && len(line) > 0:
		return fmt.Errorf("read a line: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return err
	}
	return Decode(bytes.TrimSuffix(line, []byte("\n")), v)
}

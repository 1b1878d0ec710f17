package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"drawbridge/shared/strictjson"
)

const (
	maxOpen    = 1024 // requests without an answer
	callHeader = "Drawbridge-Call"

	methodCall       = "tools/call"
	methodCancelled  = "notifications/cancelled"
	methodInitialize = "initialize"
)

// Why a call's context ended.
var (
	errCancelled = errors.New("the client cancelled the call")
	errDrained   = errors.New("the drain deadline passed")
)

// A call is one request from its acceptance to its answer. The SDK knows it by
// a number of ours: ids of clients may repeat, differ only in type, or be
// beyond what the SDK can hold.
type call struct {
	number int64
	id     ident
	method string
	ctx    context.Context
	end    context.CancelCauseFunc
	quiet  bool // cancelled by the client: no message for the id follows
}

// conn is the mcp.Connection. It reads lines, answers those that are no
// messages, counts the calls it accepts, and withholds the end of input from
// the SDK until all of them are answered or the drain deadline has passed: the
// SDK would drop their answers.
type conn struct {
	log   *slog.Logger
	drain time.Duration
	base  context.Context // values of the calls' contexts
	in    *lines
	out   *writer
	free  func() // releases a blocked read

	accepted chan *jsonrpc.Request
	drained  chan struct{} // closed when nothing is owed any more
	stopped  chan struct{} // closed when no further line is accepted
	closed   chan struct{} // closed by the SDK, or by Run when it gives up
	answered chan struct{} // closed after the first answer was written

	closeOnce, answerOnce sync.Once

	mu       sync.Mutex
	next     int64
	open     map[int64]*call
	owed     int // accepted and not yet written, cancelled ones included
	stopping bool
	deadline time.Time
	timer    *time.Timer
	unsent   []string // methods and tools whose answer the deadline cut
	isOver   bool     // drained is closed
}

func newConn(base context.Context, log *slog.Logger, drain time.Duration, in io.Reader, free func(), out *writer) *conn {
	return &conn{
		log: log, drain: drain, base: base, in: newLines(in), out: out, free: free,
		accepted: make(chan *jsonrpc.Request),
		drained:  make(chan struct{}),
		stopped:  make(chan struct{}),
		closed:   make(chan struct{}),
		answered: make(chan struct{}),
		open:     map[int64]*call{},
	}
}

// Connect implements mcp.Transport: there is one connection, itself.
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID implements mcp.Connection; stdio has no session ids.
func (c *conn) SessionID() string { return "" }

// read takes lines until the stream ends, fails or is released. It never waits
// for a call or for a slow client.
func (c *conn) read() {
	defer close(c.accepted)
	defer c.stop("end of input")
	for {
		line, err := c.in.next()
		if errors.Is(err, errTooLong) {
			c.refuse(&lineFault{code: jsonrpc.CodeParseError, text: fmt.Sprintf("parse error: message longer than %d bytes", MaxMessage)})
			continue
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, errReleased) {
				c.log.Warn("read input", "err", err)
			}
			return
		}
		m, bad := parseMessage(line)
		var req *jsonrpc.Request
		switch {
		case bad != nil:
		case m == nil:
			continue
		case m.method == methodCancelled && !m.isCall:
			c.cancel(m.params)
			continue
		default:
			var ok bool
			if req, bad, ok = c.accept(m); !ok {
				return
			}
		}
		if bad != nil {
			c.refuse(bad)
			continue
		}
		select {
		case c.accepted <- req:
		case <-c.closed:
			return
		}
	}
}

// accept turns a message into the SDK's request, or says why it is not to be
// executed; ok is false once the server stops: then nothing is any more.
func (c *conn) accept(m *message) (req *jsonrpc.Request, bad *lineFault, ok bool) {
	if m.isCall && m.method == methodCall {
		switch {
		case m.params == nil:
			return nil, &lineFault{id: m.id, code: jsonrpc.CodeInvalidParams, text: "invalid params: no tool is named"}, true
		case asksForTask(m.params):
			return nil, &lineFault{id: m.id, code: jsonrpc.CodeInvalidParams, text: "invalid params: tools do not run as tasks"}, true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return nil, nil, false
	}
	req = &jsonrpc.Request{Method: m.method, Params: m.params}
	if !m.isCall {
		return req, nil, true
	}
	if c.owed >= maxOpen {
		return nil, &lineFault{id: m.id, code: jsonrpc.CodeInternalError, text: fmt.Sprintf("more than %d requests wait for an answer", maxOpen)}, true
	}
	c.next++
	k := &call{number: c.next, id: m.id, method: m.method}
	k.ctx, k.end = context.WithCancelCause(c.base)
	c.open[k.number] = k
	c.owed++
	number, err := jsonrpc.MakeID(float64(k.number))
	if err != nil { // a float64 is always taken
		panic(err)
	}
	req.ID = number
	req.Extra = &mcp.RequestExtra{Header: http.Header{callHeader: {strconv.FormatInt(k.number, 10)}}}
	return req, nil, true
}

// cancel ends every open call with the id that a cancelled notification names.
// initialize is never cancelled (MCP).
func (c *conn) cancel(params json.RawMessage) {
	var p struct {
		Request jsontext.Value `json:"requestId"`
	}
	lim := strictjson.Limits{MaxBytes: MaxMessage, MaxDepth: maxNesting, AllowUnknown: true}
	if len(params) == 0 || strictjson.Decode(params, &p, lim) != nil {
		return
	}
	id, ok := parseIdent(p.Request)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.open {
		if k.id.key == id.key && k.method != methodInitialize {
			k.quiet = true
			k.end(errCancelled)
		}
	}
}

// call gives the call that an SDK request stands for.
func (c *conn) call(extra *mcp.RequestExtra) (*call, bool) {
	if extra == nil {
		return nil, false
	}
	n, err := strconv.ParseInt(extra.Header.Get(callHeader), 10, 64)
	if err != nil {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.open[n]
	return k, ok
}

// Read implements mcp.Connection.
func (c *conn) Read(context.Context) (jsonrpc.Message, error) {
	accepted := c.accepted
	for {
		select {
		case req, ok := <-accepted:
			if ok {
				return req, nil
			}
			accepted = nil // the reader has ended
		case <-c.drained:
			return nil, io.EOF
		case <-c.closed:
			return nil, io.EOF
		}
	}
}

// Write implements mcp.Connection.
func (c *conn) Write(_ context.Context, msg jsonrpc.Message) error {
	res, ok := msg.(*jsonrpc.Response)
	if !ok {
		frame, err := jsonrpc.EncodeMessage(msg)
		if err != nil {
			return err
		}
		c.out.put(append(frame, '\n'), func() {})
		return nil
	}
	number, _ := res.ID.Raw().(int64)
	c.mu.Lock()
	k := c.open[number]
	if k == nil {
		c.mu.Unlock()
		return nil
	}
	delete(c.open, number) // from here on a cancel comes too late
	quiet := k.quiet
	c.mu.Unlock()
	k.end(nil)
	if quiet {
		c.settle()
		return nil
	}
	frame, err := encodeAnswer(k.id, res.Result, res.Error)
	if err == nil && len(frame) > MaxMessage {
		err = fmt.Errorf("answer of %d bytes", len(frame))
	}
	if err != nil {
		c.log.Error("encode answer", "method", k.method, "err", err)
		frame, err = encodeAnswer(k.id, nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error: the answer could not be written"})
		if err != nil {
			c.settle()
			return nil
		}
	}
	c.out.put(frame, func() {
		c.answerOnce.Do(func() { close(c.answered) })
		c.settle()
	})
	return nil
}

// Close implements mcp.Connection.
func (c *conn) Close() error {
	c.closeOnce.Do(func() { close(c.closed) })
	return nil
}

// stop accepts nothing more and starts the drain. Only the first one counts.
func (c *conn) stop(why string) {
	c.mu.Lock()
	if c.stopping {
		c.mu.Unlock()
		return
	}
	c.stopping = true
	c.deadline = time.Now().Add(c.drain)
	c.timer = time.AfterFunc(c.drain, c.cut)
	owed := c.owed
	c.finish()
	c.mu.Unlock()
	close(c.stopped)
	c.free()
	c.log.Info("stopping", "why", why, "unanswered", owed)
}

// cut is the drain deadline: what still runs is told to end, and the SDK gets
// its end of input.
func (c *conn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.open {
		c.unsent = append(c.unsent, k.method)
		k.end(errDrained)
	}
	for extra := c.owed - len(c.open); extra > 0; extra-- {
		c.unsent = append(c.unsent, "written answer") // finished, but the client does not read
	}
	c.over()
}

// settle counts one answer that is out, suppressed, or known to be lost.
func (c *conn) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owed--
	c.finish()
}

// finish is called with mu held.
func (c *conn) finish() {
	if c.stopping && c.owed == 0 {
		c.over()
	}
}

// over is called with mu held.
func (c *conn) over() {
	if !c.isOver {
		c.isOver = true
		c.timer.Stop()
		close(c.drained)
	}
}

// cutOff lists what the deadline left unanswered.
func (c *conn) cutOff() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unsent
}

// refuse answers a line that is not to be executed, unless the server has
// stopped. A client that does not read can make it wait, and then reading too.
func (c *conn) refuse(f *lineFault) {
	frame, err := encodeAnswer(f.id, nil, &jsonrpc.Error{Code: f.code, Message: f.text})
	if err != nil {
		c.log.Error("encode answer", "err", err)
		return
	}
	c.mu.Lock()
	if c.stopping {
		c.mu.Unlock()
		return
	}
	c.owed++
	c.mu.Unlock()
	c.out.put(frame, c.settle)
}

// Package mcpserver is the MCP front of bridge: one session over stdin and
// stdout, in which a controller Host calls the tools of package catalog and can
// ask for the skill that teaches them, the one prompt.
//
// The official SDK speaks the protocol: versions, initialize and
// server/discover, tools/list, tools/call. This package is the transport below
// it and the guard above it, because the Host contract asks for more than the
// SDK gives (style §6):
//
//   - Only whole frames of strict JSON go in and out. A bad line is answered
//     with -32700 or -32600 and the session goes on.
//   - A call that was accepted is answered, also after the end of input or a
//     signal, until the drain deadline. A call read after that is not executed.
//   - A cancelled call's context ends and no message with its id follows.
//   - A panic in a tool is -32603; a bounded number of tools runs at once, and
//     reading goes on meanwhile.
//
// Run owns everything it starts. It touches no file but the two streams.
package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// ServerName is what clients see in serverInfo.
const ServerName = "drawbridge-host-bridge"

// Defaults and bounds.
const (
	DefaultDrain    = 3 * time.Second // Hosts give about 2 s before SIGTERM and 2 s more before SIGKILL
	DefaultParallel = 32              // tool calls that run at once
	cutGrace        = 250 * time.Millisecond
)

// Options of a Server. In, Out and Tools are required.
type Options struct {
	Tools    *catalog.Catalog
	In       io.Reader // stdin; an *os.File is polled, so that Run can leave it at any time
	Out      io.Writer // stdout
	Log      *slog.Logger
	Version  string        // of serverInfo
	Drain    time.Duration // zero means DefaultDrain
	Parallel int           // zero means DefaultParallel
	NewID    func() string // instance id; nil means a random UUID
}

// Server is one session. It is used once.
type Server struct {
	opts     Options
	instance string
	slots    chan struct{}
	conn     *conn
	free     []func() // closes what New opened
	output   func()   // releases a blocked write
}

// New prepares a session. Nothing is read before Run.
func New(o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Drain <= 0 {
		o.Drain = DefaultDrain
	}
	if o.Parallel <= 0 {
		o.Parallel = DefaultParallel
	}
	if o.NewID == nil {
		o.NewID = uuid.NewString
	}
	in, freeIn, doneIn, err := releasableReader(o.In)
	if err != nil {
		return nil, fmt.Errorf("open standard input: %w", err)
	}
	out, freeOut, doneOut, err := releasableWriter(o.Out)
	if err != nil {
		doneIn()
		return nil, fmt.Errorf("open standard output: %w", err)
	}
	return &Server{
		opts:     o,
		instance: o.NewID(),
		slots:    make(chan struct{}, o.Parallel),
		conn:     newConn(context.Background(), o.Log, o.Drain, in, freeIn, newWriter(out)),
		free:     []func(){doneIn, doneOut},
		output:   freeOut,
	}, nil
}

// Answered is closed when the first request of the client was answered.
func (s *Server) Answered() <-chan struct{} { return s.conn.answered }

// Stopping is closed when no further line is accepted.
func (s *Server) Stopping() <-chan struct{} { return s.conn.stopped }

// Deadline is when the drain ends; zero before Stopping.
func (s *Server) Deadline() time.Time {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return s.conn.deadline
}

// Run serves until the client closes its end, the output fails, or ctx is done,
// and then drains. It returns nil when every accepted call was answered,
// suppressed by the client, or finished for an output that is gone; otherwise
// drain_expired.
func (s *Server) Run(ctx context.Context) error {
	c := s.conn
	session, err := s.server().Connect(context.WithoutCancel(ctx), c, nil)
	if err != nil {
		return fmt.Errorf("start the MCP session: %w", err)
	}

	go c.out.run(func(err error) {
		if !errors.Is(err, errReleased) {
			s.opts.Log.Warn("write output", "err", err)
		}
		c.stop("output failed")
	})
	reading := make(chan struct{})
	go func() { defer close(reading); c.read() }()
	ended := make(chan error, 1)
	go func() { ended <- session.Wait() }()

	select {
	case <-ctx.Done():
		c.stop("asked to stop")
	case <-c.stopped:
	case err := <-ended: // the SDK gave up by itself
		ended <- err
		c.stop("session ended")
	}
	<-c.drained // at the latest at the deadline

	c.out.end()
	unanswered := c.cutOff()
	if len(unanswered) == 0 {
		flushed := time.AfterFunc(time.Until(s.Deadline()), func() { c.out.drop(); s.output() })
		<-c.out.done
		flushed.Stop()
		if err := <-ended; err != nil {
			s.opts.Log.Warn("the MCP session ended", "err", err)
		}
		<-reading
		s.close()
		return nil
	}
	// The calls were told to end; they get a moment to leave the Store in order.
	grace := time.NewTimer(cutGrace)
	defer grace.Stop()
	select {
	case err := <-ended:
		ended <- err
	case <-grace.C:
	}
	c.out.drop()
	s.output()
	<-c.out.done
	c.Close()
	select {
	case <-ended:
		<-reading
		s.close()
	default: // a tool does not end; the process does
	}
	slices.Sort(unanswered)
	return fault.New(fault.DrainExpired, "drain the MCP session: %d calls were not answered in %v: %s",
		len(unanswered), s.opts.Drain, strings.Join(slices.Compact(unanswered), ", "))
}

// close frees what New opened, once nothing uses it any more.
func (s *Server) close() {
	for _, done := range s.free {
		done()
	}
}

// server builds the SDK's server with the tools of the catalog.
func (s *Server) server() *mcp.Server {
	srv := mcp.NewServer(
		&mcp.Implementation{Name: ServerName, Title: "drawbridge", Version: s.opts.Version},
		&mcp.ServerOptions{
			Instructions: catalog.Instructions,
			Logger:       slog.New(quietHandler{s.opts.Log.Handler()}),
			// Set in full: nil would add logging, and what is not here listChanged.
			Capabilities: &mcp.ServerCapabilities{Tools: &mcp.ToolCapabilities{}, Prompts: &mcp.PromptCapabilities{}},
		})
	srv.AddReceivingMiddleware(s.recoverPanics, offered)
	addSkill(srv)
	for _, t := range s.opts.Tools.Tools() {
		destructive, open := t.Destructive, t.OpenWorld
		srv.AddTool(&mcp.Tool{
			Name:        t.Name,
			Title:       t.Title,
			Description: t.Description,
			InputSchema: json.RawMessage(t.InputSchema),
			Annotations: &mcp.ToolAnnotations{
				Title:           t.Title,
				ReadOnlyHint:    t.ReadOnly,
				DestructiveHint: &destructive,
				IdempotentHint:  t.Idempotent,
				OpenWorldHint:   &open,
			},
		}, s.tool)
	}
	return srv
}

// tool runs one tools/call of a registered name.
func (s *Server) tool(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	k, ok := s.conn.call(req.Extra)
	if !ok { // every call comes through our own transport
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
	}
	request, err := s.opts.Tools.Accept(req.Params.Name, req.Params.Arguments)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fault.CleanLine(err.Error())}
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-k.ctx.Done():
	}
	if k.ctx.Err() != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: context.Cause(k.ctx).Error()}
	}
	start := time.Now()
	res := request.Run(k.ctx, handoff.Call{ToolCallID: callID(s.instance, k.id), Tool: req.Params.Name})
	s.opts.Log.Debug("tool call", "tool", req.Params.Name, "ms", time.Since(start).Milliseconds(), "code", res.Code)
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: res.Text}},
		StructuredContent: json.RawMessage(res.Structured),
		IsError:           res.IsError,
	}, nil
}

// recoverPanics keeps a fault in one call from ending the process.
func (s *Server) recoverPanics(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if v := recover(); v != nil {
				s.opts.Log.Error("panic in a call", "method", method, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
				res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "internal error"}
			}
		}()
		return next(ctx, method, req)
	}
}

// offered refuses the methods of features that are not offered; the SDK would
// answer them with empty lists.
func offered(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		feature, _, _ := strings.Cut(method, "/")
		switch feature {
		case "resources", "completion", "logging", "roots", "sampling":
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "method not found: " + method}
		}
		return next(ctx, method, req)
	}
}

// quietHandler passes what a person must know; the SDK tells every step.
type quietHandler struct{ slog.Handler }

func (h quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(attrs)}
}

func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name)}
}

// Package control asks Codex's background daemon which threads it has loaded, in
// which state they are, and at which loopback port the TUI listens that started
// or resumed a thread.
//
// It speaks WebSocket and JSON-RPC on the daemon's unix socket. The interface is
// one that its makers call experimental, so the list of methods is closed (four,
// all read-only: anything that subscribes or acts is not on it), every frame and
// every call is bounded, and what comes back only corroborates and tells equal
// requests apart: it never stands in for the rollout. A connection is made per
// use and none is kept. Off by an option of the adapter, in which case nothing
// here is called.
//
// The answers of the daemon are bytes from outside: they are bounded, decoded
// leniently in what they add and strictly in what is used.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"
)

// Bounds.
const (
	MaxFrame    = 1 << 20
	CallTimeout = 500 * time.Millisecond
	// maxNotices bounds the broadcasts that may stand before one answer.
	maxNotices = 256
	maxThreads = 1024
	maxPages   = 16
	maxBatch   = 64 // requests that travel together
)

// The closed list of methods. initialized is the notification that completes the
// handshake. thread/resume would subscribe, turn/start would act: neither is here.
const (
	methodInitialize  = "initialize"
	methodInitialized = "initialized"
	methodLoaded      = "thread/loaded/list"
	methodRead        = "thread/read"
	methodServers     = "mcpServerStatus/list"
)

// tuiServer is the name under which a TUI offers its own tools to its threads.
const tuiServer = "codex_tui"

// Errors.
var (
	// ErrPeer means that the socket is served by another process than the daemon.
	ErrPeer = errors.New("the control socket is not served by the daemon")
	// ErrProtocol means that the daemon answered what nobody expected.
	ErrProtocol = errors.New("unexpected answer on the control socket")
)

// RemoteError is a JSON-RPC error of the daemon, without its text.
type RemoteError struct {
	Method string
	Code   int
}

// Error names the method and the number; the message is the daemon's and may
// quote anything.
func (e *RemoteError) Error() string { return fmt.Sprintf("%s: answered error %d", e.Method, e.Code) }

// Active is the type of a thread with a turn in progress.
const Active = "active"

// Status is what the daemon says of one loaded thread.
type Status struct {
	Type      string   // idle, active, notLoaded, systemError …
	Flags     []string // with active: waitingOnApproval, waitingOnUserInput
	Ephemeral bool     // a hidden thread without a rollout
	Path      string   // rollout file, as the daemon names it
}

// Client is one connection.
type Client struct {
	conn *websocket.Conn
	next int64
}

// Dial connects to the socket, checks that the process pid serves it (0: do not
// check) under our own uid, and introduces itself.
func Dial(ctx context.Context, socket string, pid int) (*Client, error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	// Codex makes a link in CODEX_HOME to a short path, since a socket's name holds
	// 107 bytes; the link's own name may be longer.
	socket, err := filepath.EvalSymlinks(socket)
	if err != nil {
		return nil, fmt.Errorf("connect to the control socket: %w", err)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		if err := checkPeer(c, pid); err != nil {
			c.Close()
			return nil, err
		}
		return c, nil
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10}
	defer transport.CloseIdleConnections()
	conn, resp, err := websocket.Dial(ctx, "ws://codex/", &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	})
	if err != nil {
		if resp != nil && resp.Body != nil {
			resp.Body.Close()
		}
		return nil, fmt.Errorf("connect to the control socket: %w", err)
	}
	conn.SetReadLimit(MaxFrame)
	c := &Client{conn: conn}
	info := map[string]any{"clientInfo": map[string]any{"name": "drawbridge", "title": "drawbridge", "version": "1"}}
	if err := c.call(ctx, methodInitialize, info, &struct{}{}); err != nil {
		c.Close()
		return nil, err
	}
	if err := c.send(ctx, request{Method: methodInitialized}); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the connection at once; the daemon is owed no farewell.
func (c *Client) Close() { _ = c.conn.CloseNow() }

// Loaded lists the threads that the daemon has in memory.
func (c *Client) Loaded(ctx context.Context) ([]string, error) {
	var out []string
	params := map[string]any{}
	for range maxPages {
		var page struct {
			Data       []string `json:"data"`
			NextCursor *string  `json:"nextCursor"`
		}
		if err := c.call(ctx, methodLoaded, params, &page); err != nil {
			return nil, err
		}
		out = append(out, page.Data...)
		if len(out) > maxThreads {
			return nil, fmt.Errorf("%s: %w: more than %d threads", methodLoaded, ErrProtocol, maxThreads)
		}
		if page.NextCursor == nil || *page.NextCursor == "" {
			return out, nil
		}
		params["cursor"] = *page.NextCursor
	}
	return nil, fmt.Errorf("%s: %w: more than %d pages", methodLoaded, ErrProtocol, maxPages)
}

// Status reads one thread without its turns.
func (c *Client) Status(ctx context.Context, thread string) (Status, error) {
	var got struct {
		Thread *struct {
			ID        string `json:"id"`
			Ephemeral bool   `json:"ephemeral"`
			Path      string `json:"path"`
			Status    struct {
				Type  string   `json:"type"`
				Flags []string `json:"activeFlags"`
			} `json:"status"`
		} `json:"thread"`
	}
	if err := c.call(ctx, methodRead, map[string]any{"threadId": thread, "includeTurns": false}, &got); err != nil {
		return Status{}, err
	}
	t := got.Thread
	if t == nil || t.ID != thread || t.Status.Type == "" {
		return Status{}, fmt.Errorf("%s: %w", methodRead, ErrProtocol)
	}
	return Status{Type: t.Status.Type, Flags: t.Status.Flags, Ephemeral: t.Ephemeral, Path: t.Path}, nil
}

// Ports gives the loopback port of the TUI that started or resumed each thread
// last. Threads without one (hidden threads, other clients) are missing. The
// requests travel together: fifty threads cost little more than one.
func (c *Client) Ports(ctx context.Context, threads []string) (map[string]int, error) {
	out := map[string]int{}
	for batch := range slices.Chunk(threads, maxBatch) {
		params := make([]any, len(batch))
		for i, t := range batch {
			params[i] = map[string]any{"threadId": t, "serverName": tuiServer, "detail": "toolsAndAuthOnly"}
		}
		results := make([]servers, len(batch))
		if err := c.calls(ctx, methodServers, params, func(i int) any { return &results[i] }); err != nil {
			return nil, err
		}
		for i, r := range results {
			port, ok, err := r.port()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", methodServers, err)
			}
			if ok {
				out[batch[i]] = port
			}
		}
	}
	return out, nil
}

// servers is what is used of an answer to mcpServerStatus/list.
type servers struct {
	Data []struct {
		Name   string `json:"name"`
		Origin string `json:"httpOrigin"`
	} `json:"data"`
}

func (s servers) port() (port int, ok bool, err error) {
	for _, d := range s.Data {
		if d.Name != tuiServer || d.Origin == "" {
			continue
		}
		if ok {
			return 0, false, fmt.Errorf("%w: two servers of one name", ErrProtocol)
		}
		if port, err = loopbackPort(d.Origin); err != nil {
			return 0, false, err
		}
		ok = true
	}
	return port, ok, nil
}

// loopbackPort reads "http://127.0.0.1:PORT", exactly.
func loopbackPort(origin string) (int, error) {
	u, err := url.Parse(origin)
	if err != nil || u.Scheme != "http" || u.Hostname() != "127.0.0.1" || origin != "http://127.0.0.1:"+u.Port() {
		return 0, fmt.Errorf("%w: not a loopback origin", ErrProtocol)
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || port == 0 || strings.HasPrefix(u.Port(), "0") {
		return 0, fmt.Errorf("%w: not a port", ErrProtocol)
	}
	return int(port), nil
}

type request struct {
	JSONRPC string `json:"jsonrpc"`
	ID      *int64 `json:"id,omitempty"`
	Method  string `json:"method"`
	Params  any    `json:"params,omitempty"`
}

// call sends one request and waits for its answer.
func (c *Client) call(ctx context.Context, method string, params, result any) error {
	return c.calls(ctx, method, []any{params}, func(int) any { return result })
}

// calls sends the requests of one method together and waits for all answers,
// passing over broadcasts.
func (c *Client) calls(ctx context.Context, method string, params []any, result func(i int) any) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	open := map[int64]int{} // by id: which of the requests
	for i, p := range params {
		c.next++
		id := c.next
		open[id] = i
		if err := c.send(ctx, request{ID: &id, Method: method, Params: p}); err != nil {
			return err
		}
	}
	for notices := 0; len(open) > 0; {
		data, err := c.receive(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		id, err := answer(data, method, func(id int64) any {
			if i, ok := open[id]; ok {
				return result(i)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if id == 0 {
			if notices++; notices > maxNotices {
				return fmt.Errorf("%s: %w: no answer among %d messages", method, ErrProtocol, notices)
			}
		}
		delete(open, id)
	}
	return nil
}

func (c *Client) send(ctx context.Context, r request) error {
	r.JSONRPC = "2.0"
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("%s: %w", r.Method, err)
	}
	if err := c.conn.Write(ctx, websocket.MessageText, data); err != nil {
		return fmt.Errorf("%s: %w", r.Method, err)
	}
	return nil
}

func (c *Client) receive(ctx context.Context) ([]byte, error) {
	kind, r, err := c.conn.Reader(ctx)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, MaxFrame+1))
	if err != nil {
		return nil, err
	}
	if kind != websocket.MessageText || len(data) > MaxFrame {
		return nil, fmt.Errorf("%w: not one bounded text frame", ErrProtocol)
	}
	return data, nil
}

// answer decodes one message into what result gives for its id. It returns 0 for
// broadcasts, requests of the daemon (which are never served) and answers to
// calls that nobody waits for.
func answer(data []byte, method string, result func(id int64) any) (id int64, err error) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return 0, fmt.Errorf("%s: %w: not a message", method, ErrProtocol)
	}
	id, err = strconv.ParseInt(string(m.ID), 10, 64)
	if m.Method != nil || err != nil || id <= 0 {
		return 0, nil
	}
	into := result(id)
	if into == nil {
		return 0, nil
	}
	if m.Error != nil {
		return id, &RemoteError{Method: method, Code: m.Error.Code}
	}
	if len(m.Result) == 0 || string(m.Result) == "null" {
		return id, fmt.Errorf("%s: %w: no result", method, ErrProtocol)
	}
	if err := json.Unmarshal(m.Result, into); err != nil {
		return id, fmt.Errorf("%s: %w: a result of another shape", method, ErrProtocol)
	}
	return id, nil
}

// checkPeer proves who serves the socket: our own uid and, unless pid is 0, the
// very process.
func checkPeer(c net.Conn, pid int) error {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%w: not a unix socket", ErrPeer)
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPeer, err)
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || cerr != nil {
		return fmt.Errorf("%w: %w", ErrPeer, errors.Join(err, cerr))
	}
	if int(cred.Uid) != unix.Getuid() || (pid != 0 && int(cred.Pid) != pid) {
		return ErrPeer
	}
	return nil
}

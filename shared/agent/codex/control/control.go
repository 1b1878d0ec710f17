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

// Port gives the loopback port of the TUI that started or resumed thread last;
// ok is false where the daemon knows none (hidden threads, other clients).
func (c *Client) Port(ctx context.Context, thread string) (port int, ok bool, err error) {
	var got struct {
		Data []struct {
			Name   string `json:"name"`
			Origin string `json:"httpOrigin"`
		} `json:"data"`
	}
	params := map[string]any{"threadId": thread, "serverName": tuiServer, "detail": "toolsAndAuthOnly"}
	if err := c.call(ctx, methodServers, params, &got); err != nil {
		return 0, false, err
	}
	for _, s := range got.Data {
		if s.Name != tuiServer || s.Origin == "" {
			continue
		}
		if ok {
			return 0, false, fmt.Errorf("%s: %w: two servers of one name", methodServers, ErrProtocol)
		}
		if port, err = loopbackPort(s.Origin); err != nil {
			return 0, false, fmt.Errorf("%s: %w", methodServers, err)
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

// call sends one request and reads until its answer, passing over broadcasts.
func (c *Client) call(ctx context.Context, method string, params, result any) error {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	c.next++
	id := c.next
	if err := c.send(ctx, request{ID: &id, Method: method, Params: params}); err != nil {
		return err
	}
	for range maxNotices {
		data, err := c.receive(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		ours, err := answer(data, id, method, result)
		if ours || err != nil {
			return err
		}
	}
	return fmt.Errorf("%s: %w: no answer among %d messages", method, ErrProtocol, maxNotices)
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

// answer decodes one message. ours is false for broadcasts, requests of the
// daemon (which are never served) and late answers to other calls.
func answer(data []byte, id int64, method string, result any) (ours bool, err error) {
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method *string         `json:"method"`
		Result json.RawMessage `json:"result"`
		Error  *struct {
			Code int `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return false, fmt.Errorf("%s: %w: not a message", method, ErrProtocol)
	}
	if m.Method != nil || string(m.ID) != strconv.FormatInt(id, 10) {
		return false, nil
	}
	if m.Error != nil {
		return true, &RemoteError{Method: method, Code: m.Error.Code}
	}
	if len(m.Result) == 0 || string(m.Result) == "null" {
		return true, fmt.Errorf("%s: %w: no result", method, ErrProtocol)
	}
	if err := json.Unmarshal(m.Result, result); err != nil {
		return true, fmt.Errorf("%s: %w: a result of another shape", method, ErrProtocol)
	}
	return true, nil
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

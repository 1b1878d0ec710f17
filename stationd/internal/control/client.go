package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// maxAnswer bounds what a client takes as one document: an answer with evidence of
// several attempts is the largest.
const maxAnswer = 64 << 20

// Client calls one stationd. Its methods give the faults that the server answered
// with, and stationd_unavailable when none answers.
type Client struct {
	path string
	http *http.Client
}

// NewClient makes a client of the socket at path; nothing is opened.
func NewClient(path string) *Client {
	var d net.Dialer
	return &Client{path, &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true, // a command makes few calls, and leaves no connection behind
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return d.DialContext(ctx, "unix", path)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Start makes a station of a spec; key may be "".
func (c *Client) Start(ctx context.Context, spec []byte, key string) (out Started, err error) {
	h := http.Header{}
	if key != "" {
		h.Set(KeyHeader, key)
	}
	return out, c.call(ctx, "POST", "/v1/stations", nil, h, spec, &out)
}

// Replace ends a station's attempt, if it has one, and begins the next.
func (c *Client) Replace(ctx context.Context, id string) (out Started, err error) {
	return out, c.send(ctx, "POST", stationPath(id, "attempts"), nil, &out)
}

// Stop asks for the end of a station.
func (c *Client) Stop(ctx context.Context, id string) (out Stopped, err error) {
	return out, c.send(ctx, "POST", stationPath(id, "stop"), nil, &out)
}

// List gives the newest stations.
func (c *Client) List(ctx context.Context) (out StationList, err error) {
	return out, c.get(ctx, "/v1/stations", nil, &out)
}

// Status gives one station.
func (c *Client) Status(ctx context.Context, id string) (out Status, err error) {
	return out, c.get(ctx, stationPath(id), nil, &out)
}

// Await gives the status of a station when an attempt of it is where wait says.
func (c *Client) Await(ctx context.Context, id string, attempt int64, wait string) (Status, error) {
	for {
		var out Status
		if err := c.get(ctx, stationPath(id), query("wait", wait, "attempt", number(attempt)), &out); err != nil {
			return out, err
		}
		if out.is(attempt, wait) {
			return out, nil
		}
	}
}

// is reports whether what a client waits for is true.
func (s Status) is(attempt int64, wait string) bool {
	switch {
	case s.Attempt != attempt:
		return true // it was replaced
	case s.Detail == nil:
		return s.State == "stopped" || s.State == "failed" // a viewer does not see the attempt
	case wait == WaitReady:
		return s.Detail.AttemptState == "ready" || s.Detail.AttemptState == "terminal"
	}
	return s.Detail.AttemptState == "terminal" && (s.Cleanup == "done" || s.Cleanup == "failed")
}

// Ticket takes out a ticket.
func (c *Client) Ticket(ctx context.Context, id string, ask TicketRequest) (out Ticket, err error) {
	return out, c.send(ctx, "POST", stationPath(id, "tickets"), ask, &out)
}

// RevokeTicket ends a ticket by its id.
func (c *Client) RevokeTicket(ctx context.Context, id string) (out TicketState, err error) {
	return out, c.send(ctx, "DELETE", path("tickets", id), nil, &out)
}

// Members lists who has a role on a station.
func (c *Client) Members(ctx context.Context, id string) (out MemberList, err error) {
	return out, c.get(ctx, stationPath(id, "members"), nil, &out)
}

// Grant gives a role.
func (c *Client) Grant(ctx context.Context, id, principal, role string) (out MemberList, err error) {
	return out, c.send(ctx, "PUT", stationPath(id, "members", principal), RoleRequest{role}, &out)
}

// RevokeRole takes a role away.
func (c *Client) RevokeRole(ctx context.Context, id, principal string) (out MemberList, err error) {
	return out, c.send(ctx, "DELETE", stationPath(id, "members", principal), nil, &out)
}

// Principals lists the principals of the caller's organisation.
func (c *Client) Principals(ctx context.Context) (out PrincipalList, err error) {
	return out, c.get(ctx, "/v1/principals", nil, &out)
}

// AddPrincipal adds a principal; without a uid its secret is in the answer.
func (c *Client) AddPrincipal(ctx context.Context, ask PrincipalRequest) (out Principal, err error) {
	return out, c.send(ctx, "POST", "/v1/principals", ask, &out)
}

// RevokePrincipal ends a principal.
func (c *Client) RevokePrincipal(ctx context.Context, id string) (out Principal, err error) {
	return out, c.send(ctx, "DELETE", path("principals", id), nil, &out)
}

// Evidence gives the documents of a station, or of one attempt when it is not 0.
func (c *Client) Evidence(ctx context.Context, id string, attempt int64) (out Evidence, err error) {
	return out, c.get(ctx, stationPath(id, "evidence"), query("attempt", number(attempt)), &out)
}

// Verify recomputes a station's chain.
func (c *Client) Verify(ctx context.Context, id string) (Check, error) {
	var out Evidence
	err := c.get(ctx, stationPath(id, "evidence"), query("verify", "true"), &out)
	if err == nil && out.Check == nil {
		err = fault.New(fault.Internal, "verify station %s: the answer holds no result", id)
	}
	if err != nil {
		return Check{}, err
	}
	return *out.Check, nil
}

// Export writes all that is kept of a station to w.
func (c *Client) Export(ctx context.Context, id string, w io.Writer) error {
	resp, err := c.do(ctx, "GET", stationPath(id, "evidence"), query("export", "true"), nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		return fault.New(fault.StationdUnavailable, "export station %s: it broke off: %w", id, err)
	}
	return nil
}

// Release gives a lease back.
func (c *Client) Release(ctx context.Context, id string, ask ReleaseRequest) (out Lease, err error) {
	return out, c.send(ctx, "POST", path("leases", id, "release"), ask, &out)
}

// Logs hands the output of an attempt to emit, 0 for the newest one.
func (c *Client) Logs(ctx context.Context, id string, attempt int64, follow bool, emit func(Output) error) error {
	q := query("attempt", number(attempt))
	if follow {
		q.Set("follow", "true")
	}
	resp, err := c.do(ctx, "GET", stationPath(id, "logs"), q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return readOutput(resp.Body, id, emit)
}

// Answers reports whether anybody serves the socket.
func (c *Client) Answers(ctx context.Context) bool {
	resp, err := c.do(ctx, "GET", "/v1/stations", nil, nil, nil)
	if err == nil {
		resp.Body.Close()
		return true
	}
	_, refused := fault.As(err)
	return refused && !fault.Is(err, fault.StationdUnavailable)
}

func (c *Client) get(ctx context.Context, path string, q url.Values, out any) error {
	return c.call(ctx, "GET", path, q, nil, nil, out)
}

func (c *Client) send(ctx context.Context, method, path string, body, out any) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = marshal(body); err != nil {
			return err
		}
	}
	return c.call(ctx, method, path, nil, nil, data, out)
}

// call reads the answer into out. A newer stationd may say more than this client
// knows.
func (c *Client) call(ctx context.Context, method, path string, q url.Values, h http.Header, body []byte, out any) error {
	resp, err := c.do(ctx, method, path, q, h, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(data) > maxAnswer {
		err = errors.New("it is too long")
	}
	if err == nil {
		err = json.Unmarshal(data, out)
	}
	if err != nil {
		return fault.New(fault.StationdUnavailable, "read the answer of stationd: %w", err)
	}
	return nil
}

// do sends a request and gives the answer when it is no refusal.
func (c *Client) do(ctx context.Context, method, path string, q url.Values, h http.Header, body []byte) (*http.Response, error) {
	u := "http://stationd" + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, u, bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Internal, "ask stationd: %w", err)
	}
	if h != nil {
		r.Header = h
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

// unreachable says why nobody answered.
func (c *Client) unreachable(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return fault.New(fault.StationdUnavailable, "ask stationd: nobody serves %s", c.path).
			WithHint("start it with stationd serve, or name its -runtime-dir")
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fault.New(fault.StationdUnavailable, "ask stationd: this user may not open %s", c.path).
			WithHint("the socket is for the user that runs stationd")
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fault.New(fault.StationdUnavailable, "ask stationd: it hung up").
			WithHint("it stops, or this process is in another network namespace than stationd")
	}
	return fault.New(fault.StationdUnavailable, "ask stationd at %s: %w", c.path, err)
}

// refusal is the fault in an answer. A code that this program does not know has the
// exit status of an internal error.
func refusal(resp *http.Response) error {
	var o struct {
		Error   string `json:"error"`
		Message string `json:"message"`
		Hint    string `json:"hint"`
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, MaxBody))
	if err == nil {
		err = strictjson.Decode(data, &o, strictjson.Limits{AllowUnknown: true})
	}
	if err != nil || o.Error == "" {
		return fault.New(fault.Internal, "stationd answered with status %d and no error object", resp.StatusCode)
	}
	f := fault.New(fault.Code(o.Error), "%s", o.Message)
	f.Hint = o.Hint
	return f
}

// path joins segments, each escaped, below /v1.
func path(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteString("/" + url.PathEscape(s))
	}
	return b.String()
}

func stationPath(id string, more ...string) string {
	return path(append([]string{"stations", id}, more...)...)
}

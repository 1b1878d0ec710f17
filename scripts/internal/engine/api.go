package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

const (
	// DefaultHost is where an engine listens when DOCKER_HOST says nothing.
	DefaultHost = "unix:///var/run/docker.sock"
	// callBound bounds one answer.
	callBound = 16 << 20
)

// Client makes requests of an engine's API, on a Unix socket: an engine elsewhere
// is not this machine's.
type Client struct{ http *http.Client }

// Refused is an answer that is no success.
type Refused struct {
	Status int
	Text   string
}

func (r *Refused) Error() string { return fmt.Sprintf("status %d: %s", r.Status, r.Text) }

// NewClient speaks to host, "" for DOCKER_HOST, else DefaultHost.
func NewClient(host string) (*Client, error) {
	if host == "" {
		host = os.Getenv("DOCKER_HOST")
	}
	if host == "" {
		host = DefaultHost
	}
	socket, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		return nil, fmt.Errorf("engine %s: want unix:// and the path of a socket", host)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// Call makes one request and gives the whole answer. The error is a *Refused when
// the engine answered it. body may be nil; a JSON document or an archive.
func (c *Client) Call(ctx context.Context, method, path string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return nil, err
	}
	switch {
	case body == nil:
	case strings.HasPrefix(path, "/images/load"):
		req.Header.Set("Content-Type", "application/x-tar")
	default:
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, callBound))
	if err == nil && resp.StatusCode > 299 {
		err = &Refused{resp.StatusCode, strings.TrimSpace(string(answer))}
	}
	return answer, err
}

// Get decodes the answer to a GET into v.
func (c *Client) Get(ctx context.Context, path string, v any) error {
	answer, err := c.Call(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	return json.Unmarshal(answer, v)
}

// clear removes all containers and all networks that can be removed.
func (c *Client) clear(ctx context.Context) error {
	var containers, networks []struct{ ID, Name string }
	if err := c.Get(ctx, "/containers/json?all=1", &containers); err != nil {
		return fmt.Errorf("list the containers: %w", err)
	}
	var all []error
	for _, one := range containers {
		if _, err := c.Call(ctx, http.MethodDelete, "/containers/"+one.ID+"?force=1&v=1", nil); err != nil {
			all = append(all, fmt.Errorf("remove a container: %w", err))
		}
	}
	if err := c.Get(ctx, "/networks", &networks); err != nil {
		return errors.Join(append(all, fmt.Errorf("list the networks: %w", err))...)
	}
	for _, n := range networks {
		if n.Name == "bridge" || n.Name == "host" || n.Name == "none" {
			continue // the engine's own
		}
		if _, err := c.Call(ctx, http.MethodDelete, "/networks/"+n.ID, nil); err != nil {
			all = append(all, fmt.Errorf("remove network %s: %w", n.Name, err))
		}
	}
	return errors.Join(all...)
}

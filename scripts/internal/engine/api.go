package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
)

// callBound bounds one answer.
const callBound = 16 << 20

// call makes one request of the engine's API.
func call(ctx context.Context, socket, method, path string) ([]byte, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, callBound))
	if err == nil && resp.StatusCode > 299 {
		err = fmt.Errorf("%s %s: status %d: %s", method, path, resp.StatusCode, body)
	}
	return body, err
}

// clear removes all containers and all networks that can be removed.
func clear(ctx context.Context, socket string) error {
	var containers []struct{ ID string }
	if err := list(ctx, socket, "/containers/json?all=1", &containers); err != nil {
		return err
	}
	var all []error
	for _, c := range containers {
		if _, err := call(ctx, socket, http.MethodDelete, "/containers/"+c.ID+"?force=1&v=1"); err != nil {
			all = append(all, fmt.Errorf("remove a container: %w", err))
		}
	}
	var networks []struct{ ID, Name string }
	if err := list(ctx, socket, "/networks", &networks); err != nil {
		return errors.Join(append(all, err)...)
	}
	for _, n := range networks {
		if n.Name == "bridge" || n.Name == "host" || n.Name == "none" {
			continue // the engine's own
		}
		if _, err := call(ctx, socket, http.MethodDelete, "/networks/"+n.ID); err != nil {
			all = append(all, fmt.Errorf("remove a network: %w", err))
		}
	}
	return errors.Join(all...)
}

func list(ctx context.Context, socket, path string, v any) error {
	body, err := call(ctx, socket, http.MethodGet, path)
	if err == nil {
		err = json.Unmarshal(body, v)
	}
	if err != nil {
		return fmt.Errorf("list what the engine has: %w", err)
	}
	return nil
}

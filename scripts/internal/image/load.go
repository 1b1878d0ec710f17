package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// DefaultHost is where an engine listens when DOCKER_HOST says nothing.
const DefaultHost = "unix:///var/run/docker.sock"

// maxAnswer bounds what is read of one answer of the engine.
const maxAnswer = 1 << 20

// An Engine is a Docker engine behind a Unix socket.
type Engine struct{ client *http.Client }

// NewEngine speaks to host, "" for DOCKER_HOST or the default. Only unix://
// hosts are taken: an engine elsewhere is not this machine's.
func NewEngine(host string) (*Engine, error) {
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
	return &Engine{client: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// Has says whether the engine knows the image id.
func (e *Engine) Has(ctx context.Context, id string) (bool, error) {
	resp, err := e.call(ctx, http.MethodGet, "/images/"+url.PathEscape(id)+"/json", nil)
	if err != nil {
		return false, fmt.Errorf("ask the engine for image %s: %w", id, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		var seen struct{ ID string }
		if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(&seen); err != nil {
			return false, fmt.Errorf("ask the engine for image %s: %w", id, err)
		}
		return seen.ID == id, nil
	case http.StatusNotFound:
		return false, nil
	}
	return false, refusal("ask the engine for image "+id, resp)
}

// Load gives the image to the engine, unless it has it, and verifies that the
// engine knows it by the id that was computed here.
func (e *Engine) Load(ctx context.Context, img *Image) error {
	if has, err := e.Has(ctx, img.ID); err != nil || has {
		return err
	}
	read, write := io.Pipe()
	written := make(chan error, 1)
	go func() {
		_, err := img.WriteTo(write)
		write.CloseWithError(err)
		written <- err
	}()
	err := e.load(ctx, read)
	read.CloseWithError(errors.New("the engine reads no further"))
	if writing := <-written; err != nil || writing != nil {
		return errors.Join(err, writing)
	}
	has, err := e.Has(ctx, img.ID)
	if err == nil && !has {
		err = fmt.Errorf("the engine took the image, and does not know it as %s", img.ID)
	}
	return err
}

func (e *Engine) load(ctx context.Context, archive io.Reader) error {
	resp, err := e.call(ctx, http.MethodPost, "/images/load?quiet=1", archive)
	if err != nil {
		return fmt.Errorf("load the image: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal("load the image", resp)
	}
	// The status came before the work: an error is a member of the stream.
	for dec := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)); ; {
		var message struct{ Error string }
		switch err := dec.Decode(&message); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("load the image: %w", err)
		case message.Error != "":
			return fmt.Errorf("load the image: the engine says: %s", message.Error)
		}
	}
}

func (e *Engine) call(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-tar")
	}
	return e.client.Do(req)
}

func refusal(doing string, resp *http.Response) error {
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: status %d: %w", doing, resp.StatusCode, err)
	}
	return fmt.Errorf("%s: status %d: %s", doing, resp.StatusCode, strings.TrimSpace(string(said)))
}

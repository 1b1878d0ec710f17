package stationrig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const requestWait = time.Minute

// Client speaks through the gate with curl. Secret and ticket reach curl on its
// standard input: arguments are seen by everybody who may list processes.
type Client struct {
	*Station
	Secret string // "" sends none
	Ticket string // "" sends none
}

// Answer is what came back.
type Answer struct {
	Status  int
	Headers string // as curl prints them
	Body    []byte
}

// Text is the body on one line, no longer than most bytes.
func (a Answer) Text(most int) string {
	text := strings.Join(strings.Fields(string(a.Body)), " ")
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// Do sends one request; target is a path of the daemon, headers are whole lines.
func (c Client) Do(method, target, body string, headers ...string) Answer {
	c.Helper()
	a, err := c.Try(c.Context(), method, target, body, headers...)
	if err != nil {
		c.Fatalf("%s %s: %v", method, target, err)
	}
	return a
}

// Must is Do for a request that must get a 2xx.
func (c Client) Must(method, target, body string, headers ...string) Answer {
	c.Helper()
	a := c.Do(method, target, body, headers...)
	if a.Status < 200 || a.Status > 299 {
		c.Fatalf("%s %s: %d %s\nstationd's log:\n%s", method, target, a.Status, a.Text(2000), c.Log())
	}
	return a
}

// Try is Do that gives the error.
func (c Client) Try(ctx context.Context, method, target, body string, headers ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	cmd := c.curl(ctx, method, target, body, headers)
	cmd.Args = append(cmd.Args, "--include")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return Answer{}, fmt.Errorf("curl: %w: %s", err, said.String())
	}
	head, rest, _ := bytes.Cut(out, []byte("\r\n\r\n"))
	a := Answer{Headers: string(head), Body: rest}
	if fields := strings.Fields(a.Headers); len(fields) > 1 {
		a.Status, _ = strconv.Atoi(fields[1])
	}
	return a, nil
}

func (c Client) curl(ctx context.Context, method, target, body string, headers []string) *exec.Cmd {
	var config strings.Builder
	set := func(name, value string) { fmt.Fprintf(&config, "%s = %s\n", name, strconv.Quote(value)) }
	set("url", c.URL+target)
	if c.Secret != "" {
		set("header", "Authorization: Bearer "+c.Secret)
	}
	if c.Ticket != "" {
		set("header", "Drawbridge-Ticket: "+c.Ticket)
	}
	if body != "" {
		set("data-binary", body)
		headers = append([]string{"Content-Type: application/json"}, headers...)
	}
	for _, h := range headers {
		set("header", h)
	}
	cmd := exec.CommandContext(ctx, "curl", "--silent", "--show-error", "--http1.1", "--noproxy", "*", "--path-as-is", "--request", method, "--config", "-")
	cmd.Stdin = strings.NewReader(config.String())
	return cmd
}

// Stream is an open stream of events.
type Stream struct {
	client Client
	cmd    *exec.Cmd
	events chan string // whole ones, as they arrived; closed at the end
	fail   func() error
}

// Stream opens one with curl; it ends with the TB at the latest.
func (c Client) Stream(target string, headers ...string) *Stream {
	c.Helper()
	cmd := c.curl(c.Context(), "GET", target, "", headers)
	cmd.Args = append(cmd.Args, "--no-buffer", "--fail")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.Fatalf("%v", err)
	}
	s := &Stream{client: c, cmd: cmd, events: make(chan string, 4096)}
	ended := make(chan error, 1)
	go func() {
		err := s.read(out)
		ended <- errors.Join(err, cmd.Wait())
		close(s.events)
	}()
	var status error
	over := false
	s.fail = func() error {
		if !over {
			status, over = <-ended, true
		}
		return status
	}
	c.Cleanup(s.Close)
	return s
}

// read cuts what arrives into events.
func (s *Stream) read(r io.Reader) error {
	var event strings.Builder
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			if err == io.EOF && event.Len() == 0 {
				return nil
			}
			return fmt.Errorf("the stream ended inside an event: %w", err)
		}
		event.WriteString(line)
		if strings.TrimRight(line, "\r\n") == "" {
			s.events <- strings.TrimRight(event.String(), "\r\n")
			event.Reset()
		}
	}
}

// Next is the next event that is not a comment; ok is false at the end.
func (s *Stream) Next() (event string, ok bool) {
	s.client.Helper()
	for {
		select {
		case event, ok := <-s.events:
			if ok && strings.HasPrefix(event, ":") {
				continue // a heartbeat
			}
			return event, ok
		case <-time.After(requestWait):
			s.client.Fatalf("no event within %s", requestWait)
		}
	}
}

// Until reads until an event holds want, and gives it.
func (s *Stream) Until(want string) string {
	s.client.Helper()
	for {
		event, ok := s.Next()
		if !ok {
			s.client.Fatalf("the stream ended before an event with %q: %v", want, s.fail())
		}
		if strings.Contains(event, want) {
			return event
		}
	}
}

// Rest reads to the end, which must be a clean one.
func (s *Stream) Rest() (events []string) {
	s.client.Helper()
	for {
		event, ok := s.Next()
		if !ok {
			break
		}
		events = append(events, event)
	}
	if err := s.fail(); err != nil {
		s.client.Errorf("the stream did not end cleanly: %v", err)
	}
	return events
}

// Close ends the stream as a client that leaves; safe to repeat.
func (s *Stream) Close() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	for range s.events {
	}
}

// ID is the id of an event, "" without one.
func ID(event string) string {
	for line := range strings.Lines(event) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "id:"); ok {
			return strings.TrimSpace(id)
		}
	}
	return ""
}

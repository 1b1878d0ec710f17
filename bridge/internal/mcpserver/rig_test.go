package mcpserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/bridge/internal/mcpserver"
)

const patience = 20 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		serveProcess()
		return
	}
	goleak.VerifyTestMain(m)
}

// rig is a server on two pipes, real ones, with the test as client.
type rig struct {
	t      *testing.T
	tools  *fake
	server *mcpserver.Server
	stop   context.CancelFunc
	done   chan error
	in     *os.File // client writes
	out    *os.File // client reads
	log    *sink
	lines  chan string // what the server wrote; closed at its end

	closing sync.Once
	theirs  []*os.File
}

func serve(t *testing.T, change func(*mcpserver.Options)) *rig {
	t.Helper()
	r := connect(t, change)
	r.lines = make(chan string, 4096)
	go func() {
		defer close(r.lines)
		s := bufio.NewScanner(r.out)
		s.Buffer(nil, 64<<20)
		for s.Scan() {
			r.lines <- s.Text()
		}
	}()
	return r
}

// connect starts a server whose output the test reads itself.
func connect(t *testing.T, change func(*mcpserver.Options)) *rig {
	t.Helper()
	r := &rig{t: t, tools: newFake(), log: &sink{}, done: make(chan error, 1)}
	serverIn, clientIn, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	clientOut, serverOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.in, r.out, r.theirs = clientIn, clientOut, []*os.File{serverIn, serverOut}
	tools, err := catalog.New(catalog.Options{Handoff: catalog.Ready(r.tools)})
	if err != nil {
		t.Fatal(err)
	}
	o := mcpserver.Options{
		Tools: tools, In: serverIn, Out: serverOut, Version: "test",
		Log:   slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		NewID: func() string { return "instance" },
	}
	if change != nil {
		change(&o)
	}
	if r.server, err = mcpserver.New(o); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	go func() {
		err := r.server.Run(ctx)
		r.closeTheirs()
		r.done <- err
	}()
	t.Cleanup(func() {
		cancel()
		r.in.Close()
		r.wait()
		r.out.Close()
		if r.lines != nil {
			for range r.lines {
			}
		}
	})
	return r
}

func (r *rig) closeTheirs() {
	r.closing.Do(func() {
		for _, f := range r.theirs {
			f.Close()
		}
	})
}

// wait gives what Run returned.
func (r *rig) wait() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(patience):
		r.t.Fatalf("Run does not return; log:\n%s", r.log)
		return nil
	}
}

func (r *rig) send(format string, args ...any) {
	r.t.Helper()
	if _, err := fmt.Fprintf(r.in, format+"\n", args...); err != nil {
		r.t.Fatalf("write to the server: %v", err)
	}
}

// next gives the next line of the server, ok false at its end.
func (r *rig) next() (string, bool) {
	r.t.Helper()
	select {
	case line, ok := <-r.lines:
		return line, ok
	case <-time.After(patience):
		r.t.Fatalf("no line from the server; log:\n%s", r.log)
		return "", false
	}
}

func (r *rig) initialize() {
	r.t.Helper()
	r.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if line, _ := r.next(); !strings.Contains(line, `"protocolVersion":"2025-06-18"`) {
		r.t.Fatalf("initialize: %s", line)
	}
	r.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// call sends one send with the raw id.
func (r *rig) call(id, request string) {
	r.t.Helper()
	r.send(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"agent_knock_knock_send","arguments":{"request":%q}}}`, id, request)
}

// answer is a line of the server.
type answer struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Result *struct {
		Content []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"content"`
		Structured map[string]any `json:"structuredContent"`
		IsError    bool           `json:"isError"`
	} `json:"result"`
}

func parse(t *testing.T, line string) answer {
	t.Helper()
	var a answer
	if err := json.Unmarshal([]byte(line), &a); err != nil || a.JSONRPC != "2.0" {
		t.Fatalf("the server wrote %q: %v", line, err)
	}
	return a
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("%s: not in time", what)
}

// sink collects log lines.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

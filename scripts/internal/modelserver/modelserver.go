// Package modelserver is a model provider without a model: an HTTP server on
// loopback that answers real coding agents with scripted turns, so that every
// screen, dialog, failure and delay can be had on demand and without an account.
//
// Agents reach it as an ordinary provider: Codex by POST /v1/responses (OpenAI
// Responses, streamed) and GET /v1/models, Claude Code by POST /v1/messages
// (Anthropic Messages) and its count_tokens. The scenario of a turn is chosen by
// a word in the newest user message, SCN=NAME or SCN=NAME:argument
// (scenario.go lists them); a message without one is echoed. What a scenario
// wants to happen is said through a voice; responses.go and messages.go are the
// voices of the two wires, so that one word drives both agents.
//
// Tests run it in their own process and use the methods; people and scripts use
// the same things below /control/. It writes no file, keeps no header, and
// stops by itself when its life is over.
package modelserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Bounds.
const (
	DefaultLife = 30 * time.Minute // Run ends by itself after it
	maxBody     = 64 << 20         // one request
	maxRequests = 10_000           // requests kept in the log; older ones are dropped
	maxLogged   = 500              // runes of user text kept for one request
	maxWait     = 10 * time.Minute // longest hold of one answer, by gate or delay
	stopGrace   = 2 * time.Second
)

// DefaultGate is the gate of a scenario that names none.
const DefaultGate = "default"

// Options of a Server; the zero value is usable.
type Options struct {
	Life time.Duration    // DefaultLife when zero
	Now  func() time.Time // time.Now when nil
}

// A Fault is put in front of the next requests for a turn.
type Fault struct {
	Times  int           // how many requests it meets; 0 means one
	Status int           // answer with this HTTP status; 0 leaves the answer alone
	Cut    bool          // close the connection without an answer
	Delay  time.Duration // hold the answer first
}

// Server is one scripted provider.
type Server struct {
	life time.Duration
	now  func() time.Time
	mux  *http.ServeMux
	// stamp makes message ids differ between servers: a resumed conversation
	// has messages of both.
	stamp string

	mu       sync.Mutex
	requests []Request
	count    int64
	gates    map[string]*gate
	faults   []Fault
}

type gate struct {
	open    chan struct{}
	opened  bool
	waiting int
}

// New makes a Server that does not listen yet.
func New(opts Options) *Server {
	s := &Server{life: opts.Life, now: opts.Now, gates: map[string]*gate{}}
	if s.life == 0 {
		s.life = DefaultLife
	}
	if s.now == nil {
		s.now = time.Now
	}
	s.stamp = strconv.FormatInt(s.now().UnixNano(), 36)
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("POST /v1/responses", s.responses)
	s.mux.HandleFunc("POST /v1/responses/compact", s.compact)
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("HEAD /{$}", func(http.ResponseWriter, *http.Request) {}) // 200: the provider is there
	s.mux.HandleFunc("POST /v1/messages", s.messages)
	s.mux.HandleFunc("POST /v1/messages/count_tokens", s.countTokens)
	s.mux.HandleFunc("GET /control/requests", s.controlRequests)
	s.mux.HandleFunc("POST /control/release", s.controlRelease)
	s.mux.HandleFunc("POST /control/fault", s.controlFault)
	return s
}

// Listen opens a loopback listener; address "" means a free port of 127.0.0.1.
func Listen(address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if a, ok := ln.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		_ = ln.Close()
		return nil, fmt.Errorf("listen on %s: not a loopback address", address)
	}
	return ln, nil
}

// Run serves ln until ctx ends or the server's life is over, both of which are
// a clean end. It returns when every answer has ended.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithTimeout(ctx, s.life)
	defer cancel()
	hs := &http.Server{
		Handler:           s.mux,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the model on %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	// Answers that wait have seen ctx end; the rest is cut after the grace.
	grace, done := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer done()
	if err := hs.Shutdown(grace); err != nil {
		_ = hs.Close()
	}
	<-served
	return nil
}

// ServeHTTP answers one request, for tests without a listener.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Release opens a gate for good: answers that wait there and all that come
// later go through. Use a gate name of its own for each turn.
func (s *Server) Release(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.gate(name)
	if !g.opened {
		g.opened = true
		close(g.open)
	}
}

// Waiting says how many answers wait at a gate now.
func (s *Server) Waiting(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gate(name).waiting
}

// Inject puts a fault in front of the next requests for a turn, behind the
// faults that are already there.
func (s *Server) Inject(f Fault) {
	if f.Times <= 0 {
		f.Times = 1
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// gate gives the named gate; s.mu is held.
func (s *Server) gate(name string) *gate {
	if name == "" {
		name = DefaultGate
	}
	g, ok := s.gates[name]
	if !ok {
		g = &gate{open: make(chan struct{})}
		s.gates[name] = g
	}
	return g
}

// passGate waits at a gate and reports whether the client is still there.
func (s *Server) passGate(ctx context.Context, name string) bool {
	s.mu.Lock()
	g := s.gate(name)
	g.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		g.waiting--
		s.mu.Unlock()
	}()
	limit := time.NewTimer(maxWait)
	defer limit.Stop()
	select {
	case <-g.open:
		return true
	case <-limit.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// wait lets d pass, at most maxWait, and reports whether the client is still there.
func wait(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(min(d, maxWait))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// takeFault gives the fault that the next turn request meets.
func (s *Server) takeFault() (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.faults) == 0 {
		return Fault{}, false
	}
	f := s.faults[0]
	s.faults[0].Times--
	if s.faults[0].Times <= 0 {
		s.faults = s.faults[1:]
	}
	return f, true
}

// meetFault puts the next fault in front of an answer, and reports whether the
// answer is still wanted.
func (s *Server) meetFault(ctx context.Context, v voice) bool {
	f, ok := s.takeFault()
	if !ok {
		return true
	}
	if !wait(ctx, f.Delay) {
		return false
	}
	if f.Cut {
		panic(http.ErrAbortHandler) // net/http closes the connection without an answer
	}
	if f.Status != 0 {
		v.refuse(f.Status, "server_error", "injected", "injected failure")
		return false
	}
	return true
}

func (s *Server) controlRequests(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(s.Requests()) // the reader has gone
}

func (s *Server) controlRelease(w http.ResponseWriter, r *http.Request) {
	s.Release(r.URL.Query().Get("gate"))
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) controlFault(w http.ResponseWriter, r *http.Request) {
	f, err := parseFault(r.URL.Query().Get)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.Inject(f)
	w.WriteHeader(http.StatusNoContent)
}

func parseFault(get func(string) string) (Fault, error) {
	var f Fault
	var errs []error
	number := func(name string, to *int) {
		if v := get(name); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 || n > 1000 {
				errs = append(errs, fmt.Errorf("%s: want a number from 0 to 1000, got %q", name, v))
			}
			*to = n
		}
	}
	number("times", &f.Times)
	number("status", &f.Status)
	if f.Status != 0 && (f.Status < 400 || f.Status > 599) {
		errs = append(errs, fmt.Errorf("status: want 400 to 599, got %d", f.Status))
	}
	f.Cut = get("cut") == "true"
	if v := get("delay"); v != "" {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 || d > maxWait {
			errs = append(errs, fmt.Errorf("delay: want a duration up to %s, got %q", maxWait, v))
		}
		f.Delay = d
	}
	return f, errors.Join(errs...)
}

package modelserver

import "time"

// Kind says what a request was for.
type Kind string

// Kinds of requests.
const (
	Turn    Kind = "turn"    // one sampling step of a turn
	Title   Kind = "title"   // the agent wants a name for a thread
	Compact Kind = "compact" // the agent wants its history summarised
	Models  Kind = "models"  // the agent lists the provider's models
	Count   Kind = "count"   // the agent wants tokens counted
)

// Request is what the server remembers of one request: enough to count what
// reached the model, for which thread, with which text. No header is kept.
type Request struct {
	N        int64     `json:"n"`
	At       time.Time `json:"at"`
	Kind     Kind      `json:"kind"`
	Thread   string    `json:"thread,omitempty"`
	TurnID   string    `json:"turn_id,omitempty"`
	Scenario string    `json:"scenario,omitempty"`
	Arg      string    `json:"arg,omitempty"`
	Step     int       `json:"step"`           // tool outputs since the newest user message
	Text     string    `json:"text,omitempty"` // newest user message, its first 500 characters
	Done     bool      `json:"done"`           // the scripted answer was given whole
	Gone     bool      `json:"gone,omitempty"` // the client left before its end
}

// Requests gives the log so far, oldest first.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Turns counts the first steps of turns whose newest user message is exactly
// text: how often that message reached the model as a new request.
func (s *Server) Turns(text string) int {
	n := 0
	for _, r := range s.Requests() {
		if r.Kind == Turn && r.Step == 0 && r.Text == cut(text, maxLogged) {
			n++
		}
	}
	return n
}

// Threads counts the turn requests of each thread.
func (s *Server) Threads() map[string]int {
	out := map[string]int{}
	for _, r := range s.Requests() {
		if r.Kind == Turn {
			out[r.Thread]++
		}
	}
	return out
}

// open writes the request into the log and gives its number.
func (s *Server) open(r Request) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	r.N, r.At = s.count, s.now()
	if len(s.requests) == maxRequests {
		s.requests = append(s.requests[:0], s.requests[1:]...)
	}
	s.requests = append(s.requests, r)
	return r.N
}

// close notes how the request ended.
func (s *Server) close(n int64, done, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.requests) - 1; i >= 0; i-- {
		if s.requests[i].N == n {
			s.requests[i].Done, s.requests[i].Gone = done, gone
			return
		}
	}
}

func cut(s string, runes int) string {
	n := 0
	for i := range s {
		if n == runes {
			return s[:i]
		}
		n++
	}
	return s
}

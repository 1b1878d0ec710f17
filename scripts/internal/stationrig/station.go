package stationrig

import (
	"encoding/json"
	"strings"
	"time"
)

// Spec is a station's spec, as the operator writes it.
type Spec map[string]any

// Station is one that was started.
type Station struct {
	*Rig
	ID      string
	Attempt int64
	URL     string // of its bridge
}

type started struct {
	StationID string `json:"stationId"`
	Attempt   int64  `json:"attempt"`
	Bridge    *struct {
		URL string `json:"url"`
	} `json:"bridge"`
}

// Start writes the spec and starts a station of it; it is ready when Start returns.
func (r *Rig) Start(spec Spec) *Station {
	r.Helper()
	var s started
	r.Ask(&s, "start", "-f", r.Spec(spec), "-wait")
	return r.station(s)
}

// Spec writes a spec to a file.
func (r *Rig) Spec(spec Spec) string {
	r.Helper()
	data, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		r.Fatalf("%v", err)
	}
	return r.Write("spec.json", append(data, '\n'))
}

func (r *Rig) station(s started) *Station {
	out := &Station{Rig: r, ID: s.StationID, Attempt: s.Attempt}
	if s.Bridge != nil {
		out.URL = s.Bridge.URL
	}
	return out
}

// Replace begins the station's next attempt.
func (s *Station) Replace() *Station {
	s.Helper()
	var next started
	s.Ask(&next, "start", "-replace", s.ID, "-wait")
	return s.station(next)
}

// Status is what status says of a station to whoever may control it.
type Status struct {
	State          string     `json:"state"`
	DesiredState   string     `json:"desiredState"`
	Attempt        int64      `json:"attempt"`
	LastObservedAt *time.Time `json:"lastObservedAt"`
	StopReason     string     `json:"stopReason"`
	LeaseState     string     `json:"leaseState"`
	Supervisor     string     `json:"supervisor"`
	Command        string     `json:"command"`
	Cleanup        string     `json:"cleanup"`
	Detail         struct {
		AttemptState string    `json:"attemptState"`
		LeaseID      string    `json:"leaseId"`
		Containment  string    `json:"containment"`
		Egress       string    `json:"egress"`
		CommandHash  string    `json:"commandHash"`
		ShimPID      int       `json:"shimPid"`
		DaemonPID    int       `json:"daemonPid"`
		Port         int       `json:"port"`
		StartedAt    time.Time `json:"startedAt"`
		ReadyAt      time.Time `json:"readyAt"`
	} `json:"detail"`
}

// Status asks for it.
func (s *Station) Status() (st Status) {
	s.Helper()
	s.Ask(&st, "status", s.ID)
	return st
}

// Principal is an identity with a secret.
type Principal struct {
	ID     string `json:"principalId"`
	Secret string `json:"secret"`
}

// Principal adds one.
func (r *Rig) Principal(name string) (p Principal) {
	r.Helper()
	r.Ask(&p, "principal", "add", name)
	return p
}

// Grant gives a principal a role on the station.
func (s *Station) Grant(p Principal, role string) {
	s.Helper()
	s.Run("member", "grant", s.ID, p.ID, role)
}

// Ticket takes out a ticket for p; flags are those of the command.
func (s *Station) Ticket(p Principal, flags ...string) string {
	s.Helper()
	return strings.TrimSpace(string(s.Run(append([]string{"ticket", s.ID, "-principal", p.ID}, flags...)...)))
}

// Client adds a manager with a ticket for all of the daemon.
func (s *Station) Client(name string) Client {
	s.Helper()
	p := s.Principal(name)
	s.Grant(p, "manager")
	return Client{Station: s, Secret: p.Secret, Ticket: s.Ticket(p)}
}

// End stops the station and waits until nothing of it is left.
func (s *Station) End() {
	s.Helper()
	s.Run("stop", s.ID, "-wait")
}

// Evidence is the document of the newest attempt, which has ended.
func (s *Station) Evidence() json.RawMessage {
	s.Helper()
	var all struct {
		Documents []struct {
			Attempt  int64           `json:"attempt"`
			Document json.RawMessage `json:"document"`
		} `json:"documents"`
	}
	s.Ask(&all, "evidence", "show", s.ID)
	for _, d := range all.Documents {
		if d.Attempt == s.Attempt {
			return d.Document
		}
	}
	s.Fatalf("no document of attempt %d of %s", s.Attempt, s.ID)
	return nil
}

// Verify recomputes the chain, which must hold, and gives what verify said.
func (s *Station) Verify() string {
	s.Helper()
	return strings.TrimSpace(string(s.Run("evidence", "verify", s.ID)))
}

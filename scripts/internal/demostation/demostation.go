// Package demostation is the story of scripts/demo station: a public agent harness,
// its digest pinned, runs as a station; a client with a ticket speaks to it through
// the gate and follows its events; whoever has none is refused, and so is the harness
// itself when it wants out; then it is stopped, and what is kept of it is shown and
// checked.
//
// Nothing of the network is reached: the station has no interface but lo, the harness
// answers by itself (the agent is its built-in echo, or none is asked), and what it
// asks for outside is refused before a name is looked up.
package demostation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"drawbridge/scripts/internal/rig"
	"drawbridge/scripts/internal/stationrig"
)

// Names of what the story makes.
const (
	wayOut  = "docs-only"         // egress profile
	allowed = "docs.example.test" // all that it allows; nobody asks for it
)

// Options say what the story is told of.
type Options struct {
	Bin     string              // directory of stationd and station-shim
	Harness string              // rig.SandboxAgent or rig.OpenCode
	User    *syscall.Credential // who runs stationd; nil: whoever runs this

	Provider  string // of the lease; "" for this machine
	Providers string // the file that names it, as JSON
}

// Refusal is one try that must come to nothing.
type Refusal struct{ Who, What, Answer string }

// Outcome is what the story ended with.
type Outcome struct {
	Station   string
	Namespace string // pid namespace of the daemon
	Most      int    // processes that it held at one time
	Left      []int  // and after the stop
	Events    []string
	Last      string // event of the stream that was open at the stop
	Refused   []Refusal
	Evidence  []byte
	Verdict   string // of evidence verify
}

// story is one run of it.
type story struct {
	*stationrig.Rig
	say     func(format string, args ...any)
	harness harness
	st      *stationrig.Station
	ada     stationrig.Client // a manager with a ticket
	bob     stationrig.Client // a manager without
	out     Outcome
}

// Run tells the story; tb ends it when something is not as it should be.
func Run(tb rig.TB, say func(format string, args ...any), o Options) Outcome {
	tb.Helper()
	h, ok := harnesses[o.Harness]
	if !ok {
		tb.Fatalf("harness %q: want %s or %s", o.Harness, rig.SandboxAgent, rig.OpenCode)
	}
	program, err := rig.FindHarness(o.Harness)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	run := stationrig.Options{
		Bin: o.Bin, Args: []string{"-egress-profiles", "egress.json"}, User: o.User,
		Files: map[string]string{"egress.json": fmt.Sprintf(`{"profiles":[{"name":%q,"allow":[%q]}]}`+"\n", wayOut, allowed)},
	}
	if o.Provider != "" {
		run.Args = append(run.Args, "-providers", "providers.json")
		run.Files["providers.json"] = o.Providers
	}
	s := &story{say: say, harness: h, Rig: stationrig.New(tb, run)}
	s.say("stationd serves, process %d", s.PID())
	if o.User != nil { // the cache may be in a home that others do not see
		data, err := os.ReadFile(program.Path)
		if err != nil {
			s.Fatalf("%v", err)
		}
		program.Path = s.Write("harness", data)
	}
	s.start(o.Harness, o.Provider, program)
	s.clients()
	s.strangers()
	stream := s.conversation()
	s.inside()
	s.stop(stream)
	s.evidence()
	return s.out
}

// start makes the workspace, a repository of its own, and the station.
func (s *story) start(name, provider string, program rig.Harness) {
	files := map[string]string{"README.md": "# The bridge\n\nTwelve planks, two chains.\n"}
	for path, text := range s.harness.files {
		files[path] = text
	}
	for path, text := range files {
		s.Write("work/"+path, []byte(text))
	}
	s.Commit("work")
	spec := stationrig.Spec{
		"name": "demo", "profile": "agent", "workspace": map[string]any{"source": s.Path("work")},
		"harness": map[string]any{"name": name, "artifact": map[string]any{"path": program.Path, "sha256": program.SHA256}},
		"command": map[string]any{"argv": s.harness.argv}, "bridge": map[string]any{"pathPrefix": "/"},
		"readiness":     map[string]any{"http_path": s.harness.health, "timeoutMs": (4 * time.Minute).Milliseconds()},
		"egressProfile": wayOut, "ttl": "30m", "graceMs": 2000, "artifacts": map[string]any{"paths": s.harness.artifacts},
	}
	for key, value := range s.harness.more {
		spec[key] = value
	}
	if provider != "" {
		spec["provider"] = provider
	}
	if os.Getuid() == 0 && s.User == nil {
		spec["run_as"] = map[string]any{"uid": stationrig.Nobody, "gid": stationrig.Nobody}
	}
	s.say("the harness is %s, pinned to sha256 %.16s…", name, program.SHA256)
	s.say("$ stationd start -f spec.json -wait")
	s.st = s.Start(spec)
	status := s.st.Status()
	s.out.Station = s.st.ID
	space, err := stationrig.Namespace(status.Detail.DaemonPID)
	if err != nil {
		s.Fatalf("%v", err)
	}
	s.out.Namespace = space
	s.say("station %s is ready after %.1f s: daemon %d, held by %s, network %s", s.st.ID,
		status.Detail.ReadyAt.Sub(status.Detail.StartedAt).Seconds(), status.Detail.DaemonPID, status.Detail.Containment, status.Detail.Egress)
}

// clients makes two managers, of whom one gets a ticket.
func (s *story) clients() {
	ada, bob := s.Principal("ada"), s.Principal("bob")
	for _, p := range []stationrig.Principal{ada, bob} {
		s.st.Grant(p, "manager")
	}
	s.say("$ stationd ticket -prefix %s -ttl 5m -principal %s %s", s.harness.prefix, ada.ID, s.st.ID)
	s.ada = stationrig.Client{Station: s.st, Secret: ada.Secret, Ticket: s.st.Ticket(ada, "-prefix", s.harness.prefix, "-ttl", "5m")}
	s.bob = stationrig.Client{Station: s.st, Secret: bob.Secret}
	s.say("ada and bob are managers of it; ada has a ticket for %s of this attempt, for five minutes", s.harness.prefix)
}

// strangers shows what is refused at the gate.
func (s *story) strangers() {
	s.say("refused at the gate:")
	thief := s.bob
	thief.Ticket = s.ada.Ticket
	nobody := stationrig.Client{Station: s.st, Ticket: s.ada.Ticket}
	for _, try := range []struct {
		who, what, target string
		client            stationrig.Client
		status            int
		code              string
	}{
		{"bob", "without a ticket", s.harness.health, s.bob, 401, "unauthorized"},
		{"bob", "with ada's ticket", s.harness.health, thief, 401, "unauthorized"},
		{"nobody", "with ada's ticket", s.harness.health, nobody, 401, "unauthorized"},
		{"ada", "outside what the ticket is for", s.harness.outside, s.ada, 403, "path_outside_prefix"},
		{"ada", "a ticket in the address", s.harness.health + "?ticket=x", s.ada, 400, "ticket_in_url"},
	} {
		if try.target == "" {
			continue // the ticket is for everything
		}
		a := try.client.Do("GET", try.target, "")
		if a.Status != try.status || !strings.Contains(string(a.Body), `"`+try.code+`"`) {
			s.Fatalf("%s, %s: %d %s, want %d %s", try.who, try.what, a.Status, a.Text(300), try.status, try.code)
		}
		s.refused(try.who, try.what, fmt.Sprintf("%d %s", a.Status, try.code))
	}
}

func (s *story) refused(who, what, answer string) {
	s.out.Refused = append(s.out.Refused, Refusal{who, what, answer})
	s.say("  %-14s %-38s %s", who, what, answer)
}

// stop ends the station while a stream is open.
func (s *story) stop(stream *stationrig.Stream) {
	s.out.Most = len(stationrig.Members(s.out.Namespace))
	s.say("$ stationd stop -wait %s", s.st.ID)
	begin := time.Now()
	s.st.End()
	took := time.Since(begin)
	rest := stream.Rest()
	if len(rest) == 0 {
		s.Fatalf("the open stream had no last event")
	}
	s.out.Last = rest[len(rest)-1]
	if !strings.Contains(s.out.Last, "event: station") || !strings.Contains(s.out.Last, `"final":true`) {
		s.Fatalf("the last event of the open stream is %s", s.out.Last)
	}
	s.say("the open stream has ended with an event of the station's:\n%s", indent(s.out.Last))
	s.out.Left = stationrig.Members(s.out.Namespace)
	if len(s.out.Left) > 0 {
		s.Fatalf("%d processes are left in %s", len(s.out.Left), s.out.Namespace)
	}
	s.say("stopped within %.1f s; of the %d processes in %s none is left", took.Seconds(), s.out.Most, s.out.Namespace)
	a := s.ada.Do("GET", s.harness.health, "")
	if a.Status < 400 {
		s.Fatalf("the ticket still opens: %d", a.Status)
	}
	s.refused("ada", "with the ticket, after the stop", fmt.Sprintf("%d %s", a.Status, code(a.Body)))
}

func code(body []byte) string {
	var v struct {
		Error string `json:"error"`
	}
	_ = json.Unmarshal(body, &v)
	return v.Error
}

// evidence shows what is kept, and that nothing of it was changed.
func (s *story) evidence() {
	s.say("$ stationd evidence show %s; stationd evidence verify %s", s.st.ID, s.st.ID)
	s.out.Evidence = s.st.Evidence()
	s.out.Verdict = s.st.Verify()
	for name, secret := range map[string]string{"ticket": s.ada.Ticket, "secret of ada": s.ada.Secret, "secret of bob": s.bob.Secret} {
		if bytes.Contains(s.out.Evidence, []byte(secret)) {
			s.Fatalf("the %s is in the evidence", name)
		}
	}
}

// Print writes what the story ended with.
func (o Outcome) Print(w io.Writer) error {
	var doc bytes.Buffer
	if err := json.Indent(&doc, o.Evidence, "  ", "  "); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nevidence\n  %s\n\nchain\n%s\n", doc.String(), indent(o.Verdict))
	return err
}

func indent(text string) string {
	return "           " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n           ")
}

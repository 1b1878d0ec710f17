package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/scripts/internal/stationrig"
	"drawbridge/shared/testkit"
)

// harnessStation is a stationd whose stations run stationd's own harness, out of a
// workspace: the harness that misbehaves when it is told to.
type harnessStation struct {
	*stationrig.Rig
	spec stationrig.Spec
}

func newHarnessStation(t *testing.T, options stationrig.Options) *harnessStation {
	t.Helper()
	options.Bin = stationBin(t)
	program := filepath.Join(t.TempDir(), "testharness")
	copyProgram(t, testkit.BuildProgram(t, "stationd/internal/testharness", "netgo", "osusergo"), program)
	h := &harnessStation{Rig: stationrig.New(t, options)}
	h.spec = stationrig.Spec{
		"name": "e2e", "profile": "agent", "harness": map[string]any{"name": "testharness", "artifact": map[string]any{"path": program, "sha256": digest(t, program)}},
		"readiness": map[string]any{"http_path": "/health"}, "bridge": map[string]any{}, "ttl": "10m", "graceMs": 1000,
	}
	if os.Getuid() == 0 {
		h.spec["run_as"] = map[string]any{"uid": stationrig.Nobody, "gid": stationrig.Nobody}
	}
	return h
}

// with is the spec of a harness with these flags, and what else is changed.
func (h *harnessStation) with(more stationrig.Spec, flags ...string) stationrig.Spec {
	spec := stationrig.Spec{"command": map[string]any{"argv": append([]string{"testharness", "-port", "{port}"}, flags...)}}
	for _, from := range []stationrig.Spec{h.spec, more} {
		for key, value := range from {
			spec[key] = value
		}
	}
	return spec
}

// in is the same stationd for a subtest.
func (h *harnessStation) in(t *testing.T) *harnessStation {
	return &harnessStation{h.Rig.In(t), h.spec}
}

// begin starts a station that need not become ready.
func (h *harnessStation) begin(spec stationrig.Spec) *stationrig.Station {
	h.Helper()
	var s struct {
		StationID string
		Attempt   int64
	}
	h.Ask(&s, "start", "-f", h.Spec(spec))
	return &stationrig.Station{Rig: h.Rig, ID: s.StationID, Attempt: s.Attempt}
}

// ended waits until the newest attempt has ended and all of it is gone, and gives its
// evidence.
func ended(s *stationrig.Station) stationEvidence {
	s.Helper()
	s.Until("the attempt has ended", func() bool {
		st := s.Status()
		return st.Detail.AttemptState == "terminal" && st.Cleanup != "pending"
	})
	return evidenceOf(s)
}

// stationEvidence is what these journeys look at.
type stationEvidence struct {
	Process struct {
		PID  int
		Exit struct {
			Code   *int
			Signal string
		}
	}
	Stop struct {
		Reason     string
		SignalPath []struct{ Target, Signal, Result string }
		Cleanup    struct {
			Result string
			Left   []any
		}
	}
	Loopback struct {
		Checks   int
		Findings []struct {
			Protocol, Address, Program string
			Breach                     bool
		}
	}
	Logs struct{ Bytes, Dropped int64 }
}

func evidenceOf(s *stationrig.Station) (e stationEvidence) {
	s.Helper()
	if err := json.Unmarshal(s.Evidence(), &e); err != nil {
		s.Fatalf("%v", err)
	}
	return e
}

// Every way in which the harness can misbehave, by itself, under a real stationd: what
// becomes of the attempt, and what evidence says.
//
// Proves station 17.Z3
func TestStation_Misbehaviour(t *testing.T) {
	t.Parallel()
	h := newHarnessStation(t, stationrig.Options{})
	t.Run("ends", func(t *testing.T) {
		for name, tc := range map[string]struct {
			flags  []string
			more   stationrig.Spec
			reason string
			code   int // of the daemon; -1: it did not end by itself
			listen string
		}{
			"wide":           {[]string{"-host", "0.0.0.0"}, nil, "loopback_violation", -1, ":"},
			"wide six":       {[]string{"-host", "::"}, nil, "loopback_violation", -1, ":"},
			"a second port":  {[]string{"-also", "0.0.0.0:9999"}, nil, "loopback_violation", -1, ":9999"},
			"a child's port": {[]string{"-children", "fork", "-child-listen", "0.0.0.0:9998"}, nil, "loopback_violation", -1, ":9998"},
			"another port": {[]string{"-bind", "7171"}, stationrig.Spec{"readiness": map[string]any{"http_path": "/health", "timeoutMs": 2000}},
				"not_ready", -1, ""},
			"ends by itself": {[]string{"-exit-after", "1s", "-exit", "3"}, nil, "daemon_exited", 3, ""},
			"ends well":      {[]string{"-exit-after", "1s"}, nil, "daemon_exited", 0, ""},
		} {
			t.Run(name, func(t *testing.T) {
				h := h.in(t)
				s := h.begin(h.with(tc.more, tc.flags...))
				e := ended(s)
				if e.Stop.Reason != tc.reason || e.Stop.Cleanup.Result == "failed" || len(e.Stop.Cleanup.Left) > 0 {
					t.Errorf("it ended so: %+v", e.Stop)
				}
				if tc.code >= 0 && (e.Process.Exit.Code == nil || *e.Process.Exit.Code != tc.code) {
					t.Errorf("exit %+v, want %d", e.Process.Exit, tc.code)
				}
				if tc.listen != "" && !breach(e, tc.listen) {
					t.Errorf("findings %+v, want one of %s", e.Loopback.Findings, tc.listen)
				}
				s.Verify()
			})
		}
	})
	t.Run("lives", func(t *testing.T) {
		for name, tc := range map[string]struct {
			flags  []string
			look   func(*testing.T, stationrig.Client)
			code   int  // after TERM; -1: it had to be killed
			forced bool // SIGKILL was needed
		}{
			"late":      {[]string{"-ready-after", "2s"}, nil, 0, false},
			"own code":  {[]string{"-term-exit", "7"}, nil, 7, false},
			"deaf":      {[]string{"-deaf"}, nil, -1, true},
			"children":  {[]string{"-deaf", "-children", "plain,setsid,fork,stopped,respawn"}, nil, -1, true},
			"datagrams": {[]string{"-udp", "0.0.0.0:5353"}, nil, 0, false},
			"over HTTP": {nil, misbehavesOverHTTP, 0, false},
		} {
			t.Run(name, func(t *testing.T) {
				h := h.in(t)
				s := h.Start(h.with(nil, tc.flags...))
				space, err := stationrig.Namespace(s.Status().Detail.DaemonPID)
				if err != nil {
					t.Fatal(err)
				}
				if tc.look != nil {
					tc.look(t, s.Client(strings.ReplaceAll(name, " ", "-")))
				}
				begin := time.Now()
				s.End()
				if took := time.Since(begin); !tc.forced && took > 8*time.Second {
					t.Errorf("the stop took %s", took)
				}
				if left := stationrig.Members(space); len(left) > 0 {
					t.Errorf("%d processes are left", len(left))
				}
				e := evidenceOf(s)
				killed := strings.Contains(fmt.Sprint(e.Stop.SignalPath), "SIGKILL")
				if e.Stop.Reason != "operator_stop" || killed != tc.forced || tc.code >= 0 && (e.Process.Exit.Code == nil || *e.Process.Exit.Code != tc.code) {
					t.Errorf("stop %+v, exit %+v", e.Stop, e.Process.Exit)
				}
				if name == "datagrams" && (len(e.Loopback.Findings) != 1 || e.Loopback.Findings[0].Breach) {
					t.Errorf("findings %+v", e.Loopback.Findings)
				}
			})
		}
	})
	t.Run("leaves", func(t *testing.T) { leaves(t, h.in(t)) })
	t.Run("talks", func(t *testing.T) { talks(t, h.in(t)) })
}

func digest(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func breach(e stationEvidence, listen string) bool {
	for _, f := range e.Loopback.Findings {
		if f.Breach && strings.Contains(f.Address, listen) {
			return true
		}
	}
	return false
}

// misbehavesOverHTTP asks for everything that a gate must not let pass.
func misbehavesOverHTTP(t *testing.T, c stationrig.Client) {
	for _, tc := range []struct {
		target string
		status int
		body   string
	}{
		{"/cookies", 200, "<script>"},
		{"/interim", 200, "body"},
		{"/redirect?to=/health", 302, ""},
		{"/redirect?to=http://evil.test/", 502, "redirect_outside"},
		{"/status?code=401", 502, "daemon_auth_failed"},
		{"/raw?text=nonsense", 502, "daemon_unreachable"},
		{"/slow?for=300ms", 200, `"ok":true`},
		{"/events?count=1&size=2000000", 200, "event_too_large"},
		{"/events?count=3&every=50ms", 200, "id: 3\ndata: x\n\n"},
	} {
		a := c.Do("GET", tc.target, "")
		if a.Status != tc.status || !bytes.Contains(a.Body, []byte(tc.body)) {
			t.Errorf("%s: %d %s, want %d %s", tc.target, a.Status, a.Text(300), tc.status, tc.body)
		}
		for _, name := range []string{"set-cookie", "access-control-", "server:", "www-authenticate", "alt-svc", "link:", "evil.test"} {
			if strings.Contains(strings.ToLower(a.Headers), name) {
				t.Errorf("%s: %s in\n%s", tc.target, name, a.Headers)
			}
		}
	}
	if a, err := c.Try(t.Context(), "GET", "/cut", ""); err == nil {
		t.Errorf("/cut: a cut answer looks whole: %d", a.Status)
	}
}

// leaves asks the harness to end while a stream is open whose last event is not
// finished.
func leaves(t *testing.T, h *harnessStation) {
	s := h.Start(h.with(nil))
	c := s.Client("leaves")
	stream := c.Stream("/events?count=2&every=100ms&half=1")
	stream.Until("id: 1")
	c.Must("POST", "/exit?code=5", "{}")
	rest := stream.Rest()
	if len(rest) != 1 || !strings.Contains(rest[0], `"reason":"daemon_exited"`) || !strings.Contains(rest[0], `"final":true`) {
		t.Errorf("the stream ended with %q", rest)
	}
	if e := ended(s); e.Stop.Reason != "daemon_exited" || e.Process.Exit.Code == nil || *e.Process.Exit.Code != 5 {
		t.Errorf("stop %+v, exit %+v", e.Stop, e.Process.Exit)
	}
}

// talks runs a harness that prints its own credential, in two pieces with a pause in
// between, and one that prints without end.
func talks(t *testing.T, h *harnessStation) {
	s := h.Start(h.with(stationrig.Spec{
		"daemonAuth": map[string]any{"mode": "env:HARNESS_CREDENTIAL", "inject": "basic:agent"},
	}, "-guard", "basic:agent", "-guard-env", "HARNESS_CREDENTIAL", "-print", "it says ", "-print-env", "HARNESS_CREDENTIAL", "-repeat", "3", "-every", "300ms"))
	c := s.Client("talks")
	var seen struct{ Header map[string][]string }
	if err := json.Unmarshal(c.Must("GET", "/headers", "").Body, &seen); err != nil || len(seen.Header["Authorization"]) != 1 {
		t.Fatalf("%v, %v", err, seen)
	}
	s.Until("it has said it three times", func() bool { return bytes.Count(s.Run("logs", s.ID), []byte("it says")) >= 3 })
	var environment map[string]string
	if err := json.Unmarshal(c.Must("GET", "/environment", "").Body, &environment); err != nil {
		t.Fatal(err)
	}
	credential := environment["HARNESS_CREDENTIAL"]
	if len(credential) < 40 {
		t.Fatalf("the daemon has the credential %q", credential)
	}
	s.End()
	for what, text := range map[string][]byte{"logs": s.Run("logs", s.ID), "evidence": s.Evidence()} {
		if bytes.Contains(text, []byte(credential)) || bytes.Contains(text, []byte(credential[:len(credential)/2])) {
			t.Errorf("the credential is in %s", what)
		}
	}

	const flood = 30 << 20
	s = h.Start(h.with(nil, "-flood", fmt.Sprint(flood)))
	s.Until("it has printed all", func() bool { return bytes.Contains(s.Run("logs", s.ID), []byte("flood")) })
	s.End()
	e := evidenceOf(s)
	if e.Logs.Bytes+e.Logs.Dropped < 1<<20 {
		t.Errorf("logs %+v", e.Logs)
	}
	if log := s.Run("logs", s.ID); len(log) > 9<<20 {
		t.Errorf("the log has %d bytes", len(log))
	}
	var none *stationrig.Failure
	if _, err := s.Try(t.Context(), "status", "stn_nobody"); !errors.As(err, &none) || none.Status != 1 {
		t.Errorf("an unknown station: %v", err)
	}
}

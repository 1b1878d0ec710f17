package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"drawbridge/scripts/internal/demostation"
	"drawbridge/scripts/internal/rig"
	"drawbridge/scripts/internal/stationrig"
	"drawbridge/shared/testkit"
)

// stationBin puts stationd and its shim side by side, as scripts/build does, where
// every user may execute them.
func stationBin(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, program := range map[string]string{"stationd": testkit.BuildProgram(t, "stationd"), "station-shim": testkit.BuildStatic(t, "stationd/shim")} {
		copyProgram(t, program, filepath.Join(dir, name))
	}
	open(t, dir, os.TempDir())
	return dir
}

// open lets every user into dir and what it is in, below top. A Store that this
// process has opened made its umask 077.
func open(t *testing.T, dir, top string) {
	t.Helper()
	for ; dir != top; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

func copyProgram(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err == nil {
		err = os.Chmod(to, 0o755) // whatever the umask is
	}
	if err != nil {
		t.Fatal(err)
	}
}

// needHarness skips where scripts/setup has not run; in CI that is a failure.
func needHarness(t *testing.T, name string) {
	t.Helper()
	if _, err := rig.FindHarness(name); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// The story of scripts/demo station with both public harnesses: a client with a ticket
// speaks to the harness through the gate; with sandbox-agent it follows events with
// ids and goes on after one of them, with opencode the gate puts the harness's own
// password into each request. Strangers, and the harness itself on its way out, are
// refused. After the stop no process is left and the evidence is whole.
//
// Proves station 17.Z1 and station 17.Z2
func TestStation_Demo(t *testing.T) {
	t.Parallel()
	bin := stationBin(t)
	for _, harness := range []string{rig.SandboxAgent, rig.OpenCode} {
		t.Run(harness, func(t *testing.T) {
			needHarness(t, harness)
			demoStation(t, demostation.Options{Bin: bin, Harness: harness})
		})
	}
}

// The same as an ordinary user, without any privilege: the namespaces are those of a
// user namespace.
//
// Proves station 17.Z5
func TestStation_OrdinaryUser(t *testing.T) {
	t.Parallel()
	needHarness(t, rig.SandboxAgent)
	o := demostation.Options{Bin: stationBin(t), Harness: rig.SandboxAgent}
	if os.Getuid() == 0 {
		o.User = &syscall.Credential{Uid: stationrig.Nobody, Gid: stationrig.Nobody}
	}
	demoStation(t, o)
}

func demoStation(t *testing.T, o demostation.Options) {
	t.Helper()
	out := demostation.Run(t, t.Logf, o)
	if len(out.Left) > 0 || out.Most < 2 {
		t.Errorf("%d processes before the stop, %v left", out.Most, out.Left)
	}
	if !strings.Contains(out.Last, `"reason":"operator_stop"`) || stationrig.ID(out.Last) != "" {
		t.Errorf("the last event: %s", out.Last)
	}
	for i, event := range out.Events {
		if id := stationrig.ID(event); o.Harness == rig.SandboxAgent && id == "" {
			t.Errorf("event %d has no id: %s", i, event)
		}
	}
	wholeEvidence(t, out.Evidence, o)
}

// wholeEvidence checks what a document of an ordinary run must hold.
func wholeEvidence(t *testing.T, document []byte, o demostation.Options) {
	t.Helper()
	var d struct {
		Schema    string
		StationID string
		Attempt   int
		LeaseID   string
		Command   struct {
			Mode, Hash string
			Redacted   []string
		}
		Grounding struct{ SHA, Branch, TreeDigest string }
		Harness   struct{ Name, SHA256 string }
		Process   struct {
			Pid         int
			UID         int
			Containment string
			Exit        map[string]any
		}
		Stop struct {
			Reason     string
			SignalPath []any
			Cleanup    struct{ Result string }
		}
		Egress struct {
			Profile, Enforcement string
			Allowed, Denied      []any
		}
		AgentRuntime struct {
			Bridge struct {
				Requests, Streams int
				Refused           map[string]int
			}
			Tickets []struct{ TicketID, PathPrefix string }
		}
		ModelAccess any
	}
	if err := json.Unmarshal(document, &d); err != nil {
		t.Fatal(err)
	}
	program, err := rig.FindHarness(o.Harness)
	if err != nil {
		t.Fatal(err)
	}
	bridge, uid := d.AgentRuntime.Bridge, os.Getuid()
	if uid == 0 {
		uid = stationrig.Nobody
	}
	if d.Schema != "drawbridge/station-evidence" || d.Attempt != 1 || d.Command.Mode != "argv" || len(d.Command.Hash) != 64 ||
		len(d.Grounding.SHA) != 40 || d.Grounding.Branch != "main" || d.Harness.SHA256 != program.SHA256 ||
		d.Process.Pid == 0 || d.Process.UID != uid || d.Process.Containment == "" || len(d.Process.Exit) == 0 ||
		d.Stop.Reason != "operator_stop" || len(d.Stop.SignalPath) == 0 || d.Stop.Cleanup.Result == "failed" ||
		d.Egress.Enforcement != "netns" || len(d.Egress.Allowed) != 0 || len(d.Egress.Denied) == 0 ||
		bridge.Requests < 5 || bridge.Streams < 1 || bridge.Refused["path_outside_prefix"]+bridge.Refused["unauthorized"] == 0 ||
		len(d.AgentRuntime.Tickets) != 1 || d.ModelAccess != nil {
		t.Errorf("the evidence is not whole: %+v\n%s", d, document)
	}
}

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/scripts/internal/stationrig"
	"drawbridge/shared/testkit"
)

// stationd's units under a real systemd, which is the first process of namespaces of
// its own: the first request starts stationd through the socket unit, READY makes it
// active, a station's processes are in a group below the service's, and systemctl stop
// ends all of it well within the unit's time, with the evidence that says so.
//
// Proves station 17.Z7
func TestSystemd_Units(t *testing.T) {
	if os.Getenv("DRAWBRIDGE_LONG") == "" {
		t.Skip("long: boots systemd")
	}
	if os.Getuid() != 0 {
		t.Skip("long: booting systemd needs root")
	}
	testkit.Need(t, "/lib/systemd/systemd", "systemctl", "unshare", "nsenter", "curl")
	s := boot(t)
	s.run("systemctl", "start", "stationd.socket")
	if state := s.show("stationd.service", "ActiveState"); state != "inactive" {
		t.Errorf("before the first request stationd is %s", state)
	}
	s.run("curl", "-s", "-m", "30", "-o", "/dev/null", "http://127.0.0.1:7117/") // systemd holds it until stationd takes it
	s.eventually("stationd is active", func() bool { return s.show("stationd.service", "ActiveState") == "active" })
	if status := s.show("stationd.service", "StatusText"); status == "" {
		t.Error("stationd has not said what it does")
	}

	var st struct {
		StationID string
		Bridge    struct{ URL string }
	}
	s.ask(&st, "start", "-f", "/opt/spec.json", "-wait")
	if !strings.HasPrefix(st.Bridge.URL, "http://127.0.0.1:7117/") {
		t.Errorf("the bridge is at %s", st.Bridge.URL)
	}
	var status stationrig.Status
	s.ask(&status, "status", st.StationID)
	group := s.run("cat", fmt.Sprintf("/proc/%d/cgroup", status.Detail.DaemonPID))
	if !strings.Contains(group, "stationd.service/") {
		t.Errorf("the daemon is in the groups\n%s", group)
	}

	begin := time.Now()
	s.run("systemctl", "stop", "stationd.socket", "stationd.service")
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("the stop took %s", took)
	}
	if result := s.show("stationd.service", "Result"); result != "success" {
		t.Errorf("the service ended with %s", result)
	}
	if left := s.run("sh", "-c", `grep -l testharness /proc/[0-9]*/comm || true`); strings.TrimSpace(left) != "" {
		t.Errorf("the daemon is left: %s", left)
	}

	s.run("systemctl", "start", "stationd.service")
	s.ask(&status, "status", st.StationID)
	if status.StopReason != "service_shutdown" || status.Cleanup != "done" || status.LeaseState != "released" {
		t.Errorf("after the stop: %+v", status)
	}
	s.stationd("evidence", "verify", st.StationID)
	s.run("systemctl", "stop", "stationd.service")
}

// machine is a booted systemd.
type machine struct {
	*testing.T
	dir string
	pid int // of systemd, as this machine sees it
}

func boot(t *testing.T) *machine {
	t.Helper()
	m := &machine{T: t, dir: testkit.RuntimeDir(t)}
	before := groupsOf(t)
	t.Cleanup(func() {
		if after := groupsOf(t); after != before {
			t.Errorf("processes of this machine were moved to other groups:\n%s", after)
		}
	})
	m.units()
	bin := stationBin(t)
	for _, name := range []string{"stationd", "station-shim"} {
		copyProgram(t, filepath.Join(bin, name), m.at("work", name))
	}
	harness := m.at("work", "testharness")
	copyProgram(t, testkit.BuildProgram(t, "stationd/internal/testharness", "netgo", "osusergo"), harness)
	spec, err := json.Marshal(map[string]any{
		"name": "unit", "profile": "agent", "command": map[string]any{"argv": []string{"testharness", "-port", "{port}", "-children", "setsid,fork", "-deaf"}},
		"harness":   map[string]any{"name": "testharness", "artifact": map[string]any{"path": "/opt/testharness", "sha256": digest(t, harness)}},
		"readiness": map[string]any{"http_path": "/health"}, "bridge": map[string]any{}, "graceMs": 1000, "ttl": "10m",
		"run_as": map[string]any{"uid": stationrig.Nobody, "gid": stationrig.Nobody},
	})
	if err == nil {
		err = os.WriteFile(m.at("work", "spec.json"), spec, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	return m
}

func (m *machine) at(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

// units copies the project's, and says in a drop-in where the programs are here.
func (m *machine) units() {
	m.Helper()
	const dropIn = "[Service]\nExecStart=\nExecStart=/opt/stationd serve -log-format text\nStandardOutput=append:/opt/log\nStandardError=append:/opt/log\n"
	for _, dir := range []string{"work", "units", "units/stationd.service.d"} {
		if err := os.Mkdir(m.at(dir), 0o755); err != nil {
			m.Fatal(err)
		}
	}
	for _, name := range []string{"stationd.service", "stationd.socket"} {
		copyProgram(m.T, filepath.Join(root, "scripts", "units", name), m.at("units", name))
	}
	if err := os.WriteFile(m.at("units", "stationd.service.d", "test.conf"), []byte(dropIn), 0o644); err != nil {
		m.Fatal(err)
	}
}

// start boots, and ends the namespaces with the test.
func (m *machine) start() {
	m.Helper()
	var said bytes.Buffer
	cmd := exec.Command("sh", filepath.Join("testdata", "systemd", "boot.sh"), m.dir)
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = drainWait
	if err := cmd.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		_ = cmd.Process.Kill() // unshare; its child dies with it, and so does all that is below
		_ = cmd.Wait()
		removeGroups(m.T, cmd.Process.Pid)
		if m.Failed() {
			log, _ := os.ReadFile(m.at("work", "log"))
			m.Logf("systemd: %s\nstationd: %s", said.String(), log)
		}
	})
	m.eventually("systemd has started", func() bool {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", cmd.Process.Pid))
		pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
		if err != nil {
			return false
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		m.pid = pid
		return strings.TrimSpace(string(name)) == "systemd"
	})
	m.eventually("basic.target is reached", func() bool {
		out, err := m.inside("systemctl", "is-active", "basic.target")
		return err == nil && strings.TrimSpace(out) == "active"
	})
}

// inside runs a command in systemd's namespaces.
func (m *machine) inside(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(m.Context(), callWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--target", strconv.Itoa(m.pid), "--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net"}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/", "STATIOND_RUNTIME_DIR=/run/drawbridge"}
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	return out.String(), nil
}

func (m *machine) run(args ...string) string {
	m.Helper()
	out, err := m.inside(args...)
	if err != nil {
		m.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (m *machine) stationd(args ...string) string {
	return m.run(append([]string{"/opt/stationd"}, args...)...)
}

func (m *machine) ask(v any, args ...string) {
	m.Helper()
	if err := json.Unmarshal([]byte(m.stationd(append(args, "-json")...)), v); err != nil {
		m.Fatal(err)
	}
}

// show is a property of a unit.
func (m *machine) show(unit, property string) string {
	m.Helper()
	return strings.TrimSpace(m.run("systemctl", "show", "--value", "--property", property, unit))
}

func (m *machine) eventually(what string, ok func() bool) {
	m.Helper()
	testkit.Eventually(m.T, callWait, ok, what)
}

// groupsOf are the groups of this process and of the machine's first.
func groupsOf(t *testing.T) string {
	t.Helper()
	first, err := os.ReadFile("/proc/1/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	return string(first) + string(own)
}

// removeGroups takes away the groups that boot.sh made, which are empty by and by.
func removeGroups(t *testing.T, pid int) {
	t.Helper()
	tops, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/*/drawbridge-%d", pid))
	more, _ := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/drawbridge-%d", pid))
	for _, top := range append(tops, more...) {
		testkit.EventuallyNil(t, callWait, func() error {
			var dirs []string
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			slices.Reverse(dirs) // what is below comes first
			for _, dir := range dirs {
				if err := syscall.Rmdir(dir); err != nil {
					return fmt.Errorf("remove %s: %w", dir, err)
				}
			}
			return nil
		})
	}
}

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/scripts/internal/rig"
	"drawbridge/scripts/internal/stationrig"
	"drawbridge/shared/process"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

// Proves station 17.Z6: a bridge that was started with --with stationd is killed by
// SIGKILL, and no daemon is left, no stationd, and one evidence document.
func TestStation_BridgeKilled(t *testing.T) {
	t.Parallel()
	bin, dir := stationBin(t), testkit.RuntimeDir(t)
	built, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bridge", "watchd", "outboxd", "inbox"} {
		copyProgram(t, filepath.Join(built, name), filepath.Join(bin, name))
	}
	harness := filepath.Join(bin, "testharness")
	copyProgram(t, testkit.BuildStatic(t, "stationd/internal/testharness"), harness)
	storeDir, runDir := filepath.Join(dir, "store"), filepath.Join(dir, "run")
	h, err := demohost.Start(t.Context(), demohost.Options{
		Bridge: filepath.Join(bin, "bridge"), Inbox: filepath.Join(bin, "inbox"), Dir: filepath.Join(dir, "host"), Session: "one",
		StoreDir: storeDir, RuntimeDir: runDir, Home: filepath.Join(dir, "home"), TmuxSockets: []string{filepath.Join(dir, "no-tmux")},
		Args: []string{"--with", "stationd"},
	})
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	t.Cleanup(func() {
		if !killed {
			_ = h.Stop()
		}
	})
	testkit.Eventually(t, callbackWait, func() bool {
		r, err := h.Call(t.Context(), "list", nil)
		if err != nil {
			t.Fatal(err)
		}
		states, _ := r.Data["siblings"].(map[string]any)
		return states["stationd"] == "up"
	}, "stationd is up")

	ask := func(into any, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "stationd"), append(args, "-json", "-runtime-dir", runDir)...)
		cmd.Env = []string{"HOME=" + dir}
		var said bytes.Buffer
		cmd.Stderr = &said
		out, err := cmd.Output()
		if err == nil {
			err = json.Unmarshal(out, into)
		}
		if err != nil {
			t.Fatalf("stationd %v: %v\n%s", args, err, said.String())
		}
	}
	spec := map[string]any{
		"name": "z6", "profile": "agent", "readiness": map[string]any{"http_path": "/health"}, "bridge": map[string]any{}, "graceMs": 1000,
		"command": map[string]any{"argv": []string{"testharness", "-port", "{port}", "-deaf", "-children", "setsid,fork", "-life", "10m"}},
		"harness": map[string]any{"name": "testharness", "artifact": map[string]any{"path": harness, "sha256": digest(t, harness)}},
	}
	if os.Getuid() == 0 {
		spec["run_as"] = map[string]any{"uid": stationrig.Nobody, "gid": stationrig.Nobody}
	}
	data, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "spec.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	var started struct{ StationID string }
	ask(&started, "start", "-wait", "-f", filepath.Join(dir, "spec.json"))
	var st stationrig.Status
	ask(&st, "status", started.StationID)
	living := rig.Members(dir) // by their HOME
	if len(living) < 4 {
		t.Fatalf("bridge and three siblings are not all there: %v", living)
	}
	for _, pid := range []int{st.Detail.ShimPID, st.Detail.DaemonPID} {
		inc, err := process.Of(pid)
		if err != nil {
			t.Fatal(err)
		}
		living = append(living, inc)
	}

	h.Kill()
	killed = true
	testkit.Eventually(t, callbackWait, func() bool {
		for _, inc := range append(living, rig.Members(dir)...) {
			if inc.Alive() {
				return false
			}
		}
		return true
	}, "nothing is left")
	s, err := store.Open(t.Context(), store.Options{Dir: storeDir, Program: "test", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, err := s.StationAttempt(t.Context(), started.StationID, 1)
	if err != nil || a.State != store.AttemptTerminal || a.StopReason != store.StopShutdown {
		t.Errorf("got %+v, %v", a, err)
	}
	if v, err := s.VerifyStation(t.Context(), started.StationID); err != nil || v.Documents != 1 || len(v.Flaws) != 0 {
		t.Errorf("got %+v, %v", v, err)
	}
}

package hostbridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/bridge/internal/hostbridge"
	"drawbridge/shared/profile"
	"drawbridge/shared/service"
)

const (
	sessionValue = "CANARY-trusted-session"
	tokenValue   = "CANARY-callback-credential"
)

// writeProfile gives the path of a usable Profile whose executable exists;
// change may alter the document.
func writeProfile(t *testing.T, change func(map[string]any)) string {
	t.Helper()
	dir := t.TempDir()
	callback := filepath.Join(dir, "callback")
	if err := os.WriteFile(callback, []byte("#!/usr/bin/python3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(profile.Starter(), &doc); err != nil {
		t.Fatal(err)
	}
	doc["callback"].(map[string]any)["executable"] = callback
	if change != nil {
		change(doc)
	}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "profile.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What stops host-bridge before it serves: the exit status, the code's words on
// stderr, and nothing on stdout.
//
// Proves host-profile 15.32 and 15.33 for host-bridge.
func TestHostBridge_Refuses(t *testing.T) {
	good := writeProfile(t, nil)
	routeBound := writeProfile(t, func(doc map[string]any) {
		doc["controllerContext"].(map[string]any)["scope"] = "route_bound_v1"
	})
	noExecutable := writeProfile(t, func(doc map[string]any) {
		doc["callback"].(map[string]any)["executable"] = "/usr/local/bin/there-is-no-such-agent"
	})
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(open, "foreign"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"profile":"`+good+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	three := []string{"--profile", good, "--host", "my-agent", "--host-version", "1.8.0"}
	tests := []struct {
		name string
		args []string
		env  map[string]string
		exit int
		want string // on stderr
	}{
		{"no profile", []string{"--host", "my-agent", "--host-version", "1.8.0"}, nil, 2, "--profile is missing"},
		{"no host", []string{"--profile", good, "--host-version", "1.8.0"}, nil, 2, "--host is missing"},
		{"no version", []string{"--profile", good, "--host", "my-agent"}, nil, 2, "--host-version is missing"},
		{"profile twice", append([]string{"--profile", good}, three...), nil, 2, "given twice"},
		{"argument", append([]string{"x"}, three...), nil, 2, "unexpected argument"},
		{"unknown flag", append([]string{"--nothing"}, three...), nil, 2, "nothing"},
		{"profile from the environment", three[2:], map[string]string{"BRIDGE_PROFILE": good}, 2, "command line only"},
		{"host from the environment", append([]string{"--host-version", "1.8.0"}, three[:2]...), map[string]string{"BRIDGE_HOST": "my-agent"}, 2, "command line only"},
		{"profile from a file", append([]string{"--config", config}, three[2:]...), nil, 2, "command line only"},
		{"other siblings", append([]string{"--with", "sshd"}, three...), nil, 2, "sshd"},
		{"policy", append([]string{"--approval-policy", "/there/is/none"}, three...), nil, 2, "approval policy"},
		{"untested", append([]string{"--untested-agents", "some"}, three...), nil, 2, "untested-agents"},
		{"control", append([]string{"--codex-control", "maybe"}, three...), nil, 2, "codex-control"},
		{"minutes", append([]string{"--hard-minutes", "0"}, three...), nil, 2, "hard-minutes"},
		{"endless minutes", append([]string{"--inactivity-minutes", "NaN"}, three...), nil, 2, "inactivity-minutes"},
		{"no such profile", []string{"--profile", "/no/such.json", "--host", "my-agent", "--host-version", "1.8.0"}, nil, 1, "host profile"},
		{"other host", []string{"--profile", good, "--host", "other", "--host-version", "1.8.0"}, nil, 1, "host profile"},
		{"other version", []string{"--profile", good, "--host", "my-agent", "--host-version", "2.0.0"}, nil, 1, "host profile"},
		{"no session", three, map[string]string{"MY_AGENT_SESSION_ID": ""}, 1, "MY_AGENT_SESSION_ID"},
		{"padded session", three, map[string]string{"MY_AGENT_SESSION_ID": sessionValue + " "}, 1, "MY_AGENT_SESSION_ID"},
		{"long session", three, map[string]string{"MY_AGENT_SESSION_ID": strings.Repeat(sessionValue, 50)}, 1, "MY_AGENT_SESSION_ID"},
		{"route bound", []string{"--profile", routeBound, "--host", "my-agent", "--host-version", "1.8.0"}, nil, 1, "route_bound_v1"},
		{"no executable", []string{"--profile", noExecutable, "--host", "my-agent", "--host-version", "1.8.0"}, nil, 69, "callback.executable"},
		{"foreign Store", append([]string{"--store-dir", open}, three...), nil, 73, "Store"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("MY_AGENT_SESSION_ID", sessionValue)
			t.Setenv("MY_AGENT_TOKEN", tokenValue)
			t.Setenv("BRIDGE_STORE_DIR", filepath.Join(t.TempDir(), "store"))
			t.Setenv("BRIDGE_RUNTIME_DIR", filepath.Join(t.TempDir(), "run"))
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			var stdout, stderr bytes.Buffer
			bridge := service.Program{
				Name: "bridge", Stdout: &stdout, Stderr: &stderr,
				Commands: []*service.Command{hostbridge.Command(strings.NewReader(""), &stdout, &stderr)},
			}
			got := bridge.Main(context.Background(), append([]string{"host-bridge"}, tt.args...))
			if got != tt.exit || !strings.Contains(stderr.String(), tt.want) {
				t.Errorf("exit %d, want %d and %q on stderr:\n%s", got, tt.exit, tt.want, &stderr)
			}
			if stdout.Len() > 0 {
				t.Errorf("stdout: %s", &stdout)
			}
			if strings.Contains(stderr.String(), "CANARY") {
				t.Errorf("a secret value on stderr: %s", &stderr)
			}
		})
	}
}

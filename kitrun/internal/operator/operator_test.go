package operator_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/operator"
	"drawbridge/shared/service"
)

// kitrun runs a command in this process.
func kitrun(t *testing.T, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	p := service.Program{Name: "kitrun", Plain: true, Stdout: &out, Stderr: &err, Commands: operator.Commands(&out, &err)}
	exit = p.Main(t.Context(), args)
	return exit, out.String(), err.String()
}

func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("HOME", dir)
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(dir, "no-engine.sock"))
	return dir
}

// What cannot work is refused before an engine is asked. Proves worker 17.19 in
// part: an empty label value is a usage error.
func TestCommands_Refused(t *testing.T) {
	capability := strings.Repeat("0a", 32)
	dir := files(t, map[string]string{
		"o.json": `{}`, "unknown.json": `{"shell":true}`, "not.json": `{`, "proxy.json": `{"providerProxy":{"baseUrl":"http://host.docker.internal:1","model":"m"}}`,
		"capability.json": `{"providerProxy":{"baseUrl":"http://host.docker.internal:1","model":"m","capability":"` + capability + `"}}`,
		"auth.json":       `{"OPENAI_API_KEY":"CANARY"}`, "cap": capability, "long": capability + "0", "upper": strings.ToUpper(capability),
		"grant.json": `{"base_url":"http://host.docker.internal:1","capability":"` + capability + `","model":"m"}`, "bad.json": `{"capability":"CANARY"}`,
		"open": capability, "big": strings.Repeat(capability, 2000), "empty": "", "receipt": "there",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.Chmod(at("open"), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("cap", at("link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(options string, more ...string) []string {
		return append([]string{"worker", "run", "--options", at(options), "--runtime-dir", at("run")}, more...)
	}
	for _, tc := range []struct {
		name string
		args []string
		exit int
		want string
	}{
		{"no options", []string{"worker", "run", "--auth-file", at("auth.json")}, 2, "--options is missing"},
		{"no capability", run("o.json"), 2, "exactly one of --auth-file and --capability-file"},
		{"both", run("o.json", "--auth-file", at("auth.json"), "--capability-file", at("cap")), 2, "exactly one of"},
		{"too many requests", run("o.json", "--auth-file", at("auth.json"), "--max-requests", "10001"), 2, "not 1 to 10000"},
		{"receipt exists", run("o.json", "--auth-file", at("auth.json"), "--receipt", at("receipt")), 1, "[output_exists]"},
		{"empty receipt", run("o.json", "--auth-file", at("auth.json"), "--receipt", ""), 2, "--receipt is empty"},
		{"empty listen", run("o.json", "--auth-file", at("auth.json"), "--broker-listen", ""), 2, "is empty"},
		{"argument", run("o.json", "--auth-file", at("auth.json"), "more"), 2, "unexpected argument"},
		{"options missing", run("none", "--auth-file", at("auth.json")), 2, "no such file"},
		{"options unknown member", run("unknown.json", "--auth-file", at("auth.json")), 1, "[option_invalid]"},
		{"options not JSON", run("not.json", "--auth-file", at("auth.json")), 1, "[option_invalid]"},
		{"options empty", run("o.json", "--auth-file", at("auth.json")), 1, "check worker option image"},
		{"proxy and credential", run("proxy.json", "--auth-file", at("auth.json")), 1, "a providerProxy of their own"},
		{"no credential", run("o.json", "--auth-file", at("none")), 1, "--auth-file " + at("none") + ": there is no such file [credential_unavailable]"},
		{"nowhere", run("o.json", "--capability-file", at("cap")), 1, "where the broker is"},
		{"capability in the options", run("capability.json", "--capability-file", at("cap")), 1, "the options file holds a capability"},
		{"capability long", run("proxy.json", "--capability-file", at("long")), 1, "[credential_unavailable]"},
		{"capability upper", run("proxy.json", "--capability-file", at("upper")), 1, "[credential_unavailable]"},
		{"capability empty", run("proxy.json", "--capability-file", at("empty")), 1, "[credential_unavailable]"},
		{"capability JSON", run("proxy.json", "--capability-file", at("bad.json")), 1, "[credential_unavailable]"},
		{"capability missing", run("proxy.json", "--capability-file", at("none")), 1, "[credential_unavailable]"},
		{"capability open", run("proxy.json", "--capability-file", at("open")), 1, "[credential_permissions]"},
		{"capability link", run("proxy.json", "--capability-file", at("link")), 1, "[credential_permissions]"},
		{"capability FIFO", run("proxy.json", "--capability-file", at("fifo")), 1, "[credential_permissions]"},
		{"capability big", run("proxy.json", "--capability-file", at("big")), 1, "[credential_unavailable]"},
		{"capability good", run("proxy.json", "--capability-file", at("cap")), 1, "check worker option image"},
		{"grant good", run("o.json", "--capability-file", at("grant.json")), 1, "check worker option image"},

		{"cancel nothing", []string{"worker", "cancel"}, 2, "exactly one of --run and --owner"},
		{"cancel empty", []string{"worker", "cancel", "--run", ""}, 2, "exactly one of --run and --owner"},
		{"cancel both", []string{"worker", "cancel", "--run", "r", "--owner", "0a0a0a0a-0a0a-0a0a-0a0a-0a0a0a0a0a0a"}, 2, "exactly one of --run and --owner"},
		{"cancel odd run", []string{"worker", "cancel", "--run", "a b"}, 2, "no run id"},
		{"cancel odd owner", []string{"worker", "cancel", "--owner", "me"}, 2, "no owner id"},
		{"cancel without engine", []string{"worker", "cancel", "--run", "r"}, 1, "[docker_unavailable]"},
		{"engine elsewhere", []string{"worker", "cancel", "--run", "r", "--docker-host", "tcp://127.0.0.1:1"}, 1, "[docker_unavailable]"},
		{"list without Store", []string{"worker", "list", "--store-dir", at("no-store")}, 1, "[store_unavailable]"},
		{"sweep without Store", []string{"worker", "sweep", "--store-dir", at("no-store")}, 1, "[store_unavailable]"},
		{"events missing", []string{"worker", "events", at("none")}, 2, "no such file"},
		{"events without file", []string{"worker", "events"}, 2, "1 needed"},
		{"events of nothing", []string{"worker", "events", at("empty")}, 1, "[events_invalid]"},

		{"inspect nothing", []string{"storage", "inspect"}, 2, "--root is given 0 times"},
		{"inspect below zero", []string{"storage", "inspect", "--root", dir, "--max-bytes", "-1"}, 2, "max_bytes is -1"},
		{"inspect missing", []string{"storage", "inspect", "--root", at("none")}, 1, "[storage_inspector_unavailable]"},
		{"no such command", []string{"worker", "start"}, 2, "unknown command"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			exit, stdout, stderr := kitrun(t, tc.args...)
			if exit != tc.exit || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit %d, want %d and %q on stderr:\n%s", exit, tc.exit, tc.want, stderr)
			}
			if stdout != "" {
				t.Errorf("stdout: %s", stdout)
			}
			if strings.Contains(stderr, "CANARY") || strings.Contains(stderr, capability) {
				t.Errorf("a secret is shown: %s", stderr)
			}
		})
	}
}

// Settings that decide whom a run trusts come from the command line alone.
func TestRun_NotFromTheEnvironment(t *testing.T) {
	dir := files(t, map[string]string{"o.json": "{}", "auth.json": "{}"})
	for _, name := range []string{"OPTIONS", "AUTH_FILE", "CAPABILITY_FILE"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KITRUN_"+name, filepath.Join(dir, "o.json"))
			exit, _, stderr := kitrun(t, "worker", "run")
			if exit != 2 || !strings.Contains(stderr, "command line only") {
				t.Errorf("exit %d: %s", exit, stderr)
			}
		})
	}
}

// The error of a command with -json is an object on stdout as well.
func TestRun_ErrorJSON(t *testing.T) {
	dir := files(t, map[string]string{"o.json": "{}", "auth.json": "{}"})
	exit, stdout, _ := kitrun(t, "worker", "run", "-json", "--options", filepath.Join(dir, "o.json"), "--auth-file", filepath.Join(dir, "auth.json"),
		"--runtime-dir", filepath.Join(dir, "run"))
	var o map[string]string
	if err := json.Unmarshal([]byte(stdout), &o); err != nil || exit != 1 || o["error"] != "option_invalid" {
		t.Errorf("exit %d: %s, %v", exit, stdout, err)
	}
}

func TestInspect(t *testing.T) {
	dir := files(t, map[string]string{"a": "1234567890"})
	exit, stdout, stderr := kitrun(t, "storage", "inspect", "--root", dir, "--min-free-bytes", "0")
	if exit != 0 || !strings.HasPrefix(stdout, `{"allowed":true,"reason":null,"observed_bytes":10,"observed_entries":1,"largest_file_bytes":10,`) || stderr != "" {
		t.Errorf("exit %d: %s %s", exit, stdout, stderr)
	}
	exit, stdout, stderr = kitrun(t, "storage", "inspect", "--min-free-bytes", "0", "--max-bytes", "9", "--root", dir, "--root", dir)
	if exit != 1 || !strings.HasPrefix(stdout, `{"allowed":false,"reason":"writable_byte_budget","observed_bytes":10,`) || stderr != "" {
		t.Errorf("exit %d: %s %s", exit, stdout, stderr)
	}
	t.Chdir(dir)
	if exit, stdout, _ = kitrun(t, "storage", "inspect", "--min-free-bytes", "0", "--root", "."); exit != 0 || !strings.Contains(stdout, `"observed_bytes":10`) {
		t.Errorf("relative: exit %d: %s", exit, stdout)
	}
}

func TestEvents(t *testing.T) {
	dir := files(t, map[string]string{"e.jsonl": `{"type":"thread.started","thread_id":"t1"}
{"type":"turn.started"}
{"type":"item.completed","item":{"type":"agent_message","text":"done"}}
{"type":"turn.completed","usage":{"input_tokens":3,"output_tokens":4}}
`})
	exit, stdout, _ := kitrun(t, "worker", "events", filepath.Join(dir, "e.jsonl"))
	const want = `{
  "provider_thread_id": "t1",
  "final": "done",
  "usage": {
    "complete": true,
    "source": "codex-turn-completed",
    "input_tokens": 3,
    "output_tokens": 4,
    "cached_input_tokens": null
  },
  "events": 4
}
`
	if exit != 0 || stdout != want {
		t.Errorf("exit %d: %s", exit, stdout)
	}
}

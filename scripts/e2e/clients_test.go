package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"drawbridge/scripts/internal/demohost"
	"drawbridge/scripts/internal/rig"
)

// clientWait bounds one run of a foreign client.
const clientWait = 2 * time.Minute

// The official MCP Inspector lists the tools, finds no fault in their schemas,
// and calls one.
func TestClients_Inspector(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	cmd, err := demohost.Command(w.hostOptions("inspector"))
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, kv := range cmd.Env {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	config, err := json.Marshal(args{"mcpServers": args{"drawbridge": args{"type": "stdio", "command": cmd.Path, "args": cmd.Args[1:], "env": env}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "servers.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	node, modules := nodeTools(t)
	inspect := func(more ...string) []byte {
		t.Helper()
		return output(t, w, node, append([]string{
			filepath.Join(modules, "@modelcontextprotocol", "inspector", "clients", "launcher", "build", "index.js"),
			"--cli", "--config", file, "--server", "drawbridge", "--format", "json",
		}, more...)...)
	}
	var listed struct {
		Tools []struct{ Name string }
	}
	decode(t, payload(inspect("--method", "tools/list", "--strict")), &listed)
	if got := len(listed.Tools); got != 19 {
		t.Errorf("the Inspector lists %d tools, want 19", got)
	}
	var called struct {
		StructuredContent args
	}
	decode(t, payload(inspect("--method", "tools/call", "--tool-name", "agent_knock_knock_list")), &called)
	requireRow(t, called.StructuredContent, pane)
}

// The official TypeScript client connects, lists, calls, and gets the protocol's
// error for a member that no schema knows.
func TestClients_TypeScript(t *testing.T) {
	w := newWorld(t)
	pane := w.codex("0.171.0")
	cmd, err := demohost.Command(w.hostOptions("typescript"))
	if err != nil {
		t.Fatal(err)
	}
	node, modules := nodeTools(t)
	script := filepath.Join(root, "scripts", "e2e", "testdata", "client.mjs")
	raw := output(t, w, node, append([]string{script, modules}, cmd.Args...)...)
	var got struct {
		Server  string
		Tools   []string
		List    struct{ StructuredContent args }
		Refused string
	}
	decode(t, raw, &got)
	if got.Server != "drawbridge-host-bridge" {
		t.Errorf("server %q", got.Server)
	}
	if len(got.Tools) != 19 || !slices.IsSorted(got.Tools) {
		t.Errorf("%d tools, want 19 in order: %v", len(got.Tools), got.Tools)
	}
	if got.Refused != "-32602" {
		t.Errorf("an unknown member gives %q, want -32602", got.Refused)
	}
	requireRow(t, got.List.StructuredContent, pane)
}

// requireRow wants the pane's process in the answer of list.
func requireRow(t *testing.T, list args, pane *rig.Pane) {
	t.Helper()
	for _, row := range objects(list["terminals"]) {
		if pid, _ := row["pid"].(float64); int(pid) == pane.PID {
			return
		}
	}
	t.Errorf("no row for process %d in %v", pane.PID, list["terminals"])
}

// nodeTools finds Node 22 and the installed packages.
func nodeTools(t *testing.T) (node, modules string) {
	t.Helper()
	modules, err := rig.NodeModules()
	if err != nil {
		t.Fatal(err)
	}
	node = filepath.Join(modules, "node22", "bin", "node")
	if _, err := os.Stat(node); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return node, modules
}

// output runs a client with the environment of a Host of the world.
func output(t *testing.T, w *world, program string, argv ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, argv...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.rig.Home(), "LANG=C.UTF-8", demohost.SessionVariable + "=client"}
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\nstdout: %s\nstderr: %s", filepath.Base(argv[0]), err, out, stderr.String())
	}
	return out
}

func decode(t *testing.T, raw []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatalf("read %q: %v", raw, err)
	}
}

// payload unwraps the Inspector's JSON envelope where there is one.
func payload(raw []byte) []byte {
	var envelope struct{ Result json.RawMessage }
	if json.Unmarshal(raw, &envelope) == nil && envelope.Result != nil {
		return envelope.Result
	}
	return raw
}

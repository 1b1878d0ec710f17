package nodehost_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/shared/testkit"
)

// patience is for processes on a machine that does much else.
const patience = 60 * time.Second

// standIn in the environment makes this test program a stand-in for Node.
const standIn = "NODEHOST_TEST_STAND_IN"

func TestMain(m *testing.M) {
	if word := os.Getenv(standIn); word != "" {
		os.Exit(standInFor(word))
	}
	goleak.VerifyTestMain(m)
}

// node is the Node of PATH.
func node(t *testing.T) string {
	t.Helper()
	testkit.Need(t, "node")
	path, err := exec.LookPath("node")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// eachNode runs a test on the Node of PATH and on Node 22.
func eachNode(t *testing.T, test func(t *testing.T, node string)) {
	t.Run("node", func(t *testing.T) { test(t, node(t)) })
	t.Run("node22", func(t *testing.T) {
		const variable = "DRAWBRIDGE_NODE22"
		path := os.Getenv(variable)
		if path == "" {
			if os.Getenv("CI") == "true" {
				t.Fatalf("%s names no Node (scripts/setup), and CI=true", variable)
			}
			t.Skipf("%s names no Node; scripts/setup prints it", variable)
		}
		test(t, path)
	})
}

// files writes the files of a kit and gives their directory.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// options run the export run of a module.
func options(t *testing.T, node, module string) nodehost.Options {
	t.Helper()
	support := filepath.Join(t.TempDir(), "support # 100%") // a path that is no URL as it is
	if err := nodehost.WriteSupport(support); err != nil {
		t.Fatal(err)
	}
	return nodehost.Options{
		Node: node, Support: support, Env: []string{"PATH=" + os.Getenv("PATH")}, Module: module, Export: "run",
		Args: map[string]any{"requestFile": "/r"}, Ports: portsFunc(noPorts), DeliveryID: "delivery-1", Grace: 300 * time.Millisecond,
	}
}

// entry runs one module of this text.
func entry(t *testing.T, node, text string) nodehost.Options {
	t.Helper()
	return options(t, node, filepath.Join(files(t, map[string]string{"entry.mjs": text}), "entry.mjs"))
}

func run(t *testing.T, ctx context.Context, o nodehost.Options) nodehost.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := nodehost.Run(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// result is that of a run that must have one.
func result(t *testing.T, out nodehost.Outcome) map[string]any {
	t.Helper()
	var v map[string]any
	if out.Err != nil || out.Thrown != nil || json.Unmarshal(out.Result, &v) != nil {
		thrown := ""
		if out.Thrown != nil {
			thrown = *out.Thrown
		}
		t.Fatalf("no result: %v, %q, %.300s\nstderr:\n%s", out.Err, thrown, out.Result, out.Stderr)
	}
	return v
}

// portsFunc are Ports of one function.
type portsFunc func(ctx context.Context, p *nodehost.Peer, method string, params json.RawMessage) (any, error)

func (f portsFunc) Call(ctx context.Context, p *nodehost.Peer, method string, params json.RawMessage) (any, error) {
	return f(ctx, p, method, params)
}

func noPorts(_ context.Context, _ *nodehost.Peer, method string, _ json.RawMessage) (any, error) {
	return nil, fmt.Errorf("no service %s", method)
}

// standInFor speaks the protocol wrongly, or not at all.
func standInFor(word string) int {
	socket := os.NewFile(3, "socket")
	send := func(v any) {
		if err := nodehost.WriteFrame(socket, v); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	type object = map[string]any
	ready := object{"kind": "ready", "protocol": 1, "node": "v99.0.0"}
	outcome := object{"kind": "result", "deliveryId": "delivery-1", "result": object{"status": "completed"}}
	hang := func() int { time.Sleep(patience); return 1 }
	switch word {
	case "old":
		if len(os.Args) == 2 && os.Args[1] == "--version" {
			fmt.Println("v18.17.0")
			return 0
		}
		fmt.Fprintln(os.Stderr, "bad option: --import")
		return 9
	case "not ready":
		send(outcome)
		return hang()
	}
	send(ready)
	if _, err := nodehost.ReadFrame(socket); err != nil { // start
		return 2
	}
	switch word {
	case "too large":
		_, _ = socket.Write([]byte{4, 0, 0, 1})
		return hang()
	case "no JSON":
		_, _ = socket.Write([]byte{0, 0, 0, 2, '{', ':'})
		return hang()
	case "unknown":
		send(object{"kind": "greeting"})
		return hang()
	case "twice":
		send(outcome)
		send(outcome)
		return hang()
	case "result and error":
		send(outcome)
		send(object{"kind": "error", "deliveryId": "delivery-1", "message": "no"})
		return hang()
	case "foreign":
		send(object{"kind": "result", "deliveryId": "delivery-2", "result": nil})
		return hang()
	case "many calls":
		for id := range 1025 {
			send(object{"kind": "call", "id": id + 1, "method": "wait"})
		}
		return hang()
	case "same call":
		send(object{"kind": "call", "id": 1, "method": "wait"})
		send(object{"kind": "call", "id": 1, "method": "wait"})
		return hang()
	case "closed":
		socket.Close()
		return 0
	case "no result":
		return 3
	case "spaced": // whose JSON is not as JSON.stringify writes it
		body := []byte(`{"kind":"result","deliveryId":"delivery-1","result": {"b":1, "a":1.0, "x":"\u00e9<"}}`)
		_, _ = socket.Write(append([]byte{0, 0, 0, byte(len(body))}, body...))
		_, _ = nodehost.ReadFrame(socket)
		return 0
	}
	return 2
}

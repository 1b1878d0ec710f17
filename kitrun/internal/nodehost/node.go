package nodehost

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
)

// The oldest Node that runs kits; check.mjs knows it, too.
const (
	leastMajor = 20
	leastMinor = 6
)

// How the host modules get into a kit's module graph.
const (
	HookInThread = "registerHooks" // from Node 22.15 on; serves require, too
	HookApart    = "register"      // on a thread of its own
)

// Find gives the absolute path of a Node executable: name is a path or stands in
// PATH; "" is node.
func Find(name string) (string, error) {
	if name == "" {
		name = "node"
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", fault.New(fault.KitNode, "find %s: %w", name, err).WithHint("--node names a Node 20.6 or newer")
	}
	return path, nil
}

// Node is what one executable says of itself.
type Node struct{ Path, Version, Hook string }

// question is understood by every Node.
const question = `var m = require('module');
console.log(JSON.stringify({version: process.versions.node, hook: m.registerHooks ? 'registerHooks' : m.register ? 'register' : ''}))`

// Look finds a Node and asks it what it is. The error is kit_node_unavailable for
// none, for what is no Node, and, with the answer, for one that is too old.
func Look(ctx context.Context, name string) (Node, error) {
	path, err := Find(name)
	if err != nil {
		return Node{}, err
	}
	n := Node{Path: path}
	res := process.Run(ctx, process.Spec{
		Path: path, Args: []string{"-e", question}, Env: []string{"PATH=" + os.Getenv("PATH")}, Dir: "/", Timeout: versionFor, MaxStdout: 4 << 10, MaxStderr: 4 << 10,
	})
	if err := json.Unmarshal(res.Stdout, &n); !res.OK() || err != nil || n.Version == "" {
		return n, fault.New(fault.KitNode, "ask %s for its version: it does not answer as Node does", path).WithHint("--node names a Node 20.6 or newer")
	}
	n.Version, n.Hook = fault.CleanLine(n.Version), fault.CleanLine(n.Hook)
	parts := strings.Split(n.Version+".0", ".")
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	if major < leastMajor || major == leastMajor && minor < leastMinor {
		return n, tooOld("this is Node v" + n.Version + "; kits need 20.6 or newer")
	}
	return n, nil
}

// Package demohost is an example Host, complete and small: a program that gives
// work to coding agents through drawbridge and is called back.
//
// A Host needs three things. A Profile (profile.go) tells drawbridge where the
// Host's trusted session id comes from and which executable takes a callback.
// The executable (cmd/inbox here) keeps the message and acknowledges exactly
// this delivery. And the Host starts `bridge host-bridge` as an MCP server over
// stdio and calls its tools: Start and Call below.
//
// The demo and the end-to-end tests both use it; it holds nothing that a Host of
// your own would not need, but for Kill.
package demohost

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"drawbridge/scripts/internal/inbox"
)

// Who this Host says it is; its Profile is for the same.
const (
	HostID      = "demo-host"
	HostVersion = "1.0.0"
)

// SessionVariable carries the trusted session id to bridge.
const SessionVariable = "DEMO_HOST_SESSION_ID"

// stopWait is how long a Host lets bridge drain: drawbridge promises 3 s.
const stopWait = 10 * time.Second

// Options of one Host.
type Options struct {
	Bridge      string   // the program; watchd and outboxd stand beside it
	Inbox       string   // the callback executable
	Dir         string   // the Host's own directory: Profile, inbox, log of bridge
	Session     string   // trusted session id
	StoreDir    string   // shared by Hosts that shall know of each other
	RuntimeDir  string   // "" leaves it to bridge
	TmuxSockets []string // sockets to search; none leaves it to bridge
	Args        []string // further arguments of bridge
	Env         []string // further variables of bridge
	Home        string   // HOME of bridge, "" for our own
}

// Host is one controller with its bridge.
type Host struct {
	opts    Options
	cmd     *exec.Cmd
	session *mcp.ClientSession
	exited  chan struct{}
	waitErr error // of the bridge, once exited is closed
}

// Start writes the Profile, starts bridge and does the MCP handshake.
func Start(ctx context.Context, opts Options) (*Host, error) {
	cmd, err := Command(opts)
	if err != nil {
		return nil, err
	}
	h := &Host{opts: opts, exited: make(chan struct{}), cmd: cmd}
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as real Hosts do
	if err := h.connect(ctx); err != nil {
		return nil, err
	}
	return h, nil
}

// Command writes the Profile and gives the command that starts bridge, for a
// client of another kind.
func Command(opts Options) (*exec.Cmd, error) {
	for _, dir := range []string{opts.Dir, inboxDir(opts.Dir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("prepare the Host: %w", err)
		}
	}
	profile := filepath.Join(opts.Dir, "profile.json")
	if err := os.WriteFile(profile, Profile(opts.Inbox, inboxDir(opts.Dir)), 0o600); err != nil {
		return nil, fmt.Errorf("prepare the Host: %w", err)
	}
	cmd := exec.Command(opts.Bridge, append(arguments(opts, profile), opts.Args...)...)
	cmd.Dir = opts.Dir
	cmd.Env = environment(opts)
	return cmd, nil
}

func arguments(opts Options, profile string) []string {
	args := []string{"host-bridge", "--profile", profile, "--host", HostID, "--host-version", HostVersion,
		"--store-dir", opts.StoreDir}
	if opts.RuntimeDir != "" {
		args = append(args, "--runtime-dir", opts.RuntimeDir)
	}
	for _, socket := range opts.TmuxSockets {
		args = append(args, "--tmux-socket", socket)
	}
	return args
}

func environment(opts Options) []string {
	home := opts.Home
	if home == "" {
		home = os.Getenv("HOME")
	}
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "LANG=C.UTF-8", SessionVariable + "=" + opts.Session}, opts.Env...)
}

// connect starts the process and initializes the session.
func (h *Host) connect(ctx context.Context) error {
	stdin, err := h.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("start bridge: %w", err)
	}
	// A pipe of our own: that of StdoutPipe is closed when the process ends, and
	// answers given while it drains would be lost.
	stdout, theirs, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start bridge: %w", err)
	}
	defer theirs.Close()
	logFile, err := os.OpenFile(h.Log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start bridge: %w", err)
	}
	defer logFile.Close()
	h.cmd.Stdout, h.cmd.Stderr = theirs, logFile
	if err := h.cmd.Start(); err != nil {
		_ = stdout.Close()
		return fmt.Errorf("start bridge: %w", err)
	}
	go func() { h.waitErr = h.cmd.Wait(); close(h.exited) }()
	_ = theirs.Close() // the child has its own; without this the end of its output is never seen
	client := mcp.NewClient(&mcp.Implementation{Name: HostID, Version: HostVersion}, nil)
	h.session, err = client.Connect(ctx, &mcp.IOTransport{Reader: stdout, Writer: stdin}, nil)
	if err != nil {
		h.Kill()
		return fmt.Errorf("start bridge: %w; its log ends:\n%s", err, h.logTail())
	}
	return nil
}

// A Result is the answer of a tool.
type Result struct {
	Refused bool // isError
	Data    map[string]any
	Text    string // the text block, for people
}

// Call calls one tool by the part of its name after agent_knock_knock_.
func (h *Host) Call(ctx context.Context, tool string, arguments map[string]any) (Result, error) {
	if arguments == nil {
		arguments = map[string]any{}
	}
	answer, err := h.session.CallTool(ctx, &mcp.CallToolParams{Name: "agent_knock_knock_" + tool, Arguments: arguments})
	if err != nil {
		return Result{}, fmt.Errorf("call %s: %w", tool, err)
	}
	result := Result{Refused: answer.IsError}
	for _, c := range answer.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			result.Text += t.Text
		}
	}
	raw, err := json.Marshal(answer.StructuredContent)
	if err != nil {
		return result, fmt.Errorf("call %s: read the answer: %w", tool, err)
	}
	if err := json.Unmarshal(raw, &result.Data); err != nil {
		return result, fmt.Errorf("call %s: read the answer: %w", tool, err)
	}
	return result, nil
}

// Session gives the MCP session, for what Call does not cover.
func (h *Host) Session() *mcp.ClientSession { return h.session }

// Options gives what the Host was started with.
func (h *Host) Options() Options { return h.opts }

// Inbox is the directory of what has arrived.
func (h *Host) Inbox() string { return inboxDir(h.opts.Dir) }

// Await waits until n callbacks have arrived, and gives all that have.
func (h *Host) Await(ctx context.Context, n int) ([]inbox.Message, error) {
	return inbox.Await(ctx, h.Inbox(), func(m []inbox.Message) bool { return len(m) >= n })
}

// PID is bridge's process.
func (h *Host) PID() int { return h.cmd.Process.Pid }

// Log is the file with the stderr of bridge and its siblings.
func (h *Host) Log() string { return filepath.Join(h.opts.Dir, "bridge.log") }

// Exited is closed when bridge has ended.
func (h *Host) Exited() <-chan struct{} { return h.exited }

// Stop ends the session as a Host should: close stdin, let bridge drain, wait.
// The error is bridge's when it does not end with 0 in time.
func (h *Host) Stop() error {
	closed := h.session.Close() // closes bridge's stdin
	select {
	case <-h.exited:
	case <-time.After(stopWait):
		h.Kill()
		return fmt.Errorf("stop bridge: it did not end within %s", stopWait)
	}
	if h.waitErr != nil {
		return fmt.Errorf("stop bridge: %w; its log ends:\n%s", h.waitErr, h.logTail())
	}
	if closed != nil && !errors.Is(closed, io.EOF) && !errors.Is(closed, os.ErrClosed) {
		return fmt.Errorf("stop bridge: %w", closed)
	}
	return nil
}

// Kill ends bridge's process group with SIGKILL, as some Hosts do, and waits.
// Safe to repeat, and after Stop.
func (h *Host) Kill() {
	select {
	case <-h.exited:
	default:
		_ = syscall.Kill(-h.cmd.Process.Pid, syscall.SIGKILL) // it may end by itself meanwhile
		<-h.exited
	}
	if h.session != nil {
		_ = h.session.Close() // the other end is gone
	}
}

func (h *Host) logTail() string {
	raw, err := os.ReadFile(h.Log())
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

func inboxDir(dir string) string { return filepath.Join(dir, "inbox") }

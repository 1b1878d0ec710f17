// Package fakehost is the callback executable of outboxd's tests: the test
// binary itself, started again by the program under test. Only tests import it.
//
// A test binary calls Main first thing in TestMain. A Host is one directory:
// script.json there says how the next call behaves, calls.ndjson records every
// call that was started, by the process that was started.
package fakehost

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"drawbridge/shared/profile"
)

const (
	verb    = "fake-host"    // first argument of a callback child
	sleeper = "fake-sleeper" // first argument of a descendant of one
	naps    = 10 * time.Millisecond
)

// Names of the variables that the test Profile uses.
const (
	SessionVariable = "MY_AGENT_SESSION_ID"
	TokenVariable   = "MY_AGENT_TOKEN"
)

// Script is what a call does, in this order.
type Script struct {
	Unread      bool   // leave stdin alone
	Grandchild  bool   // start a sleeping process in the same group
	Holder      bool   // start a sleeping process in a group of its own that keeps stdout
	SleepBefore int    // ms
	WaitFor     string // a file of the directory that must exist
	Noise       int    // bytes of white space on stdout before the answer
	Stderr      int    // bytes on stderr
	Raw         *string
	Word        string // disposition; "" with no Raw: print nothing
	Acceptance  any    // default "acceptance-1"; anything else is printed as it is
	NoAccept    bool
	Delivery    any // default: the delivery id given
	Message     any
	SleepAfter  int // ms
	Kill        bool
	Exit        int
}

// Call is one recorded start.
type Call struct {
	PID        int
	Session    string
	Delivery   string
	Message    string
	Key        string
	Args       []string
	Env        []string
	Dir        string
	BodyLength int
	BodySHA256 string
}

// Main turns the process into a callback child when it was started as one.
func Main() {
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case verb:
		os.Exit(child(os.Args[2:]))
	case sleeper:
		time.Sleep(time.Minute)
		os.Exit(0)
	}
}

func child(args []string) int {
	dir := args[0]
	var s Script
	data, err := os.ReadFile(filepath.Join(dir, "script-"+args[2]+".json"))
	if err != nil {
		data, err = os.ReadFile(filepath.Join(dir, "script.json"))
	}
	if err != nil || json.Unmarshal(data, &s) != nil {
		return 99
	}
	call := Call{PID: os.Getpid(), Session: args[1], Delivery: args[2], Message: args[3], Key: args[4], Args: args, Env: os.Environ()}
	call.Dir, _ = os.Getwd()
	if !s.Unread {
		body, err := io.ReadAll(os.Stdin)
		if err != nil {
			return 98
		}
		sum := sha256.Sum256(body)
		call.BodyLength, call.BodySHA256 = len(body), hex.EncodeToString(sum[:])
	}
	record(dir, call)
	if s.Grandchild {
		start(dir, "grandchild", false)
	}
	if s.Holder {
		start(dir, "holder", true)
	}
	time.Sleep(time.Duration(s.SleepBefore) * time.Millisecond)
	for s.WaitFor != "" {
		if _, err := os.Stat(filepath.Join(dir, s.WaitFor)); err == nil {
			break
		}
		time.Sleep(naps)
	}
	os.Stdout.Write(bytes.Repeat([]byte(" "), s.Noise))
	os.Stderr.Write(bytes.Repeat([]byte("e"), s.Stderr))
	os.Stdout.Write(s.answer(call))
	time.Sleep(time.Duration(s.SleepAfter) * time.Millisecond)
	if s.Kill {
		syscall.Kill(os.Getpid(), syscall.SIGTERM)
		time.Sleep(time.Second)
	}
	return s.Exit
}

func (s Script) answer(c Call) []byte {
	if s.Raw != nil {
		return []byte(*s.Raw)
	}
	if s.Word == "" {
		return nil
	}
	result := map[string]any{"status": s.Word}
	if !s.NoAccept {
		result["acceptance_id"] = or(s.Acceptance, "acceptance-1")
	}
	out, _ := json.Marshal(map[string]any{
		"result":  result,
		"request": map[string]any{"delivery_id": or(s.Delivery, c.Delivery), "message_id": or(s.Message, c.Message)},
	})
	return append(out, '\n')
}

func or(v, fallback any) any {
	if v == nil {
		return fallback
	}
	return v
}

func record(dir string, c Call) {
	f, err := os.OpenFile(filepath.Join(dir, "calls.ndjson"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		os.Exit(97)
	}
	defer f.Close()
	line, _ := json.Marshal(c)
	f.Write(append(line, '\n'))
}

func start(dir, name string, ownGroup bool) {
	exe, _ := os.Executable()
	cmd := exec.Command(exe, sleeper)
	cmd.Stdout = os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: ownGroup}
	if cmd.Start() == nil {
		os.WriteFile(filepath.Join(dir, name), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
	}
}

// Host is one directory with a Profile that calls this test binary.
type Host struct {
	t    testing.TB
	Dir  string
	Path string // of the Profile
}

// New makes a Host whose calls are accepted, with the starter's identity and
// the changes to its document given as old text, new text.
func New(t testing.TB, replace ...string) *Host {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{t: t, Dir: dir, Path: filepath.Join(dir, "profile.json")}
	h.Script(Script{Word: "accepted"})
	h.Write(h.Document(replace...))
	return h
}

// Document gives the starter Profile with this binary as executable.
func (h *Host) Document(replace ...string) []byte {
	h.t.Helper()
	var doc map[string]any
	text := strings.NewReplacer(replace...).Replace(string(profile.Starter()))
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		h.t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	callback := doc["callback"].(map[string]any)
	if callback["executable"] == "/usr/local/bin/my-agent" {
		callback["executable"] = exe
	}
	callback["arguments"] = []string{
		verb, h.Dir, "${controller.session_id}", "${envelope.delivery_id}", "${envelope.message_id}", "${envelope.idempotency_key}",
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		h.t.Fatal(err)
	}
	return data
}

// Write replaces the Profile file at once.
func (h *Host) Write(data []byte) {
	h.t.Helper()
	tmp := h.Path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(tmp, h.Path); err != nil {
		h.t.Fatal(err)
	}
}

// Script sets what calls do; with a delivery id, what calls for it do.
func (h *Host) Script(s Script, delivery ...string) {
	h.t.Helper()
	name := "script.json"
	if len(delivery) > 0 {
		name = "script-" + delivery[0] + ".json"
	}
	data, err := json.Marshal(s)
	if err != nil {
		h.t.Fatal(err)
	}
	tmp := filepath.Join(h.Dir, name+".tmp")
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		h.t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(h.Dir, name)); err != nil {
		h.t.Fatal(err)
	}
}

// Open lets calls go on that wait for name.
func (h *Host) Open(name string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.Dir, name), nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// Calls reads the calls so far, oldest first.
func (h *Host) Calls() []Call {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.Dir, "calls.ndjson"))
	if err != nil {
		return nil
	}
	var out []Call
	for line := range strings.Lines(string(data)) {
		var c Call
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			h.t.Fatalf("call record %q: %v", line, err)
		}
		out = append(out, c)
	}
	return out
}

// CallsFor counts the calls of one delivery.
func (h *Host) CallsFor(delivery string) int {
	n := 0
	for _, c := range h.Calls() {
		if c.Delivery == delivery {
			n++
		}
	}
	return n
}

// PID reads the process id that a call left under name, "grandchild" or "holder".
func (h *Host) PID(name string) int {
	h.t.Helper()
	data, err := os.ReadFile(filepath.Join(h.Dir, name))
	if err != nil {
		h.t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { syscall.Kill(pid, syscall.SIGKILL) })
	return pid
}

// Load gives the Profile as it is on disk.
func (h *Host) Load() (profile.Profile, profile.Source) {
	h.t.Helper()
	p, src, err := profile.Load(h.Path, profile.BuiltIns())
	if err != nil {
		h.t.Fatal(err)
	}
	return p, src
}

// Environ is the environment that a Host gives: the session, a token, and a
// canary that must stay behind.
func Environ(session string, extra ...string) []string {
	return slices.Concat([]string{
		SessionVariable + "=" + session, TokenVariable + "=CANARY-token", "CANARY_SECRET=CANARY-secret", "PATH=/usr/bin:/bin",
	}, extra)
}

// Capture freezes the Profile for a Host my-agent 1.8.0.
func (h *Host) Capture(session string) profile.Captured {
	h.t.Helper()
	p, src := h.Load()
	c, err := profile.Capture(p, src, "my-agent", "1.8.0", Environ(session))
	if err != nil {
		h.t.Fatal(fmt.Errorf("capture: %w", err))
	}
	return c
}

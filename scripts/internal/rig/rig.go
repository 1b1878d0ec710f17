// Package rig puts real coding agents into real tmux panes, with nothing but a
// scripted model server behind them, and takes all of it away again.
//
// A Rig is one private tmux server, one model server in this process, and a
// directory for agent homes and work trees. Tests make one with New; commands
// with Do. Codex starts a pane and returns when the agent can take a message;
// the Pane is then used as a person would: Type, Paste, Key, Screen.
//
// What a Rig owns stands below one directory, by default in the user's cache
// directory, never below /tmp, where Codex refuses to put its helpers. On the
// clean-up it ends its tmux server, the agents, and the background servers that
// agents left behind (known by their home), and removes the directory when no
// process of it is left. A rig whose owner died is swept by the
// next one, or by `scripts/rig clean`.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"drawbridge/scripts/internal/modelserver"
	"drawbridge/shared/process"
)

// Bounds of waiting. They are generous because the machine may be busy; nothing
// waits longer than it must.
const (
	readyWait  = 90 * time.Second // agent start to first empty composer
	exitWait   = 20 * time.Second // end of a pane to end of its processes
	screenWait = 30 * time.Second // a screen that a caller waits for
	pollEvery  = 50 * time.Millisecond
)

// ownerFile names the process that a rig directory belongs to.
const ownerFile = "owner.json"

// A Rig is one stand with its panes.
type Rig struct {
	Server *modelserver.Server
	URL    string // base URL of the model server, with /v1
	Socket string // path of the private tmux socket
	Dir    string // everything of this rig stands below it

	tb         TB
	daemonHome string
	panes      int
}

// New stands a rig up; it is taken down when the test ends.
func New(tb TB) *Rig {
	tb.Helper()
	base, err := Base()
	if err != nil {
		tb.Fatalf("rig: %v", err)
	}
	if err := Sweep(tb.Context(), base); err != nil {
		tb.Logf("rig: %v", err) // another rig's remains are no reason to fail this one
	}
	r := &Rig{tb: tb, Dir: filepath.Join(base, uuid.NewString()[:8])}
	r.Socket = filepath.Join(r.Dir, "tmux")
	if len(r.Socket) > 100 {
		tb.Fatalf("rig: socket path %s is too long; set DRAWBRIDGE_RIG_DIR to a shorter directory", r.Socket)
	}
	if err := claim(r.Dir); err != nil {
		tb.Fatalf("rig: %v", err)
	}
	tb.Cleanup(r.close)
	r.serve()
	r.startTmux()
	return r
}

// Base is the directory that holds rigs: $DRAWBRIDGE_RIG_DIR, else
// drawbridge/rig in the user's cache directory.
func Base() (string, error) {
	base := os.Getenv("DRAWBRIDGE_RIG_DIR")
	if base == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find a directory for homes: %w", err)
		}
		base = filepath.Join(cache, "drawbridge", "rig")
	}
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", fmt.Errorf("make a directory for homes: %w", err)
	}
	base, err := filepath.EvalSymlinks(base)
	if err != nil {
		return "", fmt.Errorf("resolve the directory for homes: %w", err)
	}
	if tmp, err := filepath.EvalSymlinks(os.TempDir()); err == nil && strings.HasPrefix(base+"/", tmp+"/") {
		return "", fmt.Errorf("%s is below %s, where Codex refuses to work; set DRAWBRIDGE_RIG_DIR to another directory", base, tmp)
	}
	return base, nil
}

// claim makes a rig directory of this process.
func claim(dir string) error {
	self, err := process.Of(os.Getpid())
	if err != nil {
		return fmt.Errorf("claim %s: %w", dir, err)
	}
	raw, err := json.Marshal(self)
	if err != nil {
		return fmt.Errorf("claim %s: %w", dir, err)
	}
	for _, sub := range []string{"homes", "trees", "user"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			return fmt.Errorf("claim: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ownerFile), raw, 0o600); err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	return nil
}

// serve runs the model server until the rig is closed.
func (r *Rig) serve() {
	r.tb.Helper()
	ln, err := modelserver.Listen("")
	if err != nil {
		r.tb.Fatalf("rig: %v", err)
	}
	r.Server = modelserver.New(modelserver.Options{})
	r.URL = "http://" + ln.Addr().String() + "/v1"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Server.Run(ctx, ln) }()
	r.tb.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, http.ErrServerClosed) {
			r.tb.Errorf("rig: %v", err)
		}
	})
}

// Home is the HOME of the rig's panes. A program started with it belongs to the
// rig, and is ended with it.
func (r *Rig) Home() string { return filepath.Join(r.Dir, "user") }

// Release opens a gate of the model server (scenario GATE:name).
func (r *Rig) Release(gate string) { r.Server.Release(gate) }

// Eventually polls until ok holds, and fails the test with what after d.
func (r *Rig) Eventually(d time.Duration, what string, ok func() bool) {
	r.tb.Helper()
	if !r.poll(d, ok) {
		r.tb.Fatalf("rig: %s: not so within %s", what, d)
	}
}

func (r *Rig) poll(d time.Duration, ok func() bool) bool {
	deadline := time.Now().Add(d)
	for {
		if ok() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pollEvery)
	}
}

// Tree makes a fresh git work tree with one empty commit.
func (r *Rig) Tree() string {
	r.tb.Helper()
	r.panes++
	dir := filepath.Join(r.Dir, "trees", fmt.Sprintf("tree%d", r.panes))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.tb.Fatalf("rig: make a work tree: %v", err)
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"},
		{"-c", "user.name=rig", "-c", "user.email=rig@localhost", "commit", "-q", "--allow-empty", "-m", "empty"},
	} {
		if _, err := r.run(dir, "git", args...); err != nil {
			r.tb.Fatalf("rig: make a work tree: %v", err)
		}
	}
	return dir
}

// close takes the rig down and reports what did not go.
func (r *Rig) close() {
	if err := takeDown(r.Dir); err != nil {
		r.tb.Errorf("rig: %v", err)
	}
}

// remove deletes a tree that a dying process may still write into.
func remove(dir string) error {
	var err error
	for range 20 {
		if err = os.RemoveAll(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(pollEvery)
	}
	return fmt.Errorf("remove %s: %w", dir, err)
}

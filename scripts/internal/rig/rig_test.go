package rig_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drawbridge/scripts/internal/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRig_CodexVersions(t *testing.T) {
	t.Parallel()
	for _, version := range rig.CodexVersions {
		t.Run(version, func(t *testing.T) {
			need(t)
			r := rig.New(t)
			begin := time.Now()
			p := r.Codex(version, rig.CodexOptions{})
			t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
			p.Run("SCN=SAY:first_answer")
			p.AwaitText("first answer")
			p.Submit("SCN=GATE:g")
			r.Eventually(10*time.Second, "the turn waits", func() bool { return r.Server.Waiting("g") == 1 })
			if !p.Screen().Busy() {
				p.AwaitText("esc to interrupt")
			}
			r.Release("g")
			p.AwaitText("GATE answer g")
			p.AwaitIdle()
			if got := r.Server.Turns("SCN=GATE:g"); got != 1 {
				t.Errorf("the message reached the model %d times, want once", got)
			}
			if got := len(p.Rollouts()); got != 1 {
				t.Errorf("%d rollouts, want 1", got)
			}
			p.Kill()
			p.AwaitText("EXITED rc=137")
		})
	}
}

func TestRig_Daemon(t *testing.T) {
	t.Parallel()
	need(t)
	var dir string
	t.Run("two panes, one home", func(t *testing.T) {
		r := rig.New(t)
		dir = r.Dir
		begin := time.Now()
		a := r.Codex("0.171.0", rig.CodexOptions{Daemon: true})
		t.Logf("first ready after %s", time.Since(begin).Round(time.Millisecond))
		b := r.Codex("0.171.0", rig.CodexOptions{Daemon: true})
		t.Logf("both ready after %s", time.Since(begin).Round(time.Millisecond))
		if a.Home != b.Home || a.Dir == b.Dir {
			t.Errorf("homes %s and %s, trees %s and %s", a.Home, b.Home, a.Dir, b.Dir)
		}
		a.Run("SCN=SAY:from_a")
		b.Run("SCN=SAY:from_b")
		if _, err := os.Stat(filepath.Join(a.Home, "app-server-daemon", "daemon.pid")); err != nil {
			t.Errorf("no daemon: %v", err)
		}
	})
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the rig left %s: %v", dir, err)
	}
	if left := processesWith(dir); len(left) != 0 {
		t.Errorf("the rig left processes: %v", left)
	}
}

// What Claude Code keeps below /tmp for a rig's work trees goes with the rig, and
// nobody else's.
func TestRig_TakesAwayWhatIsBelowTmp(t *testing.T) {
	base := fmt.Sprintf("/tmp/claude-%d", os.Getuid())
	keep := func(tree string) string {
		work := filepath.Join(base, regexp.MustCompile("[^A-Za-z0-9]").ReplaceAllString(tree, "-"))
		if err := os.MkdirAll(filepath.Join(work, "session", "tasks"), 0o700); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(work) })
		return work
	}
	var own, other string
	t.Run("rig", func(t *testing.T) {
		r := rig.New(t)
		own, other = keep(r.Tree()), keep(r.Dir+"0/trees/tree1")
	})
	if _, err := os.Stat(own); !os.IsNotExist(err) {
		t.Errorf("the rig left %s: %v", own, err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("the rig took another's: %v", err)
	}
}

func TestDo_ReportsAndCleansUp(t *testing.T) {
	var order []string
	err := rig.Do(context.Background(), "demo", nil, func(tb rig.TB) {
		tb.Cleanup(func() { order = append(order, "first") })
		tb.Cleanup(func() { order = append(order, "second") })
		tb.Fatalf("no %s", "luck")
		order = append(order, "after")
	})
	if err == nil || err.Error() != "no luck" {
		t.Errorf("error %v", err)
	}
	if got := strings.Join(order, " "); got != "second first" {
		t.Errorf("order %q", got)
	}
}

func TestLook(t *testing.T) {
	for _, tc := range []struct {
		name, styled string
		idle         bool
	}{
		{"placeholder", "\x1b[1m›\x1b[0m \x1b[2mAsk Codex\x1b[0m\n\n  gpt-5-codex medium · ~/x\n", true},
		{"draft", "\x1b[1m›\x1b[0m Ask Codex\n\n  gpt-5-codex medium · ~/x\n", false},
		{"not ready", "\x1b[1m›\x1b[0m \x1b[2mAsk Codex\x1b[0m\n\n  ? for shortcuts\n", false},
		{"working", "• Working (1s • esc to interrupt)\n\x1b[1m›\x1b[0m \x1b[2mAsk\x1b[0m\n  gpt-5-codex\n", false},
		{"shell", "bash$ \n", false},
	} {
		if got := rig.Look(tc.styled).Idle(); got != tc.idle {
			t.Errorf("%s: idle %v, want %v", tc.name, got, tc.idle)
		}
	}
}

// need skips where the agents are not installed; in CI that is a failure.
func need(t *testing.T) {
	t.Helper()
	if _, err := rig.CodexPath("0.171.0"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func processesWith(dir string) []string {
	var left []string
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil && dir != "" && strings.Contains(string(raw), dir+"/") {
			left = append(left, f)
		}
	}
	return left
}

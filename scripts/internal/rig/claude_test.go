package rig_test

import (
	"os"
	"testing"
	"time"

	"drawbridge/scripts/internal/rig"
)

func TestRig_ClaudeVersions(t *testing.T) {
	t.Parallel()
	for _, version := range rig.ClaudeVersions {
		t.Run(version, func(t *testing.T) {
			needClaude(t)
			r := rig.New(t)
			begin := time.Now()
			p := r.Claude(version, rig.ClaudeOptions{})
			t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
			if got, ok := p.Registered(); !ok || got.Version != version || got.CWD != p.Dir {
				t.Errorf("registered %+v, %v", got, ok)
			}
			p.Run("SCN=SAY:first_answer")
			p.AwaitText("first answer")
			p.Submit("SCN=GATE:g")
			r.Eventually(20*time.Second, "the turn waits", func() bool { return r.Server.Waiting("g") == 1 })
			if !p.Screen().Busy() {
				p.AwaitText("esc to interrupt")
			}
			p.AwaitStatus("busy")
			r.Release("g")
			p.AwaitText("GATE answer g")
			p.AwaitIdle()
			if got := r.Server.Turns("SCN=GATE:g"); got != 1 {
				t.Errorf("the message reached the model %d times, want once", got)
			}
			if got := len(p.Rollouts()); got != 1 {
				t.Errorf("%d transcripts, want 1", got)
			}
			p.Kill()
			p.AwaitText("EXITED rc=137")
		})
	}
}

// needClaude skips where the agents are not installed; in CI that is a failure.
func needClaude(t *testing.T) {
	t.Helper()
	for _, version := range rig.ClaudeVersions {
		if _, err := rig.ClaudePath(version); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

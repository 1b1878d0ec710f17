package learn_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"drawbridge/scripts/internal/learn"
	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A version that is known already is learned anew from nothing but its screens
// and records, and every action is proven on it. What is spoiled afterwards is
// told by name and file, and costs the actions that rest on it.
func TestLearn_KnownVersions(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ agent, version, approval string }{
		{rig.Codex, rig.CodexVersions[0], "approval-exec"},
		{rig.Claude, rig.ClaudeVersions[0], "permission-bash"},
	} {
		t.Run(tc.agent, func(t *testing.T) {
			t.Parallel()
			need(t, tc.agent, tc.version)
			dir := t.TempDir()
			r, err := learn.Learn(t.Context(), learn.Options{Agent: tc.agent, Version: tc.version, Dir: dir, Log: t.Logf})
			if err != nil {
				t.Fatal(err)
			}
			for _, action := range learn.Actions {
				for _, p := range r.Failed(action) {
					t.Errorf("%s: %s: %v (%s)", action, p.Name, p.Err, p.File)
				}
				if !r.Tested(action) {
					t.Errorf("%s is not tested", action)
				}
			}
			if r.Rules == "" {
				t.Fatal("no rules were written")
			}
			set, err := rule.Load(filepath.Dir(r.Rules))
			if err != nil {
				t.Fatal(err)
			}
			if _, class := set.For(tc.agent, tc.version); class != agent.Tested {
				t.Errorf("by the learned rules the version is %s", class)
			}
			spoil(t, r, tc.approval)
		})
	}
}

// spoil changes one word of one dialog, and wants that proof and no other to fail.
func spoil(t *testing.T, r learn.Report, name string) {
	t.Helper()
	file := filepath.Join(r.Recordings, "screens", name+"."+r.Version+".ansi")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	spoilt := strings.Replace(string(text), "Yes", "Yea", 1)
	if err := os.WriteFile(file, []byte(spoilt), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(root, "shared", "agent", "rule", "files", r.Base))
	if err != nil {
		t.Fatal(err)
	}
	if r.Proofs, err = learn.Prove(r.Agent, r.Version, r.Recordings, rules); err != nil {
		t.Fatal(err)
	}
	if failed := r.Failed(learn.Approve); len(failed) != 1 || failed[0].Name != name || failed[0].File != file {
		t.Errorf("failed proofs of approve: %v", failed)
	}
	for _, action := range learn.Actions {
		if got, want := r.Tested(action), action != learn.Approve; got != want {
			t.Errorf("%s tested: %v, want %v", action, got, want)
		}
	}
}

func TestReport_Tested(t *testing.T) {
	bad := errors.New("not so")
	for _, tc := range []struct {
		name   string
		proofs []learn.Proof
		want   string
	}{
		{"nothing", nil, ""},
		{"all", []learn.Proof{{Action: learn.Observe}, {Action: learn.Send}}, "observe send"},
		{"send failed", []learn.Proof{{Action: learn.Observe}, {Action: learn.Send, Err: bad}, {Action: learn.Send}}, "observe"},
		{"observe failed", []learn.Proof{{Action: learn.Observe, Err: bad}, {Action: learn.Send}}, ""},
	} {
		var got []string
		for _, action := range learn.Actions {
			if (learn.Report{Proofs: tc.proofs}).Tested(action) {
				got = append(got, string(action))
			}
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %v, want %q", tc.name, got, tc.want)
		}
	}
}

func TestLearn_Refusals(t *testing.T) {
	for _, tc := range []struct{ agent, version, want string }{
		{rig.Codex, "0.1.0", "older than the oldest"},
		{rig.Claude, "next", "no version"},
		{"nobody", "1.0.0", "no version"},
	} {
		if _, err := learn.Learn(t.Context(), learn.Options{Agent: tc.agent, Version: tc.version, Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s@%s: %v, want %q", tc.agent, tc.version, err, tc.want)
		}
	}
}

// need skips where the agents are not installed; in CI that is a failure.
func need(t *testing.T, agent, version string) {
	t.Helper()
	if _, err := rig.ProgramPath(agent, version); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

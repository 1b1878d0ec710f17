// Package learn finds out how far a new version of an agent may be trusted: it
// installs the version beside the pinned ones, records every scenario of the rig
// on it, derives rules for it from those of the nearest older version, and proves
// them on what was recorded.
//
// The proofs know more than a corpus does: the recorder opened every dialog
// itself, so it is known what each screen shows and each transcript holds. For
// each action of drawbridge (observe, send, approve, questions, lifecycle) they
// say whether all that it rests on is read as it was. The derived rule file calls
// the version tested, and lacks what failed: without keys to approve, pages of
// questions, or native commands, drawbridge shows such a dialog to a person and
// types nothing. Where observing or sending fails, no file is written.
//
// Nothing in the repository changes; what was learned stands below the cache
// directory, and is used with `bridge host-bridge --rules-dir`.
package learn

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"drawbridge/scripts/internal/rig"
	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
)

// Action is one thing that drawbridge does with an agent.
type Action string

// The actions.
const (
	Observe   Action = "observe"
	Send      Action = "send"
	Approve   Action = "approve"
	Questions Action = "questions"
	Lifecycle Action = "lifecycle"
)

// Actions in the order in which they are told. Each but the first rests on those
// before it that Needs names.
var Actions = []Action{Observe, Send, Approve, Questions, Lifecycle}

// Options of Learn.
type Options struct {
	Agent, Version string
	Dir            string // where everything goes; rig.LearnedDir when empty
	Log            func(format string, args ...any)
}

// Report says what was learned.
type Report struct {
	Agent, Version string
	Base           string // rule file that was derived from
	Recordings     string // directory
	Rules          string // the derived rule file; "" where none may be used
	Proofs         []Proof
}

// Proof is one thing that had to be so.
type Proof struct {
	Action Action
	Name   string // of the recording
	File   string // to look at
	Err    error  // why it is not so; nil when it is
}

// Tested reports whether every proof of an action holds, and there was one.
// Without observing, nothing is tested.
func (r Report) Tested(action Action) bool {
	some := false
	for _, p := range r.Proofs {
		if p.Err != nil && (p.Action == action || p.Action == Observe) {
			return false
		}
		some = some || p.Action == action
	}
	return some
}

// Failed gives the proofs of an action that do not hold.
func (r Report) Failed(action Action) []Proof {
	var out []Proof
	for _, p := range r.Proofs {
		if p.Action == action && p.Err != nil {
			out = append(out, p)
		}
	}
	return out
}

// Learn records and judges one version.
func Learn(ctx context.Context, o Options) (Report, error) {
	out := Report{Agent: o.Agent, Version: o.Version}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	base, data, err := baseRules(o.Agent, o.Version)
	if err != nil {
		return out, err
	}
	out.Base = base.Name()
	if o.Dir == "" {
		if o.Dir, err = rig.LearnedDir(o.Agent, o.Version); err != nil {
			return out, err
		}
	}
	if err := install(ctx, o); err != nil {
		return out, err
	}
	out.Recordings = filepath.Join(o.Dir, "recordings")
	if err := os.RemoveAll(out.Recordings); err != nil {
		return out, fmt.Errorf("remove old recordings: %w", err)
	}
	rec := &rig.Recording{Agent: o.Agent, Version: o.Version, Out: out.Recordings}
	for op, to := range map[agent.Op]*string{agent.OpStatus: &rec.Commands.Status, agent.OpNew: &rec.Commands.New, agent.OpResume: &rec.Commands.Resume} {
		if c, err := base.Command(op, rig.NoThread); err == nil {
			*to = c.Text
		}
	}
	o.Log("recording %s %s (about a minute)", o.Agent, o.Version)
	if err := rig.Do(ctx, "learn", o.Log, func(tb rig.TB) { rig.New(tb).Record(rec) }); err != nil {
		return out, fmt.Errorf("record %s %s: %w", o.Agent, o.Version, err)
	}
	if out.Proofs, err = Prove(o.Agent, o.Version, out.Recordings, data); err != nil {
		return out, err
	}
	if !out.Tested(Observe) || !out.Tested(Send) {
		return out, nil
	}
	name, derived, err := derive(base, data, out)
	if err != nil {
		return out, err
	}
	rules := filepath.Join(o.Dir, "rules")
	if err := os.MkdirAll(rules, 0o755); err != nil {
		return out, fmt.Errorf("write the rules: %w", err)
	}
	out.Rules = filepath.Join(rules, name)
	if err := os.WriteFile(out.Rules, derived, 0o644); err != nil {
		return out, fmt.Errorf("write the rules: %w", err)
	}
	set, err := rule.Load(rules)
	if err != nil {
		return out, fmt.Errorf("load the derived rules: %w", err)
	}
	if _, class := set.For(o.Agent, o.Version); class != agent.Tested {
		return out, fmt.Errorf("load the derived rules: %s %s is %s", o.Agent, o.Version, class)
	}
	return out, nil
}

// baseRules gives the rules that a version falls under now, and their text.
func baseRules(name, version string) (*rule.File, []byte, error) {
	set, err := rule.Load("")
	if err != nil {
		return nil, nil, err
	}
	f, _ := set.For(name, version)
	if f == nil {
		return nil, nil, fmt.Errorf("find rules for %s %s: it is older than the oldest rule file, or no version", name, version)
	}
	root, err := rig.Root()
	if err != nil {
		return nil, nil, err
	}
	data, err := os.ReadFile(filepath.Join(root, "shared", "agent", "rule", "files", f.Name()))
	if err != nil {
		return nil, nil, fmt.Errorf("read the rules: %w", err)
	}
	return f, data, nil
}

// derive makes the rule file of the version: the base's, without what failed. A
// version that a file already names keeps it as it is.
func derive(base *rule.File, data []byte, r Report) (name string, out []byte, err error) {
	if slices.Contains(base.Tested(), r.Version) {
		return base.Name(), data, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var tree map[string]any
	if err := decoder.Decode(&tree); err != nil {
		return "", nil, fmt.Errorf("read rule file %s: %w", base.Name(), err)
	}
	tree["versions"] = map[string]any{"tested": []string{r.Version}, "oldest": r.Version}
	if !r.Tested(Approve) {
		dialogs, _ := tree["dialogs"].([]any)
		for _, d := range dialogs {
			if d, ok := d.(map[string]any); ok {
				delete(d, "approve")
			}
		}
	}
	if !r.Tested(Questions) {
		delete(tree, "pages")
	}
	if !r.Tested(Lifecycle) {
		delete(tree, "native")
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(tree); err != nil {
		return "", nil, fmt.Errorf("write a rule file: %w", err)
	}
	name = r.Agent + "-" + r.Version + ".json"
	if _, err := rule.Compile(name, b.Bytes()); err != nil {
		return "", nil, fmt.Errorf("check the derived rules: %w", err)
	}
	return name, b.Bytes(), nil
}

// errMissing is the failure of a proof whose recording is not there.
var errMissing = errors.New("it was not recorded")

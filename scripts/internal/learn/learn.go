// Package learn finds out how far a new version of an agent may be trusted: it
// installs the version beside the pinned ones, records every scenario of the rig
// on it, proves the rules of every known version on what was recorded, and derives
// a rule file from those that fit best.
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
	Keep           bool   // judge what was recorded before, where there is something
	Rules          string // a rule file to judge by, instead of those that are built in
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
	all, err := candidates(o)
	if err != nil {
		return out, err
	}
	if o.Dir == "" {
		if o.Dir, err = rig.LearnedDir(o.Agent, o.Version); err != nil {
			return out, err
		}
	}
	if err := install(ctx, o); err != nil {
		return out, err
	}
	out.Recordings = filepath.Join(o.Dir, "recordings")
	if _, err := os.Stat(out.Recordings); err != nil || !o.Keep {
		if err := record(ctx, o, all[0].file, out.Recordings); err != nil {
			return out, err
		}
	}
	base, err := best(&out, all)
	if err != nil {
		return out, err
	}
	if !out.Tested(Observe) || !out.Tested(Send) {
		return out, nil
	}
	name, derived, err := derive(base.file, base.data, out)
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

// record drives the version through the scenarios.
func record(ctx context.Context, o Options, f *rule.File, into string) error {
	if err := os.RemoveAll(into); err != nil {
		return fmt.Errorf("remove old recordings: %w", err)
	}
	rec := &rig.Recording{Agent: o.Agent, Version: o.Version, Out: into}
	for op, to := range map[agent.Op]*string{agent.OpStatus: &rec.Commands.Status, agent.OpNew: &rec.Commands.New, agent.OpResume: &rec.Commands.Resume} {
		if c, err := f.Command(op, rig.NoThread); err == nil {
			*to = c.Text
		}
	}
	o.Log("recording %s %s (about a minute)", o.Agent, o.Version)
	if err := rig.Do(ctx, "learn", o.Log, func(tb rig.TB) { rig.New(tb).Record(rec) }); err != nil {
		return fmt.Errorf("record %s %s: %w", o.Agent, o.Version, err)
	}
	return nil
}

// candidate is a rule file that may fit.
type candidate struct {
	file *rule.File
	data []byte
}

// candidates gives the rules that the version falls under now, then all others of
// the agent: a version between two known ones may look like the newer.
func candidates(o Options) ([]candidate, error) {
	set, err := rule.Load("")
	if err != nil {
		return nil, err
	}
	first, _ := set.For(o.Agent, o.Version)
	if first == nil {
		return nil, fmt.Errorf("find rules for %s %s: it is older than the oldest rule file, or no version", o.Agent, o.Version)
	}
	if o.Rules != "" {
		data, err := os.ReadFile(o.Rules)
		if err != nil {
			return nil, fmt.Errorf("read the rules: %w", err)
		}
		f, err := rule.Compile(filepath.Base(o.Rules), data)
		if err != nil {
			return nil, err
		}
		return []candidate{{f, data}}, nil
	}
	root, err := rig.Root()
	if err != nil {
		return nil, err
	}
	var out []candidate
	for _, f := range set.Files() {
		if f.Agent() != o.Agent {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, "shared", "agent", "rule", "files", f.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the rules: %w", err)
		}
		if f == first {
			out = append([]candidate{{f, data}}, out...)
		} else {
			out = append(out, candidate{f, data})
		}
	}
	return out, nil
}

// best judges by every candidate and keeps in out the proofs of the one by which
// most actions are tested, then fewest proofs fail; of equals the first.
func best(out *Report, all []candidate) (candidate, error) {
	var chosen candidate
	score := func(r Report) (n int) {
		for _, action := range Actions {
			if r.Tested(action) {
				n += 1000
			}
			n -= len(r.Failed(action))
		}
		return n
	}
	for i, c := range all {
		r := *out
		r.Base = c.file.Name()
		var err error
		if r.Proofs, err = Prove(r.Agent, r.Version, r.Recordings, c.data); err != nil {
			return chosen, err
		}
		if i == 0 || score(r) > score(*out) {
			*out, chosen = r, c
		}
	}
	return chosen, nil
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

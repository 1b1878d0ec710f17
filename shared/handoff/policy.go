package handoff

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Bounds of an approval policy.
const (
	maxPolicy = 1 << 20 // bytes
	maxRules  = 256
	maxArgv   = 256
)

// A Policy says which commands are approved without asking. It comes from a file
// of the operator and from nowhere else; without one, nothing is. A command is
// approved where one rule names its agent, a workspace that holds its directory
// and all its paths, and its exact words; everything else is asked.
type Policy struct {
	path  string
	print string
	doc   policyFile
}

type policyFile struct {
	Enabled bool         `json:"enabled"`
	Rules   []policyRule `json:"rules"`
}

type policyRule struct {
	ID         string     `json:"id"`
	Agents     []string   `json:"agents"`
	Workspaces []string   `json:"workspaces"`
	Commands   [][]string `json:"commands"`
}

// Candidate is a call that waits for an approval.
type Candidate struct {
	Agent   agent.Kind
	Kind    string // of the dialog and of the call
	Command string
	Cwd     string
}

var ruleForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}$`)

// LoadPolicy reads a policy. The file must belong to this user or to root and be
// writable by nobody else.
func LoadPolicy(path string) (*Policy, error) {
	refuse := func(why string, args ...any) error {
		return fault.New(fault.Usage, "read the approval policy %s: "+why, append([]any{path}, args...)...)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, refuse("%w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, refuse("%w", err)
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return nil, refuse("it is not a regular file")
	case !ok || sys.Uid != 0 && int(sys.Uid) != os.Geteuid():
		return nil, refuse("it belongs to another user")
	case info.Mode().Perm()&0o022 != 0:
		return nil, refuse("others may write to it")
	}
	data, err := io.ReadAll(io.LimitReader(f, maxPolicy+1))
	if err != nil {
		return nil, refuse("%w", err)
	}
	p := &Policy{path: path, print: hash(data)}
	if err := strictjson.Decode(data, &p.doc, strictjson.Limits{MaxBytes: maxPolicy}); err != nil {
		return nil, refuse("%w", err)
	}
	if err := p.doc.check(); err != nil {
		return nil, refuse("%w", err)
	}
	return p, nil
}

func (f policyFile) check() error {
	if len(f.Rules) > maxRules {
		return fmt.Errorf("it has %d rules, the most is %d", len(f.Rules), maxRules)
	}
	seen := map[string]bool{}
	for i, r := range f.Rules {
		switch {
		case !ruleForm.MatchString(r.ID):
			return fmt.Errorf("rule %d has no plain id", i+1)
		case seen[r.ID]:
			return fmt.Errorf("two rules are called %s", r.ID)
		case len(r.Agents) == 0 || len(r.Workspaces) == 0 || len(r.Commands) == 0:
			return fmt.Errorf("rule %s lacks agents, workspaces or commands", r.ID)
		}
		seen[r.ID] = true
		for _, a := range r.Agents {
			if a != string(agent.Codex) && a != string(agent.Claude) {
				return fmt.Errorf("rule %s names the agent %.80q", r.ID, a)
			}
		}
		for _, w := range r.Workspaces {
			if !filepath.IsAbs(w) || filepath.Clean(w) != w || w == "/" {
				return fmt.Errorf("rule %s: workspace %.200q is not a clean absolute path below /", r.ID, w)
			}
		}
		for _, argv := range r.Commands {
			if len(argv) == 0 || len(argv) > maxArgv || !programName.MatchString(argv[0]) || slices.Contains(shellWords, argv[0]) {
				return fmt.Errorf("rule %s: a command does not begin with a plain program name", r.ID)
			}
		}
	}
	return nil
}

// Enabled reports whether the policy may approve anything.
func (p *Policy) Enabled() bool { return p != nil && p.doc.Enabled && len(p.doc.Rules) > 0 }

// Allows gives the rule that approves a call, or why the user is asked.
func (p *Policy) Allows(c Candidate) (rule, why string) {
	switch {
	case !p.Enabled():
		return "", "no policy is enabled"
	case c.Kind != kindCommand:
		return "", "it is not a command"
	case c.Cwd == "":
		return "", "its directory is not known"
	}
	argv, why := simpleCommand(c.Command)
	if why != "" {
		return "", why
	}
	why = "no rule names it"
	for _, r := range p.doc.Rules {
		if !slices.Contains(r.Agents, string(c.Agent)) || !slices.ContainsFunc(r.Commands, func(v []string) bool { return slices.Equal(v, argv) }) {
			continue
		}
		for _, w := range r.Workspaces {
			ok, not := confined(w, c.Cwd, argv[1:])
			if ok {
				return r.ID, ""
			}
			why = not
		}
	}
	return "", why
}

// current reads the file again: a policy that was changed or withdrawn approves
// nothing more in this process.
func (p *Policy) current() bool {
	if p == nil {
		return false
	}
	now, err := LoadPolicy(p.path)
	return err == nil && now.print == p.print
}

package kit

import (
	"slices"

	"drawbridge/kitrun/internal/tree"
	"drawbridge/shared/strictjson"
)

// Members of kit.json that belong to the container, and those that the kits' tools
// know beside the lists of files. Any other is an extension of a third party.
var (
	coreMembers  = []string{"schema_version", "id", "name", "description", "product_name", "flows"}
	knownMembers = []string{
		"dependencies", "workflow_triggers", "hook_influence_expectations", "flow_step_actions", "skill_roles",
		"first_party", "agent_spawn_triggers", "observability_contribution", "version", "execution",
	}
)

// Conformance is what consumers can do with a kit.
type Conformance struct {
	K0 bool // a valid container: flows can be evaluated
	K1 bool // and files for agents
	K2 bool // and evals
}

// Inspection describes a kit.
type Inspection struct {
	ID, Name    string // "<unknown>" when kit.json does not say
	Conformance Conformance
	Targets     []string // who can use it
	ThirdParty  []string // members that no tool of kits knows
	Execution   *Execution
}

// Inspect describes the kit in a directory, valid or not.
func Inspect(dir string) (Inspection, error) {
	r, err := Validate(dir)
	if err != nil {
		return Inspection{}, err
	}
	if r.Manifest.Members == nil {
		return Inspection{}, invalid(r)
	}
	m := r.Manifest
	out := Inspection{ID: orUnknown(m.Members, "id"), Name: orUnknown(m.Members, "name"), Execution: m.Execution}
	out.Conformance.K0 = r.core == 0
	out.Conformance.K1 = out.Conformance.K0 && slices.ContainsFunc(assetLists, func(name string) bool { return hasEntries(m.Members, name) })
	out.Conformance.K2 = out.Conformance.K1 && hasEntries(m.Members, "evals")
	for _, member := range m.Members {
		if !slices.Contains(slices.Concat(coreMembers, assetLists, knownMembers), member.Name) {
			out.ThirdParty = append(out.ThirdParty, member.Name)
		}
	}
	slices.SortFunc(out.ThirdParty, tree.Compare)
	if out.Conformance.K0 {
		out.Targets = append(out.Targets, "flow")
	}
	if out.Conformance.K1 {
		out.Targets = append(out.Targets, "flow-agents")
	}
	out.Targets = append(out.Targets, out.ThirdParty...)
	return out, nil
}

func orUnknown(o strictjson.Object, name string) string {
	v, _ := o.Get(name)
	if s, ok := v.(string); ok {
		return s
	}
	return "<unknown>"
}

func hasEntries(o strictjson.Object, name string) bool {
	v, _ := o.Get(name)
	list, _ := v.([]any)
	return len(list) > 0
}

// JSON is what `kitrun inspect` prints.
func (i Inspection) JSON() strictjson.Object {
	var execution any
	if i.Execution != nil {
		execution = i.Execution.Members
	}
	return strictjson.Object{
		{Name: "kit_id", Value: i.ID},
		{Name: "kit_name", Value: i.Name},
		{Name: "conformance", Value: strictjson.Object{
			{Name: "k0", Value: i.Conformance.K0}, {Name: "k1", Value: i.Conformance.K1}, {Name: "k2", Value: i.Conformance.K2},
		}},
		{Name: "targets", Value: list(i.Targets)},
		{Name: "third_party_extensions", Value: list(i.ThirdParty)},
		{Name: "trust", Value: "unverified"},
		{Name: "execution", Value: execution},
	}
}

func list(names []string) []any {
	out := make([]any, 0, len(names))
	for _, name := range names {
		out = append(out, name)
	}
	return out
}

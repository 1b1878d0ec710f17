package handoff_test

import (
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/handoff"
)

// A dialog is about the oldest waiting call of its kind and command; with none, no
// key is ever sent.
func TestCallOf(t *testing.T) {
	run := func(id, command string) agent.Call { return agent.Call{ID: id, Kind: "run_command", Command: command} }
	edit := func(id, command string) agent.Call { return agent.Call{ID: id, Kind: "edit_files", Command: command} }
	const patch = "apply_patch <<'EOF'\n*** Begin Patch\n*** Add File: /w/../out.txt\n+x\n*** End Patch\nEOF\n"
	two := []agent.Call{run("1", "touch a"), run("2", "touch  b\n--force")}
	for name, tc := range map[string]struct {
		p     agent.Prompt
		calls []agent.Call
		want  string // id of the call
	}{
		"the first":                {agent.Prompt{Kind: "run_command", Command: "touch a"}, two, "1"},
		"the second, wrapped":      {agent.Prompt{Kind: "run_command", Command: "touch b --f\norce"}, two, "2"},
		"neither":                  {agent.Prompt{Kind: "run_command", Command: "touch c"}, two, ""},
		"a beginning":              {agent.Prompt{Kind: "run_command", Command: "touch"}, two, ""},
		"a beginning that is cut":  {agent.Prompt{Kind: "run_command", Command: "touch b", Cut: true}, two, "2"},
		"nothing shown":            {agent.Prompt{Kind: "run_command"}, two[:1], ""},
		"another kind":             {agent.Prompt{Kind: "mcp_tool", Command: "touch a"}, two, ""},
		"equal ones, the oldest":   {agent.Prompt{Kind: "run_command", Command: "x"}, []agent.Call{run("1", "x"), run("2", "x")}, "1"},
		"no call":                  {agent.Prompt{Kind: "run_command", Command: "x"}, nil, ""},
		"a file by its path":       {agent.Prompt{Kind: "edit_files", Command: "/w/a.txt"}, []agent.Call{edit("1", "/w/a.txt")}, "1"},
		"a file by its name":       {agent.Prompt{Kind: "edit_files", Command: "a.txt"}, []agent.Call{edit("1", "/w/a.txt")}, "1"},
		"an end of its name":       {agent.Prompt{Kind: "edit_files", Command: "a.txt"}, []agent.Call{edit("1", "/w/aa.txt")}, ""},
		"a patch that names it":    {agent.Prompt{Kind: "edit_files", Command: "/out.txt"}, []agent.Call{edit("1", patch)}, "1"},
		"a patch of another file":  {agent.Prompt{Kind: "edit_files", Command: "/other.txt"}, []agent.Call{edit("1", patch)}, ""},
		"a patch, no file shown":   {agent.Prompt{Kind: "edit_files"}, []agent.Call{edit("1", patch)}, "1"},
		"two edits, no file shown": {agent.Prompt{Kind: "edit_files"}, []agent.Call{edit("1", patch), edit("2", patch)}, ""},
		"two edits by name alone":  {agent.Prompt{Kind: "edit_files", Command: "a.txt"}, []agent.Call{edit("1", "/w/a.txt"), edit("2", "/v/a.txt")}, ""},
	} {
		got, ok := handoff.CallOf(tc.p, tc.calls)
		if !ok {
			got.ID = ""
		}
		if got.ID != tc.want {
			t.Errorf("%s: call %q, want %q", name, got.ID, tc.want)
		}
	}
}

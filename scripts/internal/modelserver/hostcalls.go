package modelserver

import (
	"encoding/json"
	"strings"
)

// CALLS lets the agent be a Host: it calls one tool of an MCP server after the
// other and says CALLS finished. Its argument is server/tool{json}|tool{json}…
// without blanks; Calls writes it.
func init() {
	scenarios["CALLS"] = func(v voice, q query) {
		server, list, _ := strings.Cut(q.arg, "/")
		calls := strings.Split(list, "|")
		if q.step >= len(calls) {
			answer(v, "CALLS finished")
			return
		}
		tool, args, _ := strings.Cut(calls[q.step], "{")
		raw := json.RawMessage("{" + args)
		if !json.Valid(raw) {
			raw = json.RawMessage("{}")
		}
		v.tool(server, tool, raw)
		v.finish(usageIn, usageOut)
	}
}

// A ToolCall is one step of Calls. No text in it may hold a blank or "|".
type ToolCall struct {
	Tool string
	Args map[string]any
}

// Calls is a message that makes the agent call the tools of an MCP server, which
// agents name mcp__SERVER.
func Calls(server string, calls ...ToolCall) string {
	steps := make([]string, len(calls))
	for i, c := range calls {
		args, err := json.Marshal(c.Args)
		if err != nil || c.Args == nil {
			args = []byte("{}")
		}
		steps[i] = c.Tool + string(args)
	}
	return "SCN=CALLS:" + server + "/" + strings.Join(steps, "|")
}

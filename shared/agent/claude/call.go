package claude

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"drawbridge/shared/agent"
)

// kinds are the tools whose dialogs have a kind of their own (claude §6).
var kinds = map[string]string{
	"Bash":            "run_command",
	"Edit":            "edit_files",
	"MultiEdit":       "edit_files",
	"NotebookEdit":    "edit_files",
	"Write":           "edit_files",
	"AskUserQuestion": "questionnaire",
	"ExitPlanMode":    "plan",
	"WebFetch":        "web_fetch",
}

// mcpPrefix begins the name of a tool of an MCP server: mcp__SERVER__TOOL.
const mcpPrefix = "mcp__"

// callOf gives the call of one tool_use block. Any call may ask a person; whether
// it does, the registry tells.
func callOf(b block, cwd string) agent.Call {
	c := agent.Call{ID: string(b.ID), Name: string(b.Name), Kind: kinds[string(b.Name)], Cwd: cwd}
	var in struct {
		Command  text `json:"command"`
		File     text `json:"file_path"`
		Notebook text `json:"notebook_path"`
		URL      text `json:"url"`
		Plan     text `json:"plan"`
	}
	object(b.Input, &in)
	switch c.Kind {
	case "run_command":
		c.Command = string(in.Command)
	case "edit_files":
		c.Command = string(in.File + in.Notebook)
	case "web_fetch":
		c.Command = string(in.URL)
	case "plan":
		c.Command = string(in.Plan)
	case "questionnaire":
		c.Asks = asksOf(b.Input)
		var texts []string
		for _, q := range c.Asks {
			texts = append(texts, q.Text)
		}
		c.Command = strings.Join(texts, "\n")
	default:
		if server, tool, ok := strings.Cut(strings.TrimPrefix(c.Name, mcpPrefix), "__"); ok && strings.HasPrefix(c.Name, mcpPrefix) {
			c.Kind, c.Command = "mcp_tool", server+"."+tool
		}
	}
	return c
}

// asksOf reads the questions of an AskUserQuestion call. They have no ids: their
// order is theirs. One that is not understood makes the whole list empty, so that
// nobody answers by number.
func asksOf(input jsontext.Value) []agent.Ask {
	var in struct {
		Questions []struct {
			Question text `json:"question"`
			Header   text `json:"header"`
			Multi    flag `json:"multiSelect"`
			Options  []struct {
				Label       text `json:"label"`
				Description text `json:"description"`
			} `json:"options"`
		} `json:"questions"`
	}
	if json.Unmarshal(input, &in, lenient) != nil {
		return nil
	}
	var out []agent.Ask
	for i, q := range in.Questions {
		a := agent.Ask{ID: decimal(i + 1), Header: string(q.Header), Text: string(q.Question), Multi: bool(q.Multi)}
		for _, o := range q.Options {
			if o.Label == "" {
				return nil
			}
			a.Options = append(a.Options, agent.Choice{Label: string(o.Label), Description: string(o.Description)})
		}
		if a.Text == "" {
			return nil
		}
		out = append(out, a)
	}
	return out
}

func decimal(n int) string { return strconv.Itoa(n) }

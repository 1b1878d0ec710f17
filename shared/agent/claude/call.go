package claude

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
)

// kindQuestionnaire is the kind of a call that asks questions.
const kindQuestionnaire = "questionnaire"

// mcpPrefix begins the name of a tool of an MCP server: mcp__SERVER__TOOL.
const mcpPrefix = "mcp__"

// callOf gives the call of one tool_use block, with what the rules say of it: its
// kind and what it is about. A call that they do not know has neither. Any call
// may ask a person; whether it does, the registry tells.
func callOf(b block, means *rule.Call, cwd string) agent.Call {
	c := agent.Call{ID: string(b.ID), Name: string(b.Name), Cwd: cwd}
	if means != nil && means.ID == c.ID {
		c.Kind, c.Command = means.Kind, means.Command
	}
	if server, tool, ok := strings.Cut(strings.TrimPrefix(c.Name, mcpPrefix), "__"); ok && c.Kind == "mcp_tool" {
		c.Command = server + "." + tool
	}
	if c.Kind == kindQuestionnaire {
		c.Asks = asksOf(b.Input)
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

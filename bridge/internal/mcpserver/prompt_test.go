package mcpserver_test

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"drawbridge/bridge/internal/catalog"
)

// requireSkill wants exactly one prompt, which is the skill.
func requireSkill(t *testing.T, ctx context.Context, session *mcp.ClientSession) {
	t.Helper()
	list, err := session.ListPrompts(ctx, nil)
	if err != nil || len(list.Prompts) != 1 || list.NextCursor != "" {
		t.Fatalf("prompts/list: %+v, %v", list, err)
	}
	if p := list.Prompts[0]; p.Name != catalog.SkillName || len(p.Arguments) != 0 || p.Description == "" {
		t.Errorf("prompt %+v", p)
	}
	got, err := session.GetPrompt(ctx, &mcp.GetPromptParams{Name: catalog.SkillName})
	if err != nil || len(got.Messages) != 1 {
		t.Fatalf("prompts/get: %+v, %v", got, err)
	}
	text, ok := got.Messages[0].Content.(*mcp.TextContent)
	if !ok || text.Text != catalog.Skill || got.Messages[0].Role != "user" {
		t.Errorf("the prompt is not the skill: %+v", got.Messages[0])
	}
	if _, err := session.GetPrompt(ctx, &mcp.GetPromptParams{Name: "another"}); err == nil {
		t.Error("a prompt that does not exist is answered")
	}
}

// The page is what is served, and it speaks of tools that exist.
func TestSkill(t *testing.T) {
	page, err := os.ReadFile("../../../docs/SKILL.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != catalog.Skill {
		t.Error("docs/SKILL.md and bridge/internal/catalog/skill.md differ: copy the one over the other")
	}
	c, err := catalog.New(catalog.Options{Handoff: catalog.Ready(newFake())})
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range c.Tools() {
		name := "`" + strings.TrimPrefix(tool.Name, catalog.Prefix) + "`"
		switch name {
		case "`native_inspect`", "`identify_foreground`": // for diagnosis
			continue
		}
		if !strings.Contains(catalog.Skill, name) {
			t.Errorf("the skill does not speak of %s", name)
		}
	}
}

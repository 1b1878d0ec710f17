package mcpserver

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"drawbridge/bridge/internal/catalog"
)

// addSkill offers the skill as the one prompt, without arguments.
func addSkill(srv *mcp.Server) {
	srv.AddPrompt(&mcp.Prompt{
		Name: catalog.SkillName, Title: catalog.SkillTitle, Description: catalog.SkillAbout,
	}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{
			Description: catalog.SkillAbout,
			Messages:    []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: catalog.Skill}}},
		}, nil
	})
}

package catalog

import _ "embed" // for the skill

// Skill is what a controller model is taught about the tools: a page in the form
// of a skill file. docs/SKILL.md is the same text.
//
//go:embed skill.md
var Skill string

// The skill as an MCP prompt.
const (
	SkillName  = "drawbridge"
	SkillTitle = "Work with agents through drawbridge"
	SkillAbout = "How to hand work to coding agents with these tools, what to do when a callback arrives, and what never to do."
)

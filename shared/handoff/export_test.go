package handoff

import (
	"drawbridge/shared/agent"
	"drawbridge/shared/store"
)

// SimpleCommand is simpleCommand.
func SimpleCommand(line string) ([]string, string) { return simpleCommand(line) }

// Reprovable is reprovable.
func Reprovable(x store.Dispatch) bool { return reprovable(x) }

// CallOf is callOf.
func CallOf(p agent.Prompt, calls []agent.Call) (agent.Call, bool) { return callOf(p, calls) }

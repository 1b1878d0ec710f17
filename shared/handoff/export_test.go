package handoff

import "drawbridge/shared/store"

// SimpleCommand is simpleCommand.
func SimpleCommand(line string) ([]string, string) { return simpleCommand(line) }

// Reprovable is reprovable.
func Reprovable(x store.Dispatch) bool { return reprovable(x) }

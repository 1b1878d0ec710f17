package handoff

// SimpleCommand is simpleCommand.
func SimpleCommand(line string) ([]string, string) { return simpleCommand(line) }

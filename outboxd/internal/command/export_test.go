package command

import (
	"drawbridge/shared/callback"
	"drawbridge/shared/process"
)

// Judge is what a child that printed stdout and exited would have proved.
func (c *Call) Judge(stdout []byte, exit int) callback.Outcome {
	return c.judge(process.Result{Ran: true, Exit: exit, Stdout: stdout})
}

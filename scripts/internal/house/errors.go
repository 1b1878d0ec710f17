package house

import (
	"bytes"
	"fmt"

	"drawbridge/shared/fault"
)

// ErrorsPage is the page of codes, relative to the root.
const ErrorsPage = "docs/errors.md"

// Errors renders the page of codes from the registry of shared/fault.
func Errors() []byte {
	var b bytes.Buffer
	b.WriteString(`# Error codes

<!-- Written by scripts/cmd/house from shared/fault/codes.go; edit there. -->

Every refusal and failure of drawbridge carries one of these codes: in a tool result as ` + "`code`" + `, on a
command line in the message, in logs as ` + "`code`" + `. A code is never renamed and never used for something
else, so scripts may match on it; the sentence beside it may change.

The exit status is that of a program which ends with the code: 1 the operation failed, 2 usage or
configuration, 69 something needed is missing, 70 internal or the drain deadline passed, 73 the Store cannot
be used, 75 try again.

| Code | Exit | Meaning |
| --- | --- | --- |
`)
	for _, e := range fault.Entries() {
		fmt.Fprintf(&b, "| `%s` | %d | %s |\n", e.Code, e.Exit, e.Text)
	}
	return b.Bytes()
}

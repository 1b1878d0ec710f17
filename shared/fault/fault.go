// Package fault is the one error type that crosses a process border: a stable
// code for machines, a message and a hint for people, and the facts a caller
// needs to decide whether anything may have happened.
//
// Inside a package plain wrapped errors are fine. At a border (MCP result, exit
// status, HTTP answer, log line) CodeOf names the condition; an error without a
// code is Internal and its text stays in the log.
package fault

import (
	"errors"
	"fmt"
)

// Input says what a failed operation may have typed into a terminal.
type Input string

// The three levels of terminal input (seed 000, tools.md §4).
const (
	InputNone     Input = "none"     // proven: nothing was typed
	InputPossible Input = "possible" // may have begun; never repeat
	InputSent     Input = "sent"     // proven: something was typed
)

// Error is a failure with a stable code.
type Error struct {
	Code    Code
	Message string         // what was being done, to what, why it failed; one line, no secret
	Hint    string         // what to do next; may be empty
	Input   Input          // empty means InputNone
	Retry   bool           // repeating the same call is safe: no trace of the attempt is left
	Details map[string]any // public facts, e.g. "turn_id"; never authority
	Err     error          // cause, for logs only
}

// New makes an Error with a formatted message. A %w verb sets the cause.
func New(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// Error gives the message alone; hints and details are for the border.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// WithHint sets what the reader should do next and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// With adds one public detail and returns e.
func (e *Error) With(key string, value any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[key] = value
	return e
}

// WithInput records what may have been typed and returns e.
func (e *Error) WithInput(in Input) *Error {
	e.Input = in
	if in != InputNone {
		e.Retry = false
	}
	return e
}

// Safe marks the attempt as repeatable without danger and returns e. It has no
// effect once input may have begun.
func (e *Error) Safe() *Error {
	e.Retry = e.Input == "" || e.Input == InputNone
	return e
}

// As gives the first Error in err's chain.
func As(err error) (*Error, bool) {
	var e *Error
	ok := errors.As(err, &e)
	return e, ok
}

// CodeOf gives the code of err: "" for nil, Internal for an error without one.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := As(err); ok {
		return e.Code
	}
	return Internal
}

// Is reports whether err carries code.
func Is(err error, code Code) bool { return err != nil && CodeOf(err) == code }

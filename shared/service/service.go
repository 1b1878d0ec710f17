// Package service is what all programs of drawbridge have in common around their
// work: a command tree with flags, environment and configuration file; private
// directories; a log that never blocks; a group of actors that is stopped in
// order under a deadline; the lifeline of a sibling; readiness; exit codes.
//
// A program is a Program with its Commands; main only calls Main. A command that
// serves opens what it needs and adds actors to a Group. Nothing here keeps
// state between two programs in one process, so tests run several.
package service

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Exit codes that do not come from a fault code.
const (
	ExitOK    = 0
	ExitFail  = 1
	ExitUsage = 2
)

// Status is an error that only carries an exit status: the command has already
// said what there is to say. Status 0 is success.
type Status int

// Error is for callers that print errors anyway.
func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// usageError marks a mistake in flags, arguments, environment or configuration.
func usageError(format string, args ...any) error {
	return fault.New(fault.Usage, format, args...)
}

// Usage prints a mistake in flags, arguments, environment or configuration and
// gives exit status 2.
func Usage(stderr io.Writer, name string, err error) int {
	var f *fault.Error
	if !errors.As(err, &f) {
		err = usageError("%s", err)
	}
	report(stderr, name, err)
	return ExitUsage
}

// Exit prints err, if there is any, and gives the exit status of its class:
// 0 for nil, the code's own for a fault, 70 for anything else.
func Exit(stderr io.Writer, name string, err error) int {
	var status Status
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &status):
		return int(status)
	}
	report(stderr, name, err)
	return fault.ExitCode(err)
}

// report writes the error line, which ends with the error's code, and, when
// there is one, the hint line. A misuse of the command line needs no code.
func report(stderr io.Writer, name string, err error) {
	line := fault.CleanLine(err.Error())
	if f, ok := fault.As(err); ok && f.Code != fault.Usage {
		line += " [" + string(f.Code) + "]"
	}
	fmt.Fprintf(stderr, "%s: error: %s\n", name, line)
	if f, ok := fault.As(err); ok && f.Hint != "" {
		fmt.Fprintf(stderr, "%s: hint: %s\n", name, fault.CleanLine(f.Hint))
	}
}

// errorJSON is the error object that a command with -json prints on stdout.
func errorJSON(err error) []byte {
	o := strictjson.Object{
		{Name: "error", Value: string(fault.CodeOf(err))},
		{Name: "message", Value: fault.CleanLine(err.Error())},
	}
	if f, ok := fault.As(err); ok && f.Hint != "" {
		o = append(o, strictjson.Member{Name: "hint", Value: fault.CleanLine(f.Hint)})
	}
	data, jsonErr := o.JSON()
	if jsonErr != nil {
		return []byte(`{"error":"internal"}`)
	}
	return data
}

// plainExit folds an exit status into the three that some programs promise.
func plainExit(status int) int {
	switch status {
	case ExitOK, ExitUsage:
		return status
	}
	return ExitFail
}

// environmentPrefix is the prefix of a program's settings in the environment.
func environmentPrefix(program string) string { return strings.ToUpper(program) }

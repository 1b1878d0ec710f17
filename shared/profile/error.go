package profile

import (
	"fmt"

	"drawbridge/shared/fault"
)

// A ProfileError is why a Profile, or its use on this machine, is refused.
// Class is stable; Detail is for people and never holds an argument, an
// environment value or the controller session.
type ProfileError struct {
	Class  fault.Code // one of the classes of host-profile §13
	Path   string     // member that is wrong, "callback.arguments[3]"; "$" is the whole document; may be empty
	Detail string     // one line
	Err    error      // cause, for logs
}

// Error gives one line without the class, which the border adds.
func (e *ProfileError) Error() string {
	switch e.Path {
	case "":
		return "host profile: " + e.Detail
	case root:
		return "host profile: document: " + e.Detail
	}
	return "host profile: " + e.Path + ": " + e.Detail
}

// Unwrap gives the cause.
func (e *ProfileError) Unwrap() error { return e.Err }

// As makes a ProfileError a fault.Error for errors.As, so that fault.CodeOf and
// the exit codes know its class.
func (e *ProfileError) As(target any) bool {
	t, ok := target.(**fault.Error)
	if !ok {
		return false
	}
	*t = &fault.Error{Code: e.Class, Message: e.Error(), Err: e}
	if e.Path != "" {
		(*t).Details = map[string]any{"path": e.Path}
	}
	return true
}

func refuse(class fault.Code, path, format string, args ...any) *ProfileError {
	return &ProfileError{Class: class, Path: path, Detail: fmt.Sprintf(format, args...)}
}

// Package checkup is what the doctor commands have in common: a list of checks,
// each with what it saw and what is wrong, as JSON and as a table for a person; and
// the probes that more than one program needs.
//
// A check looks and changes nothing. One that fails does not keep the next from
// being made.
package checkup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"drawbridge/shared/fault"
)

// Status says what a check amounts to.
type Status string

// The verdicts, the worst last.
const (
	OK      Status = "ok"
	Warning Status = "warning" // work goes on, and somebody should know
	Failed  Status = "error"   // what the check is about cannot be used
)

// Fact is one thing that a check saw, shown in the order given.
type Fact struct {
	Name  string
	Value any
}

// Facts makes facts of pairs of a name and a value.
func Facts(pairs ...any) []Fact {
	out := make([]Fact, 0, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, Fact{pairs[i].(string), pairs[i+1]})
	}
	return out
}

// Probe looks at one thing. It must write nothing.
type Probe func(ctx context.Context) ([]Fact, error)

// Check is one line of a report.
type Check struct {
	Name  string
	Facts []Fact
	Err   error // nil: nothing is wrong; of Warn: a warning
}

// warning is an error that is none.
type warning struct{ error }

func (w warning) Unwrap() error { return w.error }

// Warn makes a warning of what is wrong: worth telling, and in nobody's way.
func Warn(err error) error { return warning{err} }

// Status is the check's verdict.
func (c Check) Status() Status {
	switch {
	case c.Err == nil:
		return OK
	case errors.As(c.Err, new(warning)):
		return Warning
	}
	return Failed
}

// Detail is what is wrong, "" when nothing is. It ends with the error's code, as
// the error line of a command does.
func (c Check) Detail() string {
	if c.Err == nil {
		return ""
	}
	if e, ok := fault.As(c.Err); ok {
		return e.Message + " [" + string(e.Code) + "]"
	}
	return c.Err.Error()
}

// Hint says what to do about it, "" when that is not known.
func (c Check) Hint() string {
	if e, ok := fault.As(c.Err); ok {
		return e.Hint
	}
	return ""
}

// MarshalJSON keeps the order name, status, facts, detail, hint.
func (c Check) MarshalJSON() ([]byte, error) {
	facts := append([]Fact{{"name", c.Name}, {"status", c.Status()}}, c.Facts...)
	for _, f := range []Fact{{"detail", c.Detail()}, {"hint", c.Hint()}} {
		if f.Value != "" {
			facts = append(facts, f)
		}
	}
	return Object(facts)
}

// Object writes facts as one JSON object, in their order.
func Object(facts []Fact) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	buf.WriteByte('{')
	for i, f := range facts {
		if i > 0 {
			buf.WriteByte(',')
		}
		for j, v := range []any{f.Name, f.Value} {
			if err := enc.Encode(v); err != nil {
				return nil, err
			}
			buf.Truncate(buf.Len() - 1) // the line end
			if j == 0 {
				buf.WriteByte(':')
			}
		}
	}
	buf.WriteByte('}')
	return buf.Bytes(), nil
}

// Worst is the worst verdict of the checks.
func Worst(checks []Check) Status {
	worst := OK
	for _, c := range checks {
		switch s := c.Status(); {
		case s == Failed:
			return Failed
		case s == Warning:
			worst = Warning
		}
	}
	return worst
}

// Table writes the checks for a person: a line for each, and below it what to do.
func Table(w io.Writer, checks []Check) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, c := range checks {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", c.Name, c.Status(), fault.CleanLine(c.text()))
		if hint := c.Hint(); hint != "" {
			fmt.Fprintf(tw, "\t\thint: %s\n", fault.CleanLine(hint))
		}
	}
	return tw.Flush()
}

// text is what is wrong, and what was seen.
func (c Check) text() string {
	var parts []string
	if d := c.Detail(); d != "" {
		parts = append(parts, d)
	}
	for _, f := range c.Facts {
		value := fmt.Sprint(f.Value)
		if list, ok := f.Value.([]string); ok {
			value = strings.Join(list, " ")
		}
		if value != "" {
			parts = append(parts, strings.ReplaceAll(f.Name, "_", " ")+" "+value)
		}
	}
	return strings.Join(parts, "; ")
}

package hostcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

// minScrubbed is the shortest value that is searched for in details: a shorter
// one would be found in any sentence.
const minScrubbed = 4

// ErrFindings is what Doctor.Run returns when a check is in error: the report is
// already written, only the exit status is left to say so.
var ErrFindings error = fault.New(fault.DoctorFindings, "doctor: at least one check is in error")

// A Fact is one member of a check, shown in the order given.
type Fact struct {
	Name  string
	Value any
}

// A Probe looks at one thing outside the Profile. It must write nothing.
type Probe func(ctx context.Context) ([]Fact, error)

// Doctor checks whether this machine and environment can run the bridge under
// one Profile.
type Doctor struct {
	Registry profile.Registry
	Environ  []string // where the session variable is looked for

	Store    Probe // the Store can be opened and written by this program
	Siblings Probe // the other programs are found
	Terminal Probe // tmux answers
}

// check is one line of the report.
type check struct {
	Name  string
	Facts []Fact
	Err   error
}

// MarshalJSON keeps the order name, status, facts, detail.
func (c check) MarshalJSON() ([]byte, error) {
	status := "ok"
	if c.Err != nil {
		status = "error"
	}
	facts := append([]Fact{{"name", c.Name}, {"status", status}}, c.Facts...)
	if c.Err != nil {
		facts = append(facts, Fact{"detail", detail(c.Err)})
	}
	return marshalFacts(facts)
}

func marshalFacts(facts []Fact) ([]byte, error) {
	var buf jsonBuffer
	for i, f := range facts {
		sep := byte(',')
		if i == 0 {
			sep = '{'
		}
		buf = append(buf, sep)
		for j, v := range []any{f.Name, f.Value} {
			var part jsonBuffer
			enc := json.NewEncoder(&part)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(v); err != nil {
				return nil, err
			}
			if j == 1 {
				buf = append(buf, ':')
			}
			buf = append(buf, strings.TrimSuffix(string(part), "\n")...)
		}
	}
	return append(buf, '}'), nil
}

// detail ends with the error's code, as the error line of a command does.
func detail(err error) string {
	if e, ok := fault.As(err); ok {
		return e.Message + " [" + string(e.Code) + "]"
	}
	return err.Error()
}

// Run makes every check it can, writes the whole report, and returns
// ErrFindings unless all are ok. It never returns before the report is written,
// but for wrong input.
func (d Doctor) Run(ctx context.Context, w io.Writer, r Request) error {
	if r.Selection == "" || r.Host == "" || r.HostVersion == "" {
		return fault.New(fault.Usage, "doctor needs --host-profile, --host and --host-version")
	}
	p, _, err := profile.Load(r.Selection, d.Registry)
	if err != nil {
		return d.report(w, nil, []check{{Name: "profile", Err: err}}, nil)
	}
	checks := []check{{Name: "profile"}, hostCompatibility(p, r)}
	if !p.Standalone() {
		checks = append(checks, check{
			Name: "standalone_bridge_scope", Facts: []Fact{{"scope", p.Scope()}},
			Err: fmt.Errorf("%s needs a connector of the Host; host-bridge does not run under it", p.Scope()),
		})
	}
	_, err = p.CaptureSession(d.Environ)
	checks = append(checks,
		check{"controller_context", []Fact{{"variable", p.SessionVariable()}}, err},
		check{"callback_executable", []Fact{{"path", p.Executable()}}, p.Ready()},
	)
	for _, probe := range []struct {
		name string
		run  Probe
	}{{"store", d.Store}, {"siblings", d.Siblings}, {"terminal_provider", d.Terminal}} {
		if probe.run == nil {
			continue
		}
		facts, err := probe.run(ctx)
		checks = append(checks, check{probe.name, facts, err})
	}
	head := []Fact{
		{"profile_id", p.ID()}, {"profile_revision", p.Revision()}, {"profile_fingerprint", p.Fingerprint()},
		{"controller_context_scope", p.Scope()}, {"standalone_bridge_compatible", p.Standalone()},
	}
	return d.report(w, head, checks, d.hidden(p))
}

func hostCompatibility(p profile.Profile, r Request) check {
	c := check{Name: "host_compatibility", Err: p.Compatible(r.Host, r.HostVersion)}
	if c.Err == nil {
		c.Facts = []Fact{{"host", r.Host}, {"version", r.HostVersion}, {"range", p.Range()}}
	}
	return c
}

// hidden lists the values that no detail may hold.
func (d Doctor) hidden(p profile.Profile) []string {
	var out []string
	for _, name := range append(p.Allow(), p.SessionVariable()) {
		for _, e := range d.Environ {
			if v, ok := strings.CutPrefix(e, name+"="); ok && len(v) >= minScrubbed {
				out = append(out, v)
			}
		}
	}
	return out
}

func (d Doctor) report(w io.Writer, head []Fact, checks []check, hidden []string) error {
	ok := true
	for i, c := range checks {
		if c.Err == nil {
			continue
		}
		ok = false
		text := detail(c.Err)
		for _, v := range hidden {
			text = strings.ReplaceAll(text, v, "[hidden]")
		}
		checks[i].Err = errors.New(text)
	}
	facts := append([]Fact{{"ok", ok}, {"mode", "host_bridge"}}, head...)
	facts = append(facts, Fact{"checks", checks})
	data, err := marshalFacts(facts)
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := write(w, json.RawMessage(data)); err != nil {
		return err
	}
	if !ok {
		return ErrFindings
	}
	return nil
}

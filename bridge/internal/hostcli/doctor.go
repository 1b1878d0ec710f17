package hostcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

// minScrubbed is the shortest value that is searched for in details: a shorter
// one would be found in any sentence.
const minScrubbed = 4

// ErrFindings is what Doctor.Run returns when a check is in error: the report is
// already written, only the exit status is left to say so.
var ErrFindings error = fault.New(fault.DoctorFindings, "doctor: at least one check is in error")

// Doctor checks whether this machine and environment can run the bridge under
// one Profile.
type Doctor struct {
	Registry profile.Registry
	Environ  []string // where the session variable is looked for

	Store    checkup.Probe // the Store can be opened and written by this program
	Siblings checkup.Probe // the other programs are found
	Terminal checkup.Probe // tmux answers
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
		return d.report(w, nil, []checkup.Check{{Name: "profile", Err: err}}, nil)
	}
	checks := []checkup.Check{{Name: "profile"}, hostCompatibility(p, r)}
	if !p.Standalone() {
		checks = append(checks, checkup.Check{
			Name: "standalone_bridge_scope", Facts: checkup.Facts("scope", p.Scope()),
			Err: fmt.Errorf("%s needs a connector of the Host; host-bridge does not run under it", p.Scope()),
		})
	}
	_, err = p.CaptureSession(d.Environ)
	checks = append(checks,
		checkup.Check{Name: "controller_context", Facts: checkup.Facts("variable", p.SessionVariable()), Err: err},
		checkup.Check{Name: "callback_executable", Facts: checkup.Facts("path", p.Executable()), Err: p.Ready()},
	)
	for _, probe := range []struct {
		name string
		run  checkup.Probe
	}{{"store", d.Store}, {"siblings", d.Siblings}, {"terminal_provider", d.Terminal}} {
		if probe.run == nil {
			continue
		}
		facts, err := probe.run(ctx)
		checks = append(checks, checkup.Check{Name: probe.name, Facts: facts, Err: err})
	}
	head := checkup.Facts(
		"profile_id", p.ID(), "profile_revision", p.Revision(), "profile_fingerprint", p.Fingerprint(),
		"controller_context_scope", p.Scope(), "standalone_bridge_compatible", p.Standalone(),
	)
	return d.report(w, head, checks, d.hidden(p))
}

func hostCompatibility(p profile.Profile, r Request) checkup.Check {
	c := checkup.Check{Name: "host_compatibility", Err: p.Compatible(r.Host, r.HostVersion)}
	if c.Err == nil {
		c.Facts = checkup.Facts("host", r.Host, "version", r.HostVersion, "range", p.Range())
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

func (d Doctor) report(w io.Writer, head []checkup.Fact, checks []checkup.Check, hidden []string) error {
	ok := true
	for i, c := range checks {
		if c.Err == nil {
			continue
		}
		ok = false
		text := c.Detail()
		for _, v := range hidden {
			text = strings.ReplaceAll(text, v, "[hidden]")
		}
		checks[i].Err = errors.New(text)
	}
	facts := append(checkup.Facts("ok", ok, "mode", "host_bridge"), head...)
	facts = append(facts, checkup.Facts("checks", checks)...)
	data, err := checkup.Object(facts)
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

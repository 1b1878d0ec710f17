// Package hostcli is what an administrator runs before a Host is connected:
// host-profile example, list and validate, and doctor (host-profile §10, §11).
//
// Each command writes its result to one writer, in the documented order of
// members, and returns an error instead of printing it. Nothing here sends a
// callback, writes to the Store, or shows the value of the session variable or
// of a variable that the Profile allows.
package hostcli

import (
	"encoding/json"
	"fmt"
	"io"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

// Identity of the list document.
const (
	listSchema  = "agent-knock-knock/host-profile-list"
	listVersion = 1
)

// Request is what the command line says about a Profile and its Host.
type Request struct {
	Selection   string // path or built-in id
	Host        string
	HostVersion string
}

// Example writes the starter document byte for byte.
func Example(w io.Writer) error {
	_, err := w.Write(profile.Starter())
	return err
}

// List writes the built-in Profiles.
func List(w io.Writer, reg profile.Registry) error {
	type entry struct {
		Source        string        `json:"source"`
		ID            string        `json:"id"`
		Revision      string        `json:"revision"`
		Fingerprint   string        `json:"fingerprint"`
		Compatibility compatibility `json:"compatibility"`
	}
	entries := []entry{}
	for _, p := range reg.List() {
		entries = append(entries, entry{profile.SourceBuiltIn, p.ID(), p.Revision(), p.Fingerprint(), compatibilityOf(p)})
	}
	return write(w, struct {
		Schema   string  `json:"schema"`
		Version  int     `json:"version"`
		Profiles []entry `json:"profiles"`
	}{listSchema, listVersion, entries})
}

type compatibility struct {
	Host  string `json:"host"`
	Range string `json:"range"`
}

func compatibilityOf(p profile.Profile) compatibility { return compatibility{p.Host(), p.Range()} }

// Validate checks the document, and its compatibility when Host and HostVersion
// are given. It looks at neither the session variable nor the executable. On
// failure nothing is written.
func Validate(w io.Writer, reg profile.Registry, r Request) error {
	if (r.Host == "") != (r.HostVersion == "") {
		return fault.New(fault.Usage, "--host and --host-version are given together or not at all")
	}
	p, src, err := profile.Load(r.Selection, reg)
	if err != nil {
		return err
	}
	checked := r.Host != ""
	if checked {
		if err := p.Compatible(r.Host, r.HostVersion); err != nil {
			return err
		}
	}
	return write(w, struct {
		OK                bool          `json:"ok"`
		Schema            string        `json:"schema"`
		Version           int           `json:"version"`
		Source            string        `json:"source"`
		Selection         string        `json:"selection"`
		ID                string        `json:"id"`
		Revision          string        `json:"revision"`
		Fingerprint       string        `json:"fingerprint"`
		Compatibility     compatibility `json:"compatibility"`
		Checked           bool          `json:"compatibility_checked"`
		ControllerDriver  string        `json:"controller_context_driver"`
		Scope             profile.Scope `json:"controller_context_scope"`
		Standalone        bool          `json:"standalone_bridge_compatible"`
		CallbackTransport string        `json:"callback_driver"`
	}{
		true, profile.Schema, profile.Version, src.Kind, src.Selection, p.ID(), p.Revision(), p.Fingerprint(), compatibilityOf(p),
		checked, profile.EnvironmentDriver, p.Scope(), p.Standalone(), p.Transport(),
	})
}

// write prints v with two-space indent and a final newline, in one write.
func write(w io.Writer, v any) error {
	var buf jsonBuffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	_, err := w.Write(buf)
	return err
}

type jsonBuffer []byte

func (b *jsonBuffer) Write(p []byte) (int, error) { *b = append(*b, p...); return len(p), nil }

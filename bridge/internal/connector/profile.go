package connector

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
	"drawbridge/shared/service"
)

// Bounds that a printed Profile states: longer than deliver may take.
const (
	profileTimeout = 30_000 // ms
	profileOutput  = 65_536 // bytes
)

// draft is what profile was told.
type draft struct {
	id, revision, host, versions, variable string
	inbox, pane, storeDir, runtimeDir      string
	sockets                                []string
}

func profileCommand(stdout io.Writer) *service.Command {
	var d draft
	return &service.Command{
		Name: "profile", Short: "Print a Host Profile whose callback is this program",
		Long: "profile prints a Host Profile, checked as bridge host-profile validate does, that delivers\n" +
			"into an inbox, into the Host's own pane, or both. Its executable is this program where it\n" +
			"lies now.",
		Flags: func(fs *flag.FlagSet) {
			service.Argument(fs, &d.id, "id", "`id` of the Profile")
			service.Argument(fs, &d.revision, "revision", "`revision` of the Profile (default 1)")
			service.Argument(fs, &d.host, "host", "`id` of the Host")
			service.Argument(fs, &d.versions, "range", "Host versions, such as `>=1.8.0 <2.0.0`")
			service.Argument(fs, &d.variable, "session-variable", "`name` of the variable that holds the Host's session")
			service.Argument(fs, &d.inbox, "inbox", "the Host's own `directory` for messages")
			service.Argument(fs, &d.pane, "pane", "type into the Host's pane: `thread` or current")
			service.Argument(fs, &d.storeDir, "store-dir", "`directory` of the Store, where the bridge has another than the default")
			service.Argument(fs, &d.runtimeDir, "runtime-dir", "`directory` of locks, where the bridge has another than the default")
			fs.Func("tmux-socket", "tmux `socket` of the Host's pane; repeatable", func(s string) error {
				d.sockets = append(d.sockets, s)
				return nil
			})
		},
		Run: func(context.Context, []string) error {
			data, err := d.profile()
			if err != nil {
				return err
			}
			_, err = stdout.Write(data)
			return err
		},
	}
}

// profile gives the document.
func (d draft) profile() ([]byte, error) {
	for _, need := range []struct{ flag, value string }{
		{"id", d.id}, {"host", d.host}, {"range", d.versions}, {"session-variable", d.variable},
	} {
		if need.value == "" {
			return nil, fault.New(fault.Usage, "connector profile: --%s is missing", need.flag)
		}
	}
	if d.inbox == "" && d.pane == "" {
		return nil, fault.New(fault.Usage, "connector profile: give --inbox, --pane or both")
	}
	if err := checkPane(d.pane); err != nil {
		return nil, err
	}
	if d.revision == "" {
		d.revision = "1"
	}
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	args, err := d.arguments()
	if err != nil {
		return nil, err
	}
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(document(d, exe, args)); err != nil {
		return nil, err
	}
	if _, err := profile.Parse(data.Bytes()); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

func (d draft) arguments() ([]string, error) {
	args := []string{
		"connector", "deliver",
		"--session", "${controller.session_id}",
		"--delivery-id", "${envelope.delivery_id}",
		"--message-id", "${envelope.message_id}",
		"--idempotency-key", "${envelope.idempotency_key}",
	}
	for _, dir := range []struct{ flag, value string }{{"inbox", d.inbox}, {"store-dir", d.storeDir}, {"runtime-dir", d.runtimeDir}} {
		if dir.value == "" {
			continue
		}
		abs, err := filepath.Abs(dir.value) // a callback runs in another directory
		if err != nil {
			return nil, fault.New(fault.Usage, "connector profile: --%s: %w", dir.flag, err)
		}
		args = append(args, "--"+dir.flag, abs)
	}
	if d.pane != "" {
		args = append(args, "--pane", d.pane)
	}
	for _, s := range d.sockets {
		args = append(args, "--tmux-socket", s)
	}
	return args, nil
}

func document(d draft, exe string, args []string) any {
	type pointer struct {
		JSONPointer string `json:"jsonPointer"`
	}
	type disposition struct {
		JSONPointer string          `json:"jsonPointer"`
		Mapping     map[Word]string `json:"mapping"`
	}
	type member = struct {
		Schema        string `json:"$schema"`
		Kind          string `json:"schema"`
		Version       int    `json:"version"`
		ID            string `json:"id"`
		Revision      string `json:"revision"`
		Compatibility struct {
			Host  string `json:"host"`
			Range string `json:"range"`
		} `json:"compatibility"`
		Controller struct {
			Driver   string `json:"driver"`
			Variable string `json:"sessionIdVariable"`
		} `json:"controllerContext"`
		Callback struct {
			Driver      string   `json:"driver"`
			Executable  string   `json:"executable"`
			Arguments   []string `json:"arguments"`
			Stdin       string   `json:"stdin"`
			Environment struct {
				Allow []string `json:"allow"`
			} `json:"environment"`
			TimeoutMs       int `json:"timeoutMs"`
			MaxOutputBytes  int `json:"maxOutputBytes"`
			Acknowledgement struct {
				Disposition  disposition `json:"disposition"`
				AcceptanceID pointer     `json:"acceptanceId"`
				Delivery     pointer     `json:"acknowledgedDeliveryId"`
				Message      pointer     `json:"acknowledgedMessageId"`
			} `json:"acknowledgement"`
		} `json:"callback"`
	}
	var m member
	m.Schema, m.Kind, m.Version, m.ID, m.Revision = profile.SchemaURL, profile.Schema, profile.Version, d.id, d.revision
	m.Compatibility.Host, m.Compatibility.Range = d.host, d.versions
	m.Controller.Driver, m.Controller.Variable = profile.EnvironmentDriver, d.variable
	c := &m.Callback
	c.Driver, c.Executable, c.Arguments, c.Stdin = profile.CommandTransport, exe, args, "${envelope.body}"
	c.Environment.Allow = []string{}
	if d.pane != "" { // tmux, and the agents' homes
		c.Environment.Allow = []string{"PATH", "HOME"}
	}
	c.TimeoutMs, c.MaxOutputBytes = profileTimeout, profileOutput
	a := &c.Acknowledgement
	a.Disposition = disposition{"/result/status", map[Word]string{
		Accepted: "accepted", Retry: "retryable_failure", Rejected: "permanent_failure", Unknown: "uncertain",
	}}
	a.AcceptanceID, a.Delivery, a.Message = pointer{"/result/acceptance_id"}, pointer{"/request/delivery_id"}, pointer{"/request/message_id"}
	return m
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"drawbridge/stationd/internal/control"
)

// hostKey is one that no machine has.
const hostKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"

// report is what doctor -json prints.
type report struct {
	OK     bool
	Checks []struct {
		Name, Status, Detail, Hint, Selected, Egress, Result string
		Answers                                              bool
	}
}

func (r report) status(name string) string {
	for _, c := range r.Checks {
		if c.Name == name {
			return c.Status
		}
	}
	return "not made"
}

// doctor tries each mechanism for real, changes nothing, and says with 69 that one is
// missing, with 1 that something else is wrong.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var r report
	w.answer(&r, "doctor")
	for _, name := range []string{"shim", "containment", "by_pidns", "network", "view", "store", "runtime_dir", "state_dir", "profiles", "egress_profiles", "providers"} {
		if r.status(name) != "ok" {
			t.Errorf("%s is %s: %+v", name, r.status(name), r)
		}
	}
	if !r.OK {
		t.Errorf("got %+v", r)
	}
	for _, c := range r.Checks {
		if c.Name == "by_pidns" && !strings.HasPrefix(c.Result, "used, ended all in ") || c.Name == "network" && c.Egress != "netns" {
			t.Errorf("got %+v", c)
		}
	}
	for _, dir := range []string{"store", "run", "state"} {
		if _, err := os.Lstat(w.path(dir)); !os.IsNotExist(err) {
			t.Errorf("doctor made %s: %v", dir, err)
		}
	}
	w.serve()
	w.answer(&r, "doctor")
	if out := w.must("doctor"); !strings.Contains(out, "answers true") || strings.Count(out, "\n") < 10 {
		t.Errorf("beside a stationd:\n%s", out)
	}

	if err := os.Chmod(w.path("state"), 0o777); err != nil {
		t.Fatal(err)
	}
	out, _, status := w.stationd("doctor", "-json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 1 || r.OK || r.status("state_dir") != "error" || r.status("view") != "ok" {
		t.Errorf("a directory that others may write: status %d, %+v, %v", status, r, err)
	}
	if _, errs, status := w.stationd("serve", "-runtime-dir", w.path("other")); status != 73 || !strings.Contains(errs, "[runtime_dir_unsafe]") {
		t.Errorf("serve there: status %d, %s", status, errs)
	}
	if err := os.Chmod(w.path("state"), 0o700); err != nil {
		t.Fatal(err)
	}
	providers := fmt.Sprintf(`{"providers":[{"name":"a","kind":"ssh","host":"127.0.0.1","port":1,"user":"u","hostKey":%q,"keyFile":%q,"dir":"/d"}]}`, hostKey, w.path("key"))
	out = w.must("doctor", "-json", "-providers", w.write("providers.json", strings.Replace(providers, `"keyFile":"`+w.path("key"), `"agent":"`+w.path("run", control.Socket), 1)))
	if r = (report{}); json.Unmarshal([]byte(out), &r) != nil || r.status("provider_a") != "ok" || !strings.Contains(out, `"dialled":false`) {
		t.Errorf("a provider with an agent: %s", out)
	}
	out, _, status = w.stationd("doctor", "-json", "-providers", w.write("providers.json", providers))
	if r = (report{}); json.Unmarshal([]byte(out), &r) != nil || status != 1 || r.status("providers") != "ok" || r.status("provider_a") != "error" ||
		!strings.Contains(out, "the key file cannot be opened") {
		t.Errorf("a provider without its key: status %d, %s", status, out)
	}
	if err := os.Remove(w.path("bin", "station-shim")); err != nil {
		t.Fatal(err)
	}
	out, errs, status := w.stationd("doctor", "-json")
	r = report{}
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 69 || errs != "" || r.status("shim") != "error" || r.status("containment") != "not made" {
		t.Errorf("without a shim: status %d, %+v, %v", status, r, err)
	}
	if _, errs, status := w.stationd("serve", "-runtime-dir", w.path("other")); status != 69 || !strings.Contains(errs, "[shim_unavailable]") {
		t.Errorf("serve without a shim: status %d, %s", status, errs)
	}
}

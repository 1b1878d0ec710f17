package execution_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
)

// ran is an entry that leaves a mark when it runs.
const ran = `
	import fs from 'node:fs';
	export function run(args) {
		fs.writeFileSync(process.env.TEST_DIR + '/ran', '');
		return { status: 'completed', args: Object.fromEntries(Object.entries(args).filter(([, v]) => typeof v === 'string')) };
	}`

// registry changes the registry of the destination.
func (w *world) registry(change func(kits []any) []any) {
	w.Helper()
	const name = "there/dest/kits/local/installed-kits.json"
	data, err := os.ReadFile(w.path(name))
	var doc map[string]any
	if err != nil || json.Unmarshal(data, &doc) != nil {
		w.Fatal(err)
	}
	doc["kits"] = change(doc["kits"].([]any))
	if data, err = json.Marshal(doc); err != nil {
		w.Fatal(err)
	}
	w.write(name, string(data))
}

// What is not the installed kit does not run. Proves kit 17.17 for run.
func TestExecute_NotVerified(t *testing.T) {
	entry := func(member, value string) func(*world) {
		return func(w *world) {
			w.registry(func(kits []any) []any { kits[0].(map[string]any)[member] = value; return kits })
		}
	}
	for _, tc := range []struct {
		name  string
		code  fault.Code
		spoil func(w *world)
	}{
		{"unknown id", fault.KitNotInstalled, func(w *world) { w.opt.KitID = "other" }},
		{"no id", fault.KitID, func(w *world) { w.opt.KitID = "../x" }},
		{"two entries", fault.KitAmbiguous, func(w *world) { w.registry(func(kits []any) []any { return append(kits, kits[0]) }) }},
		{"drifted", fault.KitDrifted, func(w *world) { w.write(w.copied("flow.json"), "{ }") }},
		{"missing", fault.KitMissing, func(w *world) { os.RemoveAll(w.path(w.copied(""))) }},
		{"another path", fault.KitEntry, entry("installed_path", "kits/local/repositories/./sample")},
		{"no hash", fault.KitEntry, entry("hash", "md5:0")},
		{"a cache", fault.KitUnhashed, func(w *world) { w.write(w.copied("lib/__pycache__/x.pyc"), "") }},
		{"a file .git", fault.KitUnhashed, func(w *world) { w.write(w.copied("a/b/.git"), "") }},
		{"a linked module", fault.KitTree, func(w *world) {
			w.write("elsewhere.mjs", ran)
			os.Remove(w.path(w.copied("entry.mjs")))
			if err := os.Symlink(w.path("elsewhere.mjs"), w.path(w.copied("entry.mjs"))); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, ran)
			tc.spoil(w)
			if _, err := w.run(); !fault.Is(err, tc.code) {
				t.Errorf("got %v %q, want %s", fault.CodeOf(err), err, tc.code)
			}
			if w.exists("ran") {
				t.Error("the entry ran")
			}
		})
	}
}

// Proves kit 17.18, 17.43.
func TestExecute_Refused(t *testing.T) {
	w := newWorld(t, ran)
	good := func() {
		w.request = map[string]any{"schema": "kontour.kit.execution_request", "version": "1.0", "kit_id": "sample", "workspace": w.path("space")}
		w.opt.ControllerRoot, w.opt.AuthFile, w.opt.Node = w.path("controller"), "", ""
	}
	set := func(member string, v any) func() { return func() { w.request[member] = v } }
	timeout := func(v any) func() { return set("execution", map[string]any{"timeout_s": v}) }
	root := func(path string) func() { return func() { w.opt.ControllerRoot = path } }
	if err := os.MkdirAll(w.path("space/sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link-to-space": "space", "link-to-kit": w.copied(""), "link-to-nothing": "nowhere"} {
		if err := os.Symlink(w.path(to), w.path(link)); err != nil {
			t.Fatal(err)
		}
	}
	w.write("auth.json", "{}")
	w.write("space/auth.json", "{}")
	w.write("open.json", "{}")
	if err := os.Chmod(w.path("open.json"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		code  fault.Code
		spoil func()
	}{
		{"another schema", fault.KitRequest, set("schema", "x")},
		{"another version", fault.KitRequest, set("version", 1.0)},
		{"another kit", fault.KitRequest, set("kit_id", "other")},
		{"source_root elsewhere", fault.KitRequest, set("source_root", w.path("source"))},
		{"source_root no text", fault.KitRequest, set("source_root", nil)},
		{"no time", fault.KitRequest, timeout(0)},
		{"less than no time", fault.KitRequest, timeout(-1)},
		{"more than a day", fault.KitRequest, timeout(86401)},
		{"time as text", fault.KitRequest, timeout("5")},
		{"time null", fault.KitRequest, timeout(nil)},
		{"controller in the workspace", fault.KitController, root(w.path("space/sub/c"))},
		{"controller is the workspace", fault.KitController, root(w.path("space"))},
		{"controller in the workspace, by a link", fault.KitController, root(w.path("link-to-space/new/c"))},
		{"controller above the workspace", fault.KitController, root(w.dir)},
		{"controller in the kit", fault.KitController, root(w.path(w.copied("c")))},
		{"controller a dead link", fault.KitController, root(w.path("link-to-nothing"))},
		{"controller that others read", fault.KitController, func() {
			w.opt.ControllerRoot = w.path("open")
			if err := os.Mkdir(w.path("open"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(w.path("open"), 0o750); err != nil { // whatever the umask is
				t.Fatal(err)
			}
		}},
		{"controller a file", fault.KitController, root(w.path("auth.json"))},
		{"no credential", fault.CredentialUnavailable, func() { w.opt.AuthFile = w.path("none") }},
		{"credential of all", fault.CredentialPermissions, func() { w.opt.AuthFile = w.path("open.json") }},
		{"credential in the workspace", fault.CredentialPermissions, func() { w.opt.AuthFile = w.path("link-to-space/auth.json") }},
		{"no node", fault.KitNode, func() { w.opt.Node = w.path("node") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			good()
			tc.spoil()
			_, err := w.run()
			if !fault.Is(err, tc.code) {
				t.Errorf("got %v %q, want %s", fault.CodeOf(err), err, tc.code)
			}
			if f, ok := fault.As(err); tc.code == fault.KitNode && (!ok || !strings.Contains(f.Hint, "--node")) { // Proves kit 17.40
				t.Errorf("no flag is named: %+v", f)
			}
			if w.exists("ran") {
				t.Fatal("the entry ran")
			}
		})
	}
	if w.exists("controller") {
		t.Error("a refused run made a controller root")
	}

	// And what is not refused. Proves kit 17.19.
	good()
	w.request["source_root"] = w.path("link-to-kit")
	w.timeout(30)
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if w.opt.ControllerRoot, err = filepath.Rel(wd, w.path("controller")); err != nil {
		t.Fatal(err)
	}
	for _, auth := range []string{"", w.path("auth.json")} {
		w.opt.AuthFile = auth
		got := w.result()["args"].(map[string]any)
		want := map[string]any{"requestFile": w.path("request.json"), "controllerRoot": w.path("controller"), "executionOwner": w.last().OwnerID}
		if auth != "" {
			want["authFile"] = auth
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
}

package kit_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/fault"
)

// manifest is a kit that can be run.
const manifest = `{"schema_version":"1.0","id":"sample","name":"Sample","version":"1.0.0","flows":[{"id":"sample.flow","path":"flow.json"}],` +
	`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"lib/entry.mjs","export":"run"}}`

// sample makes the source of a kit; more files replace or join its own, and a
// name that ends in a slash is a directory.
func sample(t testing.TB, more map[string]string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "source")
	write(t, root, map[string]string{"kit.json": manifest, "flow.json": "{}", "lib/entry.mjs": "export function run() {}\n"})
	write(t, root, more)
	return root
}

func write(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(root, name)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t testing.TB, path ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// install puts a source into dest, which must work.
func install(t testing.TB, source, dest string, options ...func(*kit.InstallOptions)) kit.Outcome {
	t.Helper()
	out, err := tryInstall(t, source, dest, options...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryInstall(t testing.TB, source, dest string, options ...func(*kit.InstallOptions)) (kit.Outcome, error) {
	t.Helper()
	o := kit.InstallOptions{Source: source, Dest: dest}
	for _, set := range options {
		set(&o)
	}
	return new(kit.Keeper).Install(t.Context(), o)
}

func update(o *kit.InstallOptions) { o.Update = true }
func force(o *kit.InstallOptions)  { o.Force = true }

// snapshot is everything in a directory: modes, contents, and the times of files.
func snapshot(t testing.TB, root string) (out []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%s %v", rel, info.Mode())
		if info.Mode().IsRegular() {
			line += fmt.Sprintf(" %x %d", sha256.Sum256([]byte(read(t, path))), info.ModTime().UnixNano())
		}
		out = append(out, line)
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return out
}

// unchanged checks that do leaves root as it is.
func unchanged(t testing.TB, root string, do func()) {
	t.Helper()
	before := snapshot(t, root)
	do()
	if diff := cmp.Diff(before, snapshot(t, root)); diff != "" {
		t.Errorf("%s changed (-before +after):\n%s", root, diff)
	}
}

func wantCode(t testing.TB, err error, code fault.Code) {
	t.Helper()
	if !fault.Is(err, code) {
		t.Errorf("err = %v (%s), want %s", err, fault.CodeOf(err), code)
	}
}

func registry(dest string) string { return filepath.Join(dest, "kits", "local", "installed-kits.json") }
func repos(dest string) string    { return filepath.Join(dest, "kits", "local", "repositories") }
func lockDir(dest string) string {
	return filepath.Join(dest, "kits", "local", ".installed-kits.flow-agents.lock")
}

func fixed() time.Time { return time.Date(2026, 12, 1, 0, 2, 47, 999, time.UTC) }

// Proves kit 17.7.
func TestValidate_Public(t *testing.T) {
	valid := map[string]int{"valid-local-kit": 0, "valid-unknown-extension": 0, "valid-with-dependency": 1, "mixed-runtime-kit": 0} // warnings of an install
	dirs, err := os.ReadDir("testdata/public")
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, d := range dirs {
		t.Run(d.Name(), func(t *testing.T) {
			source := filepath.Join("testdata/public", d.Name())
			r, err := kit.Validate(source)
			if err != nil {
				t.Fatal(err)
			}
			dest := t.TempDir()
			warnings, ok := valid[d.Name()]
			if !ok {
				refused++
				if !strings.HasPrefix(d.Name(), "invalid-") || len(r.Errors) == 0 {
					t.Errorf("errors: %q", r.Errors)
				}
				unchanged(t, dest, func() {
					_, err := tryInstall(t, source, dest)
					wantCode(t, err, fault.KitInvalid)
				})
				return
			}
			if len(r.Errors) > 0 || len(r.Warnings) > 0 {
				t.Errorf("errors %q, warnings %q", r.Errors, r.Warnings)
			}
			if out := install(t, source, dest); len(out.Warnings) != warnings {
				t.Errorf("warnings of the install: %q, want %d", out.Warnings, warnings)
			}
		})
	}
	if refused != 13 {
		t.Errorf("%d public fixtures were refused, want 13", refused)
	}
}

func TestValidate(t *testing.T) {
	with := func(members string) string {
		return `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"a","path":"flow.json"}],` + members + `}`
	}
	for _, tc := range []struct {
		name, manifest string
		want           string // part of the first error; "" for a valid kit
	}{
		{"plain", with(`"x":1`), ""},
		{"not an object", `[]`, "$: kit.json must be a JSON object"},
		{"not UTF-8", "{\"id\":\"\xff\"}", "kit.json: invalid JSON"},
		{"no flows", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[]}`, "$.flows: "},
		{"flow is text", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":["flow.json"]}`, "$.flows[0]: must be an object"},
		{"flow without id", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"path":"flow.json"}]}`, ""},
		{"flow twice", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"a","path":"flow.json"},{"id":"a","path":"d/flow.json"}]}`, "$.flows[1].id: duplicates"},
		{"one flow in two spellings", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"path":"flow.json"},{"path":".//./flow.json"}]}`, "$.flows[1].path: duplicates"},
		{"flow not JSON", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"a","path":"lib/entry.mjs"}]}`, "$.flows[0].path: is not a JSON object"},
		{"flow is a directory", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"a","path":"lib"}]}`, "$.flows[0].path: points at a missing"},
		{"backslash traversal", with(`"docs":[{"path":"a\\..\\..\\b"}]`), "$.docs[0].path: must not contain .."},
		{"asset outside by a link", with(`"docs":[{"path":"out"}]`), "$.docs[0].path: points at a missing"},
		{"asset is a directory", with(`"docs":[{"path":"lib"}]`), ""},
		{"asset id twice", with(`"docs":[{"id":"x","path":"flow.json"},{"id":"x","path":"lib"}]`), "$.docs[1].id: duplicates"},
		{"asset ids of two lists", with(`"docs":[{"id":"x","path":"flow.json"}],"evals":[{"id":"x","path":"lib"}]`), ""},
		{"asset without path", with(`"provisions":[{"id":"sample.x"}]`), "$.provisions[0].path: must be"},
		{"asset absolute", with(`"adapters":[{"path":"/etc"}]`), "$.adapters[0].path: must be relative"},
		{"version is a number", with(`"version":1`), "$.version: "},
		{"first_party is text", with(`"first_party":"yes"`), "$.first_party: "},
		{"dependency on itself", with(`"dependencies":[{"kit_id":"sample"}]`), "$.dependencies[0].kit_id: must not be the kit itself"},
		{"dependency twice", with(`"dependencies":[{"kit_id":"a"},{"kit_id":"a"}]`), "$.dependencies[1].kit_id: duplicates"},
		{"dependency with a number as reason", with(`"dependencies":[{"kit_id":"a","reason":1}]`), "$.dependencies[0].reason: "},
		{"execution null", with(`"execution":null`), "$.execution: must be an object"},
		{"execution module missing", with(`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"no.mjs","export":"run"}`), "$.execution.module: points at"},
		{"execution with more members", with(`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"lib/entry.mjs","export":"$r","x":1}`), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := sample(t, map[string]string{"kit.json": tc.manifest, "d/flow.json": "{}"})
			if err := os.Symlink("/etc/passwd", filepath.Join(dir, "out")); err != nil {
				t.Fatal(err)
			}
			r, err := kit.Validate(dir)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case tc.want == "" && len(r.Errors) > 0, tc.want != "" && (len(r.Errors) == 0 || !strings.HasPrefix(r.Errors[0], tc.want)):
				t.Errorf("errors %q, want %q", r.Errors, tc.want)
			}
		})
	}
	r, err := kit.Validate(sample(t, map[string]string{"kit.json": strings.Replace(manifest, `"id"`, `"id":"other","id"`, 1)}))
	if err != nil || len(r.Errors) > 0 || r.Manifest.ID != "sample" || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0], "twice") {
		t.Errorf("a member that stands twice: %+v, %v", r, err)
	}
	if _, err := kit.Validate(filepath.Join(t.TempDir(), "nowhere")); !fault.Is(err, fault.KitTree) {
		t.Errorf("no directory: %v", err)
	}
}

// However much is wrong, and however long it is, what is said of it is short.
func TestValidate_Bounded(t *testing.T) {
	var flows []string
	for i := range 2000 {
		flows = append(flows, fmt.Sprintf(`{"path":"%s%d"}`, strings.Repeat("\u202e", 300), i))
	}
	r, err := kit.Validate(sample(t, map[string]string{"kit.json": `{"schema_version":"1.0","id":"sample","name":"S","flows":[` + strings.Join(flows, ",") + `]}`}))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(r.Errors); n != 101 || r.Errors[n-1] != "and more" {
		t.Errorf("%d mistakes, the last one %q", n, r.Errors[n-1])
	}
	for _, e := range r.Errors {
		if len(e) > 510 {
			t.Fatalf("%d bytes: %s", len(e), e)
		}
	}
}

// A flow that nobody writes to keeps nobody waiting.
func TestValidate_FIFO(t *testing.T) {
	for _, name := range []string{"kit.json", "flow.json"} {
		dir := sample(t, nil)
		if err := errors.Join(os.Remove(filepath.Join(dir, name)), syscall.Mkfifo(filepath.Join(dir, name), 0o600)); err != nil {
			t.Fatal(err)
		}
		if r, err := kit.Validate(dir); err != nil || len(r.Errors) == 0 || !strings.Contains(r.Errors[0], "not a regular file") {
			t.Errorf("%s: %q, %v", name, r.Errors, err)
		}
	}
}

// Proves kit 17.16.
func TestExecution_Refused(t *testing.T) {
	const contract = "kontour.kit.execution_request@1.0"
	type descriptor struct{ contract, module, export string }
	bad := map[string]descriptor{}
	for _, module := range []string{"../entry.mjs", "/tmp/entry.mjs", "sub/../entry.mjs", `sub\\entry.mjs`, "./entry.mjs", "a//b.mjs", "__pycache__/entry.mjs", ".git/entry.mjs", ".pytest_cache/entry.mjs", "entry.js", "", ".mjs/"} {
		bad["module "+module] = descriptor{contract, module, "run"}
	}
	for _, export := range []string{"bad-name", "", "1a", "a.b", "é", "a b"} {
		bad["export "+export] = descriptor{contract, "lib/entry.mjs", export}
	}
	bad["contract"] = descriptor{"kontour.kit.execution_request@2.0", "lib/entry.mjs", "run"}
	for name, d := range bad {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			broken := strings.Replace(manifest, `"execution":{"contract":"kontour.kit.execution_request@1.0","module":"lib/entry.mjs","export":"run"}`,
				fmt.Sprintf(`"execution":{"contract":"%s","module":"%s","export":"%s"}`, d.contract, d.module, d.export), 1)
			files := map[string]string{"kit.json": broken, "entry.mjs": "", "entry.js": "", "a/b.mjs": "", "sub/entry.mjs": ""}
			dest := t.TempDir()
			unchanged(t, dest, func() {
				_, err := tryInstall(t, sample(t, files), dest)
				wantCode(t, err, fault.KitInvalid)
			})
			// Installed by a tool that does not look: the run refuses.
			out := install(t, sample(t, nil), dest)
			write(t, out.Path, files)
			adopt(t, dest, "sample")
			_, err := kit.Verify(t.Context(), "sample", dest)
			wantCode(t, err, fault.KitNotRunnable)
		})
	}
}

// adopt makes the registry say that the copy of a kit, as it is now, is what was
// installed.
func adopt(t testing.TB, dest, id string) {
	t.Helper()
	all, err := kit.Statuses(t.Context(), dest, id)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d statuses, %v", len(all), err)
	}
	text := strings.Replace(read(t, registry(dest)), all[0].Recorded, all[0].Observed, 1)
	if err := os.WriteFile(registry(dest), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestInspect(t *testing.T) {
	i, err := kit.Inspect(sample(t, map[string]string{"kit.json": `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"path":"flow.json"}],` +
		`"evals":[{"path":"lib"}],"zeta":1,"alpha":{},"execution":{"contract":"kontour.kit.execution_request@1.0","module":"lib/entry.mjs","export":"run"}}`}))
	if err != nil {
		t.Fatal(err)
	}
	got, err := i.JSON().JSON()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"kit_id":"sample","kit_name":"Sample","conformance":{"k0":true,"k1":true,"k2":true},"targets":["flow","flow-agents","alpha","zeta"],` +
		`"third_party_extensions":["alpha","zeta"],"trust":"unverified","execution":{"contract":"kontour.kit.execution_request@1.0","module":"lib/entry.mjs","export":"run"}}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("inspection (-want +got):\n%s", diff)
	}
	if i, err := kit.Inspect("testdata/public/invalid-missing-flow"); err != nil || i.Conformance.K0 {
		t.Errorf("a missing flow: %+v, %v", i, err)
	}
	if i, err := kit.Inspect("testdata/public/invalid-missing-extension-asset"); err != nil || !i.Conformance.K0 {
		t.Errorf("a missing doc leaves the container valid: %+v, %v", i, err)
	}
	_, err = kit.Inspect("testdata/public/invalid-malformed-json")
	wantCode(t, err, fault.KitInvalid)
}

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/kit"
)

// kitSource makes a kit that can be run.
func kitSource(t *testing.T, more map[string]string) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "source")
	files := map[string]string{
		"kit.json": `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"a","path":"flow.json"}],` +
			`"dependencies":[{"kit_id":"base","reason":"shared flows"}],` +
			`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"entry.mjs","export":"run"}}`,
		"flow.json": "{}",
		"entry.mjs": "",
	}
	for name, data := range more {
		files[name] = data
	}
	for name, data := range files {
		if err := os.MkdirAll(root, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// cli runs a command line, words separated by blanks.
func cli(t *testing.T, line string) (exit int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	exit = run(t.Context(), strings.Fields(line), &out, &errs)
	return exit, out.String(), errs.String()
}

func TestKit(t *testing.T) {
	source, other, dest := kitSource(t, nil), kitSource(t, map[string]string{"more": "x"}), t.TempDir()
	path := filepath.Join(dest, "kits/local/repositories/sample")
	warning := "warning: kit 'sample' declares a dependency on 'base' (shared flows) which is not installed at " + dest + "; install it first with 'kitrun install <source>'\n"
	for _, step := range []struct {
		line   string
		exit   int
		stdout string // exact, or a prefix when it ends in …
		stderr string // part of it
	}{
		{"list --dest " + dest, 0, "No local Flow Kits installed.\n", ""},
		{"status --dest=" + dest, 0, "No local Flow Kits installed.\n", ""},
		{"status sample --dest " + dest, 1, "local Flow Kit 'sample' is not installed\n", ""},
		{"verify sample --dest " + dest, 1, "", "kit 'sample' is not installed at"},
		{"install --dest " + dest, 2, "", "1 needed"},
		{"install " + source, 2, "", "no destination is given"},
		{"install " + source + " --dest " + dest + " --nonsense", 2, "", "not defined: -nonsense"},
		{"install " + source + " --dest " + dest, 0, warning + "installed local kit 'sample' at " + path + "\n", ""},
		{"kit install --dest " + dest + " " + source, 0, warning + "kit 'sample' is already installed from " + source + "\n", ""},
		{"install " + other + " --dest " + dest, 2, warning + "conflict: kit 'sample' is already installed from " + source + "; rerun with --update to replace it\n", ""},
		{"kit install " + other + " --update --dest " + dest, 0, warning + "updated local kit 'sample' at " + path + "\n", ""},
		{"update sample --dest " + dest, 0, warning + "updated local kit 'sample' at " + path + "\n", ""},
		{"install " + other + " --dest " + dest + " --force --record-source=elsewhere --update", 0, warning + "updated local kit 'sample' at " + path + "; recorded caller-declared source metadata 'elsewhere' (hash verifies copied bytes)\n", ""},
		{"list --dest " + dest, 0, "sample | source=elsewhere | hash=sha256:…", ""},
		{"kit list --dest " + dest, 0, "sample | source=elsewhere | hash=sha256:…", ""},
		{"status --check --dest " + dest, 0, "{\n  \"id\": \"sample\",\n  \"source\": \"elsewhere\",\n…", ""},
		{"kit status sample --dest " + dest, 0, "{\n  \"id\": \"sample\",\n…", ""},
		{"verify sample --dest " + dest, 0, `{"id":"sample","kit_root":"` + path + `","module_path":"` + path + `/entry.mjs","hash":"sha256:…`, ""},
		{"verify other --json --dest " + dest, 1, `{"error":"kit_not_installed","message":"…`, "[kit_not_installed]"},
		{"verify ../x --dest " + dest, 1, "", "[kit_id_invalid]"},
		{"validate " + source, 0, "Flow Kit repository validation passed: " + source + "\n", ""},
		{"validate " + dest, 1, "Flow Kit repository validation failed:\n - kit.json: is not there\n", ""},
		{"inspect " + source + " --json", 0, "{\n  \"kit_id\": \"sample\",\n…", ""},
		{"inspect " + dest, 1, "", "[kit_invalid]"},
		{"install " + dest + " --dest " + dest, 1, "Flow Kit repository validation failed:\n - kit.json: is not there\n", ""},
		{"install " + dest + "/nowhere --dest " + dest, 1, "", "no such file or directory"},
		{"unlock --yes --dest " + dest, 0, dest + " is not locked\n", ""},
		{"uninstall sample --dest " + dest, 0, "uninstalled local kit 'sample' from " + path + "\n", ""},
		{"uninstall sample --dest " + dest, 1, "", "is not installed"},
	} {
		exit, stdout, stderr := cli(t, step.line)
		if exit != step.exit || !strings.Contains(stderr, step.stderr) {
			t.Errorf("%s: exit %d, stderr %q, want %d, … %q …", step.line, exit, stderr, step.exit, step.stderr)
		}
		if prefix, cut := strings.CutSuffix(step.stdout, "…"); !cut || !strings.HasPrefix(stdout, prefix) {
			if diff := cmp.Diff(step.stdout, stdout); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.line, diff)
			}
		}
	}
}

func TestKit_Drift(t *testing.T) {
	source, dest := kitSource(t, nil), t.TempDir()
	t.Setenv("KITRUN_DEST", dest)
	if exit, _, stderr := cli(t, "install "+source); exit != 0 {
		t.Fatal(stderr)
	}
	if err := os.WriteFile(filepath.Join(dest, "kits/local/repositories/sample/more"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]int{"status": 0, "status --check": 1, "verify sample": 1} {
		if exit, stdout, _ := cli(t, line); exit != want || strings.HasPrefix(line, "status") && !strings.Contains(stdout, `"state": "drifted"`) {
			t.Errorf("%s: exit %d, want %d: %s", line, exit, want, stdout)
		}
	}
}

// Proves kit 17.36: the half of it that is Go.
func TestVerify_SameEverywhere(t *testing.T) {
	source, dest := kitSource(t, nil), t.TempDir()
	out, err := kit.Install(t.Context(), kit.InstallOptions{Source: source, Dest: dest})
	if err != nil {
		t.Fatal(err)
	}
	v, err := kit.Verify(t.Context(), out.ID, dest)
	if err != nil {
		t.Fatal(err)
	}
	want, err := v.JSON().JSON()
	if err != nil {
		t.Fatal(err)
	}
	exit, stdout, stderr := cli(t, "verify --json sample --dest "+dest)
	if exit != 0 || stdout != string(want)+"\n" {
		t.Errorf("exit %d, stdout %q, stderr %q, want %s", exit, stdout, stderr, want)
	}
	hash, err := kit.HashTree(t.Context(), v.KitRoot, dest)
	if err != nil || hash != v.Hash {
		t.Errorf("hash %s, %v, want %s", hash, err, v.Hash)
	}
}

// What an install refuses, validate refuses.
func TestValidate_Tree(t *testing.T) {
	source := kitSource(t, nil)
	if err := os.Symlink("/etc/passwd", filepath.Join(source, "link")); err != nil {
		t.Fatal(err)
	}
	exit, stdout, stderr := cli(t, "validate "+source)
	if exit != 1 || !strings.HasPrefix(stdout, "Flow Kit repository validation failed:\n") || !strings.Contains(stdout, "link: a symbolic link") || stderr != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", exit, stdout, stderr)
	}
	exit, _, stderr = cli(t, "install "+source+" --dest "+t.TempDir())
	if exit != 1 || !strings.Contains(stderr, "link: a symbolic link") {
		t.Errorf("install: exit %d, stderr %q", exit, stderr)
	}
}

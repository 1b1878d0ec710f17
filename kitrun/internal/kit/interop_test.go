package kit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/kit"
	"drawbridge/shared/strictjson"
)

// publicTool is the kits' public tool, @kontourai/flow-agents 6.3.0 under Node 22,
// as scripts/setup installs it.
type publicTool struct {
	node     string
	cli      string // its commands on kits; the whole tool takes seconds to start
	fixtures string
}

func public(t *testing.T) publicTool {
	t.Helper()
	at := os.Getenv("DRAWBRIDGE_FLOW_AGENTS")
	p := publicTool{os.Getenv("DRAWBRIDGE_NODE22"), filepath.Join(at, "build/src/cli/kit.js"), filepath.Join(at, "evals/fixtures")}
	for _, path := range []string{p.node, p.cli} {
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" {
			t.Fatalf("DRAWBRIDGE_NODE22 and DRAWBRIDGE_FLOW_AGENTS (scripts/setup) do not name the public tool, and CI=true")
		}
		t.Skip("DRAWBRIDGE_NODE22 and DRAWBRIDGE_FLOW_AGENTS do not name the public tool; scripts/setup installs it")
	}
	return p
}

// kit runs one of its commands on kits.
func (p publicTool) kit(t *testing.T, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(p.node, append([]string{p.cli}, args...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	cmd.Dir = t.TempDir()
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// must runs a command that has to work.
func (p publicTool) must(t *testing.T, args ...string) string {
	t.Helper()
	exit, stdout, stderr := p.kit(t, args...)
	if exit != 0 {
		t.Fatalf("kit %q: exit %d\n%s%s", args, exit, stdout, stderr)
	}
	return stdout
}

// statuses is what `kitrun status` prints.
func statuses(t *testing.T, dest string) string {
	t.Helper()
	all, err := kit.Statuses(t.Context(), dest, "")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, s := range all {
		data, err := strictjson.Indented(s.JSON())
		if err != nil {
			t.Fatal(err)
		}
		out.Write(append(data, '\n'))
	}
	return out.String()
}

var moment = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// difficult is a kit with everything that a hash could get wrong.
func difficult(t *testing.T) string {
	t.Helper()
	source := sample(t, map[string]string{
		"😀": "1", "ﬀ": "2", "\ufffdz": "3", "é": "4", "e\u0301": "5", "a/b": "6", "a-b": "7", "a.txt": "8", "empty/deep/": "", "nothing": "",
		".git/HEAD": "x", "lib/__pycache__/m.pyc": "x", ".gitignore": "x", "node_modules/m/index.js": "x", "big": strings.Repeat("0123456789abcdef", 200_000),
		"bin/tool": "#!", "private": "p",
	})
	for name, mode := range map[string]os.FileMode{"bin/tool": 0o755, "private": 0o600} {
		if err := os.Chmod(filepath.Join(source, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	return source
}

// Proves kit 17.5, 17.6. What either tool installed, the other finds installed,
// and both write the same.
func TestInterop(t *testing.T) {
	tool := public(t)
	source := difficult(t)
	ours, theirs := t.TempDir(), t.TempDir()

	out := install(t, source, ours)
	if said, want := tool.must(t, "install", source, "--dest", theirs), "installed local kit 'sample' at "; !strings.HasPrefix(said, want) {
		t.Errorf("it says %q", said)
	}
	if diff := cmp.Diff(moment.ReplaceAllString(read(t, registry(theirs)), "T"), moment.ReplaceAllString(read(t, registry(ours)), "T")); diff != "" {
		t.Errorf("registry (-theirs +ours):\n%s", diff)
	}
	if diff := cmp.Diff(tree(t, repos(theirs)), tree(t, repos(ours))); diff != "" {
		t.Errorf("copies (-theirs +ours):\n%s", diff)
	}

	// One of ours there.
	if diff := cmp.Diff(tool.must(t, "status", "--dest", ours), statuses(t, ours)); diff != "" {
		t.Errorf("status (-theirs +ours):\n%s", diff)
	}
	if !strings.Contains(statuses(t, ours), `"state": "installed"`) {
		t.Errorf("status: %s", statuses(t, ours))
	}
	unchanged(t, ours, func() {
		if said, want := tool.must(t, "install", source, "--dest", ours), "kit 'sample' is already installed from "+source+"\n"; said != want {
			t.Errorf("it says %q, want %q", said, want)
		}
	})

	// One of theirs here.
	v, err := kit.Verify(t.Context(), "sample", theirs)
	if err != nil || v.Hash != out.Hash {
		t.Errorf("verify: %+v, %v", v, err)
	}
	unchanged(t, theirs, func() {
		if out := install(t, source, theirs); out.Change != kit.Unchanged {
			t.Errorf("install of theirs: %+v", out)
		}
	})

	// Each updates and replaces what the other installed, and sees drift alike.
	write(t, source, map[string]string{"more": "x"})
	tool.must(t, "install", source, "--dest", ours, "--update")
	if _, err := kit.Verify(t.Context(), "sample", ours); err != nil {
		t.Error(err)
	}
	install(t, source, theirs, update)
	write(t, filepath.Join(repos(theirs), "sample"), map[string]string{"drift": "x"})
	if err := os.RemoveAll(filepath.Join(repos(ours), "sample")); err != nil {
		t.Fatal(err)
	}
	for _, dest := range []string{ours, theirs} {
		if diff := cmp.Diff(tool.must(t, "status", "--dest", dest), statuses(t, dest)); diff != "" {
			t.Errorf("status (-theirs +ours):\n%s", diff)
		}
	}
}

// Each tool refuses while the other has the lock.
func TestInterop_Lock(t *testing.T) {
	tool := public(t)
	dest, source := t.TempDir(), sample(t, nil)
	install(t, source, dest)
	cmd := kitrun(t, "kit.copied", "install", source, "--dest", dest, "--update")
	if err := cmd.Run(); err == nil {
		t.Fatal("it did not end at the crash point")
	}
	unchanged(t, dest, func() {
		if exit, _, stderr := tool.kit(t, "install", source, "--dest", dest, "--update"); exit != 1 || !strings.Contains(stderr, "installed-kits.flow-agents.lock") {
			t.Errorf("exit %d, %q", exit, stderr)
		}
	})
}

// tree lists a directory with modes and contents.
func tree(t *testing.T, root string) []string {
	t.Helper()
	lines := snapshot(t, root)
	for i, line := range lines {
		if f := strings.Fields(line); len(f) == 4 {
			lines[i] = strings.Join(f[:3], " ") // without the time
		}
	}
	return lines
}

// verdicts asks the public tool about many directories in one process, which its
// start makes worth while: exit status of validate, of inspect, what inspect prints.
const verdicts = `
const { main } = await import(process.env.KIT_COMMANDS);
const log = console.log;
for (const dir of process.argv.slice(1)) {
  const said = [];
  console.log = console.error = (text) => said.push(text);
  const valid = await main(["validate", dir]);
  said.length = 0;
  const inspected = await main(["inspect", dir]);
  console.log = log;
  log(JSON.stringify([valid, inspected, said.join("\n")]));
}`

// Both tools give all public fixtures the same verdict, and describe them alike.
func TestInterop_Verdicts(t *testing.T) {
	tool := public(t)
	var dirs []string
	for _, set := range []string{"flow-kit-repository", "kit-conformance-levels"} {
		found, err := filepath.Glob(filepath.Join(tool.fixtures, set, "*"))
		if err != nil || len(found) == 0 {
			t.Fatalf("no fixtures: %v", err)
		}
		dirs = append(dirs, found...)
	}
	cmd := exec.Command(tool.node, append([]string{"--input-type=module", "-e", verdicts, "--"}, dirs...)...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KIT_COMMANDS=" + tool.cli}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := json.NewDecoder(bytes.NewReader(out))
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var valid, inspected int
			var theirs string
			if err := answers.Decode(&[]any{&valid, &inspected, &theirs}); err != nil {
				t.Fatal(err)
			}
			r, err := kit.Validate(dir)
			if err != nil {
				t.Fatal(err)
			}
			if (valid == 0) != (len(r.Errors) == 0) {
				t.Errorf("theirs: exit %d, ours: %q", valid, r.Errors)
			}
			i, err := kit.Inspect(dir)
			if err != nil {
				if inspected == 0 {
					t.Error(err)
				}
				return
			}
			ours, err := strictjson.Indented(i.JSON()[:len(i.JSON())-1]) // without execution, which it does not know
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(theirs, string(ours)); diff != "" {
				t.Errorf("inspect (-theirs +ours):\n%s", diff)
			}
		})
	}
}

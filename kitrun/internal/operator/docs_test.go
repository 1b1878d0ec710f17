package operator_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
)

func page(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "worker.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var shellBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// The run from zero of docs/worker.md does what the page says, with a scripted
// Codex in the place of the real one.
func TestDocs_FromZero(t *testing.T) {
	w := newWorld(t)
	if err := os.Mkdir(w.path("home/.codex"), 0o700); err != nil {
		t.Fatal(err)
	}
	w.write("home/.codex/auth.json", `{"OPENAI_API_KEY":"`+credential+`"}`)
	w.write("config/drawbridge/kitrun.json", `{"network":"`+w.network+`","runtime-dir":"`+w.path("run")+`"}`)
	blocks := shellBlock.FindAllStringSubmatch(page(t), -1)
	if len(blocks) < 3 {
		t.Fatalf("%d blocks", len(blocks))
	}
	script := blocks[1][1] + blocks[2][1]
	script = strings.Replace(script, `"runId": "first"`, `"runId": "`+w.run+`", "storageBudget": {"min_free_bytes": 0},
		"workspaceSetup": {"prompt": "fake: append add.py # sum"}`, 1)
	cmd := exec.Command("sh", "-e", "-c", script)
	cmd.Dir = w.dir
	cmd.Env = w.environ("image="+w.options["image"].(string), "PATH="+w.path("bin")+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+w.path("state"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"+++ b/add.py", ": completed after ", `"completed": true`, `"final": `, ".receipt.json\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
	w.quiet()
}

// Every code that the page names exists.
func TestDocs_Codes(t *testing.T) {
	text := page(t)
	table := text[strings.Index(text, "| Code | What to do |"):strings.Index(text, "## After a crash")]
	for line := range strings.Lines(table) {
		row, ok := strings.CutPrefix(line, "| ")
		if !ok {
			continue
		}
		cell, _, _ := strings.Cut(row, " |")
		for _, code := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(cell, -1) {
			if !fault.Known(fault.Code(code[1])) {
				t.Errorf("%s is no code", code[1])
			}
		}
	}
}

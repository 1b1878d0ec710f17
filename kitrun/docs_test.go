package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/testkit"
)

// The first commands of docs/kits.md work as they stand there.
func TestDocs_Kits(t *testing.T) {
	testkit.Need(t, "bash")
	page, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "kits.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(page), "```sh\n")
	block, _, ok := strings.Cut(block, "```\n")
	if !ok {
		t.Fatal("docs/kits.md has no commands")
	}
	cmd := exec.Command("bash", "-euc", block)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"HOME=" + cmd.Dir, "PATH=" + filepath.Dir(testkit.BuildProgram(t, "kitrun")) + ":" + os.Getenv("PATH")}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"Flow Kit repository validation passed: ", "installed local kit 'my-kit' at " + filepath.Join(cmd.Dir, "work", "kits", "local", "repositories", "my-kit") + "\n",
		`{"id":"my-kit","kit_root":"`, `"state": "installed"`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}

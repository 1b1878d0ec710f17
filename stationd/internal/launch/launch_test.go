package launch_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/redact"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/launch"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// Proves station 17.L9
func TestHash(t *testing.T) {
	hash := func(c launch.Command, workdir string, names []string, artifact string) string {
		t.Helper()
		h, err := launch.Hash(c, workdir, names, artifact)
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	argv := launch.Command{Argv: []string{"bin/serve", "--port", "{port}"}}
	base := hash(argv, "app", []string{"PORT", "HOME"}, "ab")
	if again := hash(argv, "./app/", []string{"HOME", "PORT"}, "ab"); again != base {
		t.Errorf("equal input: %s and %s", base, again)
	}
	for name, h := range map[string]string{
		"argument":  hash(launch.Command{Argv: []string{"bin/serve", "--port", "8080"}}, "app", []string{"PORT", "HOME"}, "ab"),
		"split":     hash(launch.Command{Argv: []string{"bin/serve", "--port {port}"}}, "app", []string{"PORT", "HOME"}, "ab"),
		"mode":      hash(launch.Command{Shell: "bin/serve --port {port}"}, "app", []string{"PORT", "HOME"}, "ab"),
		"workdir":   hash(argv, "", []string{"PORT", "HOME"}, "ab"),
		"variables": hash(argv, "app", []string{"PORT", "HOME", "LANG"}, "ab"),
		"artifact":  hash(argv, "app", []string{"PORT", "HOME"}, "ac"),
	} {
		if h == base {
			t.Errorf("another %s has the same hash", name)
		}
	}
	// The hash is of the words before they are filled, so the port is not in it.
	a, b := argv.Fill(launch.Place{Workspace: "/w", Workdir: "app", Port: 4001}, false), argv.Fill(launch.Place{Workspace: "/w", Workdir: "app", Port: 4002}, false)
	if d := cmp.Diff([]string{"/w/app/bin/serve", "--port", "4001"}, a); d != "" || a[2] == b[2] {
		t.Errorf("filled %v and %v", a, b)
	}
	if again := hash(argv, "app", []string{"PORT", "HOME"}, "ab"); again != base {
		t.Error("filling changes the command")
	}
	shell := launch.Command{Shell: "cd {workdir} && exec ./x {host}:{port} {other}"}
	if d := cmp.Diff([]string{"/bin/sh", "-c", "cd /w && exec ./x 127.0.0.1:7 {other}"}, shell.Fill(launch.Place{Workspace: "/w", Port: 7}, false)); d != "" {
		t.Error(d)
	}
	if got := (launch.Command{Argv: []string{"harness"}}).Fill(launch.Place{Workspace: "/w"}, true); got[0] != "harness" {
		t.Errorf("an artifact's first argument: %v", got)
	}
	if got := (launch.Command{Argv: []string{"x", "user=a", "password=hunter2hunter2"}}).Redacted(redact.New(redact.Options{})); got[2] == "password=hunter2hunter2" {
		t.Errorf("redacted: %v", got)
	}
}

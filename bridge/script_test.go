package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// TestMain lets scripts run this binary as bridge, under its own and under the
// seed's name for it.
func TestMain(m *testing.M) {
	program := func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
	testscript.Main(m, map[string]func(){"bridge": program, "agent-knock-knock": program})
}

// TestScripts runs testdata/script. Each script has a home of its own, no
// siblings and no tmux but what it makes.
//
// Proves core 19.62 for bridge, and host-profile 15.32 and 15.35 by host-profile.txt.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  filepath.Join("testdata", "script"),
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("HOME", home)
			env.Setenv("XDG_STATE_HOME", "")
			env.Setenv("XDG_CONFIG_HOME", "")
			if err := os.MkdirAll(home, 0o700); err != nil {
				return err
			}
			skill, err := os.ReadFile(filepath.Join("..", "docs", "SKILL.md"))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(env.WorkDir, "skill.md"), skill, 0o600); err != nil {
				return err
			}
			return cutPage(env.WorkDir)
		},
	})
}

// exits runs a program and demands its exit status: exits 2 bridge …
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS PROGRAM [ARGUMENT]…")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%s: %v", args[1], err)
	}
	if want, err := strconv.Atoi(args[0]); err != nil || got != want {
		ts.Fatalf("%s ended with %d, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// pageBlocks are the shell blocks of the page that scripts run, by a text that
// each holds.
var pageBlocks = map[string]string{
	"page-example.sh":  "bridge host-profile example",
	"page-validate.sh": "bridge host-profile validate",
	"page-doctor.sh":   "bridge doctor",
}

// cutPage writes the blocks of docs/host-integration.md into dir.
func cutPage(dir string) error {
	page, err := os.ReadFile(filepath.Join("..", "docs", "host-integration.md"))
	if err != nil {
		return err
	}
	for name, text := range pageBlocks {
		found := 0
		for _, part := range strings.Split(string(page), "```sh\n")[1:] {
			block, _, _ := strings.Cut(part, "```\n")
			if !strings.Contains(block, text) {
				continue
			}
			found++
			if err := os.WriteFile(filepath.Join(dir, name), []byte(block), 0o600); err != nil {
				return err
			}
		}
		if found != 1 {
			return fmt.Errorf("%d blocks of the page hold %q", found, text)
		}
	}
	return nil
}

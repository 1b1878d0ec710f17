package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The modules that the program is made of. A new one is a decision: it is in the
// process that holds the Host's session.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	got := strings.Fields(string(out))
	slices.Sort(got)
	want := []string{
		"drawbridge/bridge",
		"drawbridge/shared",
		"github.com/Masterminds/semver/v3",
		"github.com/coder/websocket",
		"github.com/coreos/go-systemd/v22",
		"github.com/fsnotify/fsnotify",
		"github.com/go-json-experiment/json",
		"github.com/google/jsonschema-go",
		"github.com/google/uuid",
		"github.com/mattn/go-sqlite3",
		"github.com/modelcontextprotocol/go-sdk",
		"github.com/oklog/run",
		"github.com/peterbourgon/ff/v3",
		"github.com/segmentio/asm",
		"github.com/segmentio/encoding",
		"github.com/yosida95/uritemplate/v3",
		"golang.org/x/oauth2",
		"golang.org/x/sync",
		"golang.org/x/sys",
		"golang.org/x/term",
		"golang.org/x/text",
		"golang.org/x/time",
	}
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Error(diff)
	}
}

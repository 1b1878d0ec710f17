package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		args   string
		exit   int
		stdout string
		stderr string // part of it
	}{
		{"version", 0, "stationd ", ""},
		{"version --json", 0, `{"program":"stationd","version":"`, ""},
		{"help", 0, "DESCRIPTION", ""},
		{"serve --any flag", 2, "", "stationd: error: "},
		{"nonsense", 2, "", `unknown command "nonsense"`},
		{"", 2, "", "SUBCOMMANDS"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			exit := run(t.Context(), strings.Fields(tc.args), strings.NewReader(""), &stdout, &stderr)
			if exit != tc.exit || !strings.HasPrefix(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d, %q, … %q …", exit, stdout.String(), stderr.String(), tc.exit, tc.stdout, tc.stderr)
			}
		})
	}
}

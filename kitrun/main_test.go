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
		{"version", 0, "kitrun ", ""},
		{"version --json", 0, `{"program":"kitrun","version":"`, ""},
		{"help", 0, "DESCRIPTION", ""},
		{"run --any flag", 2, "", "flag provided but not defined"},
		{"run", 2, "", "0 arguments given, 1 needed"},
		{"run kit --dest d --request r", 2, "", "--controller-root is missing"},
		{"kit run kit --dest d --controller-root c", 2, "", "--request is missing"},
		{"run kit --dest d --request r --controller-root c --host-ports none", 2, "", "not embedded or npm"},
		{"run kit --dest d --request r --controller-root c --worker-network bridge", 2, "", "not isolated or as-requested"},
		{"run kit --env NODE_OPTIONS", 2, "", "is never passed to a kit"},
		{"run kit --env LD_PRELOAD", 2, "", "is never passed to a kit"},
		{"runs --store-dir relative", 1, "", "/relative: no such file or directory"},
		{"doctor --store-dir=", 2, "", "-store-dir is empty"},
		{"nonsense", 2, "", `unknown command "nonsense"`},
		{"", 2, "", "SUBCOMMANDS"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			exit := run(t.Context(), strings.Fields(tc.args), &stdout, &stderr)
			if exit != tc.exit || !strings.HasPrefix(stdout.String(), tc.stdout) || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit %d, stdout %q, stderr %q, want %d, %q, … %q …", exit, stdout.String(), stderr.String(), tc.exit, tc.stdout, tc.stderr)
			}
		})
	}
}

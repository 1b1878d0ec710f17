package evidence_test

import (
	"testing"

	"drawbridge/shared/testkit/scan"
	"drawbridge/stationd/internal/evidence"
	"drawbridge/stationd/internal/launch"
)

func launchJSON(t *testing.T) []byte {
	t.Helper()
	data, err := evidence.Launch{Command: evidence.Command{Mode: launch.Argv, Redacted: []string{"x", "--password=hunter2"}}, UID: 9, GraceMS: 7,
		Grounding: launch.Grounding{Repo: "/home/ann/x"}, Bridge: &evidence.Bridge{Port: 1, Path: "/s", Host: "h"}}.JSON(redactor(t))
	if err != nil {
		t.Fatal(err)
	}
	scanFor(t, "launch", data, map[string]string{"the password": "=hunter2", "a directory": "/home/ann"})
	return data
}

// scanFor fails for each value in data.
func scanFor(t *testing.T, where string, data []byte, values map[string]string) {
	t.Helper()
	for _, f := range (scan.Secrets{Values: values, Tokens: true}).In(where, data) {
		t.Error(f)
	}
}

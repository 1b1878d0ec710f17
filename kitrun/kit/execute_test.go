package kit_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/kitrun/kit"
	"drawbridge/shared/testkit"
)

// A Go program installs a kit and runs it, and tells what went wrong by the code.
func TestExecute(t *testing.T) {
	testkit.Need(t, "node")
	dir := testkit.StoreDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("source/kit.json", `{"schema_version":"1.0","id":"sample","name":"Sample","flows":[{"id":"sample.flow","path":"flow.json"}],`+
		`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"entry.mjs","export":"run"}}`)
	write("source/flow.json", "{}")
	write("source/entry.mjs", `
		import fs from 'node:fs';
		export function run({ requestFile }) {
			const { fails } = JSON.parse(fs.readFileSync(requestFile));
			if (fails) throw new Error(fails);
			return { status: 'completed' };
		}`)
	if _, err := kit.Install(t.Context(), kit.InstallOptions{Source: at("source"), Dest: at("there")}); err != nil {
		t.Fatal(err)
	}
	o := kit.ExecuteOptions{
		KitID: "sample", Dest: at("there"), RequestFile: at("request.json"), ControllerRoot: at("controller"),
		StoreDir: at("store"), RuntimeDir: at("run"), DockerHost: "unix:///nonexistent/docker.sock",
	}
	for _, tc := range []struct {
		more, result string
		code         kit.Code
		message      string
	}{
		{``, `{"status":"completed"}`, "", ""},
		{`,"fails":"two\nlines"`, "", kit.Threw, "two\nlines"},
		{`,"execution":{"timeout_s":0}`, "", kit.RequestInvalid, "timeout_s"},
	} {
		write("request.json", `{"schema":"kontour.kit.execution_request","version":"1.0","kit_id":"sample"`+tc.more+`}`)
		out, err := kit.Execute(t.Context(), o)
		if string(out.Result) != tc.result || kit.CodeOf(err) != tc.code || out.Succeeded() != (err == nil) {
			t.Errorf("request with %s: %s, %v", tc.more, out.Result, err)
		}
		if err != nil && !strings.Contains(err.Error(), tc.message) {
			t.Errorf("request with %s: %v, want … %q …", tc.more, err, tc.message)
		}
	}
}

package fakecodex_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/scripts/internal/fakecodex"
	"drawbridge/shared/testkit"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// codex runs the program with a prompt of words.
func codex(t *testing.T, words ...string) (status int, stdout, stderr string) {
	t.Helper()
	prompt := "Please do this:\n"
	for _, word := range words {
		prompt += fakecodex.Prefix + word + "\n"
	}
	var out, errs bytes.Buffer
	c := &fakecodex.Codex{Args: []string{"exec", "--json", "-"}, Stdin: strings.NewReader(prompt), Stdout: &out, Stderr: &errs}
	status = c.Run()
	return status, out.String(), errs.String()
}

// results are the reports of a turn, by word.
func results(t *testing.T, stdout string) map[string]string {
	t.Helper()
	found := map[string]string{}
	for line := range strings.Lines(stdout) {
		var event struct {
			Item struct {
				Type, Command string
				Output        string `json:"aggregated_output"`
			}
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if event.Item.Type == "command_execution" {
			found[event.Item.Command] = event.Item.Output
		}
	}
	return found
}

const (
	begin = `{"type":"thread.started","thread_id":"01900000-0000-7000-8000-00000000fa4e"}` + "\n" + `{"type":"turn.started"}` + "\n"
	used  = `{"type":"turn.completed","usage":{"input_tokens":20,"cached_input_tokens":6,"output_tokens":10}}` + "\n"
)

func message(text string) string {
	return `{"type":"item.completed","item":{"id":"item_0","type":"agent_message","text":"` + text + `"}}` + "\n"
}

func TestRun(t *testing.T) {
	for _, tc := range []struct {
		name   string
		words  []string
		status int
		stdout string
		stderr string
	}{
		{"nothing", nil, 0, begin + message("done") + used, ""},
		{"final", []string{"final twelve planks"}, 0, begin + message("twelve planks") + used, ""},
		{"usage", []string{"usage 1 2"}, 0, begin + message("done") + `{"type":"turn.completed","usage":{"input_tokens":1,"cached_input_tokens":0,"output_tokens":2}}` + "\n", ""},
		{"raw usage", []string{`usage {"input_tokens":-1}`}, 0, begin + message("done") + `{"type":"turn.completed","usage":{"input_tokens":-1}}` + "\n", ""},
		{"no usage", []string{"usage none"}, 0, begin + message("done") + `{"type":"turn.completed"}` + "\n", ""},
		{"fail", []string{"fail out of planks"}, 1, begin + `{"type":"turn.failed","error":{"message":"out of planks"}}` + "\n", ""},
		{"exit", []string{"exit 3", "print never"}, 3, begin, ""},
		{"print", []string{"silent", "print not json", "stderr a warning"}, 0, "not json\n", "a warning\n"},
		{"flood", []string{"silent", "flood stdout 10 4"}, 0, "xxx\nxxx\nxx", ""},
		{"unknown", []string{"dance"}, 2, "", "codex: unknown word \"dance\"\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			status, stdout, stderr := codex(t, tc.words...)
			if status != tc.status || stderr != tc.stderr {
				t.Errorf("got status %d, stderr %q, want %d, %q", status, stderr, tc.status, tc.stderr)
			}
			if diff := cmp.Diff(tc.stdout, stdout); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRun_Version(t *testing.T) {
	var out, errs bytes.Buffer
	c := &fakecodex.Codex{Args: []string{"--version"}, Stdout: &out, Stderr: &errs}
	if status := c.Run(); status != 0 || out.String() != "codex-cli 0.0.0-fake\n" || errs.Len() == 0 {
		t.Errorf("got %d, %q, %q, want a version, and a warning on stderr", status, out.String(), errs.String())
	}
}

// Words of the environment come first, and stdin is read only when they say so.
func TestRun_Environment(t *testing.T) {
	for name, tc := range map[string]struct{ words, want string }{
		"alone":      {"silent; print one", "one\n"},
		"with stdin": {"silent; print one; stdin", "one\ntwo\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(fakecodex.Variable, tc.words)
			if _, stdout, _ := codex(t, "print two"); stdout != tc.want {
				t.Errorf("got %q, want %q", stdout, tc.want)
			}
		})
	}
}

func TestRun_Files(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	status, stdout, _ := codex(t,
		"write "+at("zeros")+" 3", "text "+at("text")+" twelve planks", "append "+at("text")+" and two chains",
		"files "+at("many")+" 2 5", "symlink zeros "+at("link"), "fifo "+at("fifo"), "mkdir "+at("a/b"), "socket "+at("socket"),
		"create "+at("none/x"), "create "+at("made"), "remove "+at("zeros"), "read "+at("text"), "stat "+at("link"))
	if status != 0 {
		t.Fatalf("got status %d:\n%s", status, stdout)
	}
	var names []string
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, path); err == nil && rel != "." {
			names = append(names, rel+" "+d.Type().String()[:1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"a d", "a/b d", "fifo p", "link L", "made -", "many d", "many/f000000 -", "many/f000001 -", "socket S", "text -"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("what is there (-want +got):\n%s", diff)
	}
	got := results(t, stdout)
	if text := got["read "+at("text")]; text != "twelve planks\nand two chains\n" {
		t.Errorf("read %q", text)
	}
	if said := got["create "+at("none/x")]; !strings.Contains(said, "no such file") {
		t.Errorf("create in a directory that is not there: %q", said)
	}
	if said := got["create "+at("made")]; said != "ok" {
		t.Errorf("create: %q", said)
	}
	if said := got["stat "+at("link")]; !strings.HasPrefix(said, "L") {
		t.Errorf("stat: %q", said)
	}
}

// The capability goes wherever a careless program could put it.
func TestRun_Leak(t *testing.T) {
	t.Setenv("KONTOUR_PROVIDER_CAPABILITY", "c0ffee")
	_, stdout, stderr := codex(t, "leak", "env KONTOUR_PROVIDER_CAPABILITY", "env NOWHERE")
	if strings.Count(stdout, "c0ffee") != 3 || !strings.Contains(stderr, "c0ffee") {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
	if got := results(t, stdout)["env NOWHERE"]; got != "unset" {
		t.Errorf("got %q, want unset", got)
	}
}

func TestRun_Network(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization")+" "+strings.TrimSpace(string(body)))
	}))
	defer server.Close()
	home := t.TempDir()
	config := "model = \"gpt-test\"\n[model_providers.p]\nbase_url = \"" + server.URL + "\"\n"
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CODEX_HOME", home)
	t.Setenv("KONTOUR_PROVIDER_CAPABILITY", "c0ffee")
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()

	addr := server.Listener.Addr().String()
	_, stdout, _ := codex(t, "connect "+addr, "connect "+closed.Addr().String()+" 1s", "get "+server.URL+"/x", "respond hello", "config", "listen 127.0.0.1:0")
	got := results(t, stdout)
	listening := got["listen 127.0.0.1:0"]
	delete(got, "listen 127.0.0.1:0")
	want := map[string]string{
		"connect " + addr: "open",
		"connect " + closed.Addr().String() + " 1s": "refused",
		"get " + server.URL + "/x":                  "200 GET /x  ",
		"respond hello":                             `200 POST /responses Bearer c0ffee {"model":"gpt-test","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hello"}]}],"stream":true,"store":false}`,
		"config":                                    config,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("reports (-want +got):\n%s", diff)
	}
	if !strings.HasPrefix(listening, "127.0.0.1:") {
		t.Errorf("listen: %q", listening)
	}
	// What listened is closed with the turn.
	if conn, err := net.Dial("tcp", listening); err == nil {
		conn.Close()
		t.Error("the listener outlives the turn")
	}
}

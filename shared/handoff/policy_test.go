package handoff_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
)

// policyAt writes a policy file and reads it.
func policyAt(t *testing.T, doc any) *handoff.Policy {
	t.Helper()
	p, err := handoff.LoadPolicy(policyPath(t, doc))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func policyPath(t *testing.T, doc any) string {
	t.Helper()
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

type object = map[string]any

func oneRule(workspace string, commands ...[]string) object {
	return object{"enabled": true, "rules": []object{{
		"id": "r1", "agents": []string{"codex"}, "workspaces": []string{workspace}, "commands": commands,
	}}}
}

// Proves core 19.56: of each command the table says whether it is approved without
// asking. Every vector stands in the policy, so that only the form decides.
func TestPolicy_Table(t *testing.T) {
	base := t.TempDir()
	ws, outside := filepath.Join(base, "ws"), filepath.Join(base, "outside")
	for _, d := range []string{filepath.Join(ws, "sub", "deep"), outside} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{filepath.Join(ws, "file"), filepath.Join(outside, "secret")} {
		if err := os.WriteFile(f, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, at string) {
		if err := os.Symlink(to, at); err != nil {
			t.Fatal(err)
		}
	}
	link(outside, filepath.Join(ws, "out"))
	link(filepath.Join(outside, "secret"), filepath.Join(ws, "leak"))
	link(filepath.Join(ws, "sub"), filepath.Join(ws, "in"))
	link(filepath.Join(outside, "none"), filepath.Join(ws, "dangling"))
	link(ws, filepath.Join(base, "alias"))

	tests := []struct {
		command string
		cwd     string   // below base
		argv    []string // in the policy; nil: the words of the command
		ok      bool
	}{
		// approved
		{"go test ./...", "ws", nil, true},
		{"go build", "ws", nil, true},
		{"  go   build  ", "ws", []string{"go", "build"}, true},
		{"git status --short", "ws/sub", nil, true},
		{"ls -la sub", "ws", nil, true},
		{"cat file", "ws", nil, true},
		{"cat ./file", "ws", nil, true},
		{"cat sub/../file", "ws", nil, true},
		{"cat ../file", "ws/sub", nil, true},
		{"cat in/deep", "ws", nil, true},
		{"cat sub/new/thing", "ws", nil, true},
		{"cat 'file'", "ws", []string{"cat", "file"}, true},
		{`cat "file"`, "ws", []string{"cat", "file"}, true},
		{`cat fi"l"e`, "ws", []string{"cat", "file"}, true},
		{"git commit -m 'two words'", "ws", []string{"git", "commit", "-m", "two words"}, true},
		{`git commit -m ""`, "ws", []string{"git", "commit", "-m", ""}, true},
		{`echo "it's"`, "ws", []string{"echo", "it's"}, true},
		{"make CC=gcc", "ws", nil, true},
		{"go test -run=TestX", "ws", nil, true},
		{"go build -o=bin/x", "ws", nil, true},
		{"git log HEAD^", "ws", nil, true},
		{"g++ -c file", "ws", nil, true},
		{"python3.12 file", "ws", nil, true},
		{"ls", "alias", nil, true}, // the canonical directory counts
		{"touch größe", "ws", nil, true},
		// chains, redirections, expansions, comments
		{"go build; ls", "ws", nil, false},
		{"go build && ls", "ws", nil, false},
		{"go build & ls", "ws", nil, false},
		{"go build | cat", "ws", nil, false},
		{"cat < file", "ws", nil, false},
		{"cat file > x", "ws", nil, false},
		{"cat file 2>&1", "ws", nil, false},
		{"(ls)", "ws", nil, false},
		{"{ ls }", "ws", nil, false},
		{"cat {a,b}", "ws", nil, false},
		{"echo $HOME", "ws", nil, false},
		{"echo '$HOME'", "ws", []string{"echo", "$HOME"}, false},
		{"echo $(ls)", "ws", nil, false},
		{"echo `ls`", "ws", nil, false},
		{"ls # all", "ws", nil, false},
		{"echo hi!", "ws", nil, false},
		{"ls *", "ws", nil, false},
		{"ls 'a*'", "ws", []string{"ls", "a*"}, false},
		{"ls fil?", "ws", nil, false},
		{"ls [f]ile", "ws", nil, false},
		{"ls ~", "ws", nil, false},
		{"ls ~/x", "ws", nil, false},
		{"ls '~root'", "ws", []string{"ls", "~root"}, false},
		{`cat fi\le`, "ws", []string{"cat", "file"}, false},
		{`cat "a\"b"`, "ws", []string{"cat", `a"b`}, false},
		// lines and what cannot be seen
		{"go build\nls", "ws", nil, false},
		{"go build\rls", "ws", nil, false},
		{"go\tbuild", "ws", []string{"go", "build"}, false},
		{"go build\x00", "ws", nil, false},
		{"go build\x1b[31m", "ws", nil, false},
		{"go build\u202e", "ws", nil, false},
		{"go build\u00a0x", "ws", nil, false},
		{"go build\u200b", "ws", nil, false},
		{"go build \xff", "ws", nil, false},
		// quotes
		{"cat 'file", "ws", nil, false},
		{`cat "file`, "ws", nil, false},
		{`cat fi"le`, "ws", nil, false},
		{`'go' build`, "ws", []string{"go", "build"}, false},
		{`g"o" build`, "ws", []string{"go", "build"}, false},
		{`"" build`, "ws", []string{"go", "build"}, false},
		{"git commit -m 'two  words'", "ws", []string{"git", "commit", "-m", "two words"}, false},
		// programs
		{"", "ws", []string{"go"}, false},
		{"   ", "ws", []string{"go"}, false},
		{"CC=gcc make", "ws", []string{"make"}, false},
		{"./go build", "ws", []string{"go", "build"}, false},
		{"/usr/bin/go build", "ws", []string{"go", "build"}, false},
		{"-go build", "ws", []string{"go", "build"}, false},
		{"exec go build", "ws", []string{"go", "build"}, false},
		{"time go build", "ws", []string{"go", "build"}, false},
		{"eval go build", "ws", []string{"go", "build"}, false},
		{". file", "ws", []string{"cat", "file"}, false},
		{"source file", "ws", []string{"cat", "file"}, false},
		{"cd sub", "ws", []string{"ls", "sub"}, false},
		// other words than the policy's
		{"go test", "ws", []string{"go", "test", "./..."}, false},
		{"go test ./... -v", "ws", []string{"go", "test", "./..."}, false},
		{"GO build", "ws", []string{"go", "build"}, false},
		{"go  'build '", "ws", []string{"go", "build"}, false},
		{"gо build", "ws", []string{"go", "build"}, false}, // a Cyrillic letter
		// directories and paths
		{"ls", "outside", nil, false},
		{"ls", ".", nil, false},
		{"ls", "ws/out", nil, false},
		{"ls", "ws/none", nil, false},
		{"ls", "", nil, false},
		{"cat /etc/passwd", "ws", nil, false},
		{"cat ../outside/secret", "ws", nil, false},
		{"cat ..", "ws", nil, false},
		{"cat sub/../../outside/secret", "ws", nil, false},
		{"cat out/secret", "ws", nil, false},
		{"cat leak", "ws", nil, false},
		{"cat dangling", "ws", nil, false},
		{"cat in/../../outside", "ws", nil, false}, // the link's own parent counts
		{"cat none/../../outside", "ws", nil, false},
		{"cat --file=/etc/passwd", "ws", nil, false},
		{"cat --file=../outside/secret", "ws", nil, false},
		{"cat -f/etc/passwd", "ws", nil, false},
		{"cat -I../outside", "ws", nil, false},
		{"dd of=../outside/x", "ws", nil, false},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%q in %q", tt.command, tt.cwd), func(t *testing.T) {
			argv := tt.argv
			if argv == nil {
				argv = strings.Fields(strings.ToValidUTF8(tt.command, ""))
			}
			doc := oneRule(ws, argv)
			if tt.cwd == "" {
				doc = oneRule(ws, []string{"ls"})
			}
			path := policyPath(t, doc)
			p, err := handoff.LoadPolicy(path)
			if err != nil { // the vector itself is no program: nothing approves it
				if tt.ok {
					t.Fatal(err)
				}
				return
			}
			cwd := ""
			if tt.cwd != "" {
				cwd = filepath.Join(base, tt.cwd)
			}
			rule, why := p.Allows(handoff.Candidate{Agent: agent.Codex, Kind: "run_command", Command: tt.command, Cwd: cwd})
			if (rule == "r1") != tt.ok || (why == "") != tt.ok {
				t.Errorf("rule %q, why %q; want approved %v", rule, why, tt.ok)
			}
		})
	}
	if len(tests) < 60 {
		t.Errorf("%d commands", len(tests))
	}
}

// A policy decides by agent, kind and workspace too, and one that is off or absent
// decides nothing. Proves core 19.56's last part.
func TestPolicy_Scope(t *testing.T) {
	ws := t.TempDir()
	doc := oneRule(ws, []string{"ls"})
	c := handoff.Candidate{Agent: agent.Codex, Kind: "run_command", Command: "ls", Cwd: ws}
	if rule, _ := policyAt(t, doc).Allows(c); rule != "r1" {
		t.Fatal("the plain case is not approved")
	}
	off := oneRule(ws, []string{"ls"})
	off["enabled"] = false
	for name, p := range map[string]*handoff.Policy{
		"no policy": nil, "off": policyAt(t, off), "no rules": policyAt(t, object{"enabled": true, "rules": []object{}}),
		"another workspace": policyAt(t, oneRule(filepath.Join(ws, "x"), []string{"ls"})),
	} {
		if rule, why := p.Allows(c); rule != "" || why == "" {
			t.Errorf("%s: rule %q, why %q", name, rule, why)
		}
	}
	for name, change := range map[string]func(*handoff.Candidate){
		"an edit":                 func(c *handoff.Candidate) { c.Kind = "edit_files" },
		"a tool":                  func(c *handoff.Candidate) { c.Kind = "mcp_tool" },
		"another agent":           func(c *handoff.Candidate) { c.Agent = agent.Claude },
		"no directory":            func(c *handoff.Candidate) { c.Cwd = "" },
		"a relative directory":    func(c *handoff.Candidate) { c.Cwd = "." },
		"a sibling by its prefix": func(c *handoff.Candidate) { c.Cwd = ws + "x" },
	} {
		other := c
		change(&other)
		if rule, why := policyAt(t, doc).Allows(other); rule != "" || why == "" {
			t.Errorf("%s: rule %q, why %q", name, rule, why)
		}
	}
}

// A policy that others could have written, or that cannot be read strictly, is none.
func TestLoadPolicy_Refuses(t *testing.T) {
	ws := t.TempDir()
	for name, doc := range map[string]string{
		"not JSON":          `{`,
		"unknown member":    `{"enabled":true,"rules":[],"always":true}`,
		"enabled twice":     `{"enabled":false,"enabled":true,"rules":[]}`,
		"trailing":          `{"enabled":true,"rules":[]}x`,
		"rule without id":   `{"enabled":true,"rules":[{"agents":["codex"],"workspaces":["/w"],"commands":[["ls"]]}]}`,
		"two of one id":     `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["/w"],"commands":[["ls"]]},{"id":"a","agents":["codex"],"workspaces":["/w"],"commands":[["ls"]]}]}`,
		"other agent":       `{"enabled":true,"rules":[{"id":"a","agents":["*"],"workspaces":["/w"],"commands":[["ls"]]}]}`,
		"relative":          `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["w"],"commands":[["ls"]]}]}`,
		"not clean":         `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["/w/../x"],"commands":[["ls"]]}]}`,
		"everything":        `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["/"],"commands":[["ls"]]}]}`,
		"empty command":     `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["/w"],"commands":[[]]}]}`,
		"program by a path": `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["/w"],"commands":[["/bin/ls"]]}]}`,
		"a shell word":      `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["/w"],"commands":[["eval","ls"]]}]}`,
		"no commands":       `{"enabled":true,"rules":[{"id":"a","agents":["codex"],"workspaces":["/w"],"commands":[]}]}`,
	} {
		path := filepath.Join(t.TempDir(), "policy.json")
		if err := os.WriteFile(path, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := handoff.LoadPolicy(path); !fault.Is(err, fault.Usage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := policyPath(t, oneRule(ws, []string{"ls"}))
	for mode, ok := range map[os.FileMode]bool{0o600: true, 0o644: true, 0o400: true, 0o620: false, 0o602: false, 0o666: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := handoff.LoadPolicy(path); (err == nil) != ok {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if _, err := handoff.LoadPolicy(ws); !fault.Is(err, fault.Usage) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := handoff.LoadPolicy(filepath.Join(ws, "none")); !fault.Is(err, fault.Usage) {
		t.Errorf("no file: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, 4242, 4242); err != nil {
			t.Skip(err)
		}
		if _, err := handoff.LoadPolicy(path); !fault.Is(err, fault.Usage) {
			t.Errorf("another owner: %v", err)
		}
	}
}

// Whatever a command line is, what is taken for simple gives the same words to
// every shell: no character that one interprets is left.
func FuzzSimpleCommand(f *testing.F) {
	for _, s := range []string{"ls", "go test ./...", `echo "a b" 'c'`, "a;b", "X=1 y", "~", "''", "ls \\", "\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		argv, why := handoff.SimpleCommand(line)
		if (why == "") == (len(argv) == 0) {
			t.Fatalf("%q: %q, why %q", line, argv, why)
		}
		if why == "" && strings.ContainsAny(line, "&;|<>(){}$#!*?[]`\\~\n\r\t\x00") {
			t.Fatalf("%q is taken for simple: %q", line, argv)
		}
	})
}

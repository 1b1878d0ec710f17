package rule_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/agent"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/terminal"
)

func TestSet_For(t *testing.T) {
	set := load(t)
	if diff := cmp.Diff([]string{"claude", "codex"}, set.Agents()); diff != "" {
		t.Error(diff)
	}
	for _, tc := range []struct {
		agent, version, file string
		class                agent.Class
	}{
		{"codex", "0.148.0", "codex-0.148.0.json", agent.Tested},
		{"codex", "0.171.0", "codex-0.171.0.json", agent.Tested},
		{"codex", "0.148.1", "codex-0.148.0.json", agent.Untested},
		{"codex", "0.170.9", "codex-0.148.0.json", agent.Untested},
		{"codex", "0.171.0-alpha.3", "codex-0.148.0.json", agent.Untested},
		{"codex", "0.171.0+local", "codex-0.171.0.json", agent.Untested},
		{"codex", "0.171.1", "codex-0.171.0.json", agent.Untested},
		{"codex", "0.172.0-alpha.1", "codex-0.171.0.json", agent.Untested},
		{"codex", "1.0.0", "codex-0.171.0.json", agent.Untested},
		{"codex", "0.147.9", "", agent.Refused},
		{"codex", "0.148.0-rc.1", "", agent.Refused},
		{"codex", "", "", agent.Refused},
		{"codex", "v0.171.0", "", agent.Refused},
		{"codex", "0.171", "", agent.Refused},
		{"codex", "latest", "", agent.Refused},
		{"other", "0.171.0", "", agent.Refused},
		{"claude", "2.1.263", "claude-2.1.263.json", agent.Tested},
		{"claude", "2.1.332", "claude-2.1.332.json", agent.Tested},
		{"claude", "2.1.300", "claude-2.1.263.json", agent.Untested},
		{"claude", "2.2.0", "claude-2.1.332.json", agent.Untested},
		{"claude", "2.1.262", "", agent.Refused},
	} {
		t.Run(tc.agent+" "+tc.version, func(t *testing.T) {
			f, class := set.For(tc.agent, tc.version)
			name := ""
			if f != nil {
				name = f.Name()
			}
			if name != tc.file || class != tc.class {
				t.Errorf("%q %s, want %q %s", name, class, tc.file, tc.class)
			}
		})
	}
}

// What Load takes on trust: each embedded file is right from end to end, and says
// of itself what its head said. It is compiled once, by whoever comes first.
func TestLoad_EmbeddedCompile(t *testing.T) {
	files := load(t).Files()
	paths, err := filepath.Glob("files/*.json")
	if err != nil || len(paths) != len(files) {
		t.Fatalf("%d files, the set has %d (%v)", len(paths), len(files), err)
	}
	facts := func(f *rule.File) []any {
		columns, rows := f.Size()
		return []any{f.Name(), f.Agent(), f.About(), f.Oldest(), f.Tested(), f.Keys(), f.Input(), columns, rows, f.Profile()}
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join("files", f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		whole, err := rule.Compile(f.Name(), data)
		if err != nil {
			t.Error(err)
			continue
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if r := f.Read(terminal.Screen{}); r.State != agent.Unknown {
					t.Errorf("%s reads a blank screen as %s", f.Name(), r.State)
				}
			})
		}
		wg.Wait()
		if diff := cmp.Diff(facts(whole), facts(f)); diff != "" {
			t.Errorf("%s (-whole +head)\n%s", f.Name(), diff)
		}
	}
}

func TestFile_Facts(t *testing.T) {
	want := map[string]rule.Input{
		"codex":  {InlineChars: 1000, RequestBytes: 32768, Refuse: []string{"!", "/"}, WrapPrefix: []string{"@", "$"}, WrapWord: "please"},
		"claude": {InlineChars: 800, RequestBytes: 32768, Refuse: []string{"!", "/"}, WrapPrefix: []string{"@"}, WrapWord: "please"},
	}
	clear := map[string][]terminal.Key{"codex": {terminal.LineEnd, terminal.KillLine}} // Claude Code has no key that only clears
	for _, f := range load(t).Files() {
		if diff := cmp.Diff(want[f.Agent()], f.Input()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", f.Name(), diff)
		}
		keys := rule.Keys{Submit: terminal.Enter, Interrupt: terminal.Escape, Clear: clear[f.Agent()]}
		if diff := cmp.Diff(keys, f.Keys()); diff != "" {
			t.Errorf("%s (-want +got)\n%s", f.Name(), diff)
		}
		if len(keys.Clear) > 0 {
			f.Keys().Clear[0] = "C-c" // a copy: the rules themselves do not change
			if f.Keys().Clear[0] != terminal.LineEnd {
				t.Error("the keys can be changed from outside")
			}
		}
		if f.About() == "" || len(f.Tested()) != 1 || f.Tested()[0] != f.Oldest() {
			t.Errorf("%s: %q %q %v %q", f.Name(), f.About(), f.Agent(), f.Tested(), f.Oldest())
		}
	}
}

// source reads an embedded rule file as a tree that a test may change.
func source(t testing.TB, name string) map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("files", name))
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

func encode(t testing.TB, tree any) []byte {
	t.Helper()
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// set changes one member, named by a path; a nil value removes it.
func change(t testing.TB, tree any, path string, value any) {
	t.Helper()
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, p := range parts {
		last := i == len(parts)-1
		switch v := tree.(type) {
		case map[string]any:
			if last && value == nil {
				delete(v, p)
			} else if last {
				v[p] = value
			}
			tree = v[p]
		case []any:
			n := int(p[0] - '0')
			if last {
				v[n] = value
			}
			tree = v[n]
		default:
			t.Fatalf("%s: nothing at %s", path, p)
		}
	}
}

func TestLoad_Override(t *testing.T) {
	dir := t.TempDir()
	tree := source(t, "codex-0.171.0.json")
	change(t, tree, "/about", "mine")
	change(t, tree, "/input/wrap_word", "thanks")
	write(t, dir, "codex-0.171.0.json", encode(t, tree))
	change(t, tree, "/versions/oldest", "0.180.0")
	change(t, tree, "/versions/tested", []any{"0.180.0", "0.181.0"})
	write(t, dir, "codex-0.180.0.json", encode(t, tree))
	change(t, tree, "/agent", "other")
	write(t, dir, "other.json", encode(t, tree))
	write(t, dir, "README.txt", []byte("not a rule file"))
	write(t, dir, ".hidden.json", []byte("not a rule file"))

	set, err := rule.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if f, class := set.For("codex", "0.171.0"); class != agent.Tested || f.About() != "mine" || f.Input().WrapWord != "thanks" {
		t.Errorf("the local file does not replace the embedded one: %s %q", class, f.About())
	}
	if f, class := set.For("codex", "0.181.0"); class != agent.Tested || f.Name() != "codex-0.180.0.json" {
		t.Errorf("0.181.0: %s", class)
	}
	if f, class := set.For("codex", "0.179.0"); class != agent.Untested || f.Name() != "codex-0.171.0.json" {
		t.Errorf("0.179.0: %s %s", class, f.Name())
	}
	if diff := cmp.Diff([]string{"claude", "codex", "other"}, set.Agents()); diff != "" {
		t.Error(diff)
	}
}

func write(t testing.TB, dir, name string, text []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoad_Refuses(t *testing.T) {
	good := encode(t, source(t, "codex-0.171.0.json"))
	for _, tc := range []struct {
		name string
		make func(t *testing.T, dir string)
		want string
	}{
		{"no directory", func(t *testing.T, dir string) { os.Remove(dir) }, "no such file"},
		{"same versions twice", func(t *testing.T, dir string) { write(t, dir, "copy.json", good) }, "/versions/oldest: same as in"},
		{"same tested version twice", func(t *testing.T, dir string) {
			tree := source(t, "codex-0.171.0.json")
			change(t, tree, "/versions/oldest", "0.170.0")
			write(t, dir, "copy.json", encode(t, tree))
		}, "/versions/tested/0: also in"},
		{"too large", func(t *testing.T, dir string) {
			write(t, dir, "big.json", []byte(strings.Repeat(" ", rule.MaxFileBytes+1)))
		}, "read rule file big.json: over"},
		{"a directory", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, "d.json"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "d.json: not an ordinary file"},
		{"not JSON", func(t *testing.T, dir string) { write(t, dir, "x.json", []byte("{")) }, "rule file x.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			tc.make(t, dir)
			if _, err := rule.Load(dir); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}

// A fault in a rule file is told with the file and the place.
func TestCompile_Refuses(t *testing.T) {
	for _, tc := range []struct {
		path  string
		value any
		want  string // pointer, and a word of the reason
	}{
		{"/schema", 2, "/schema: is 2"},
		{"/agent", "Codex 1", "/agent: is not a lower case word"},
		{"/extra", true, `unknown member at "/extra"`},
		{"/dialogs/0/extra", true, `unknown member at "/dialogs/0/extra"`},
		{"/size/columns", 0, "/size/columns: is 0"},
		{"/size/columns", "80", `at "/size/columns"`},
		{"/versions/oldest", "0.171", "/versions/oldest: is not a semantic version"},
		{"/versions/oldest", "0.172.0", "/versions/tested/0: is older than oldest"},
		{"/versions/tested", []any{}, "/versions/tested: is empty"},
		{"/versions/tested", []any{"0.171.0", "x"}, "/versions/tested/1: is not a semantic version"},
		{"/composer/placeholder", map[string]any{}, "/composer/placeholder: tests nothing"},
		{"/composer/markers/0/style", map[string]any{}, "/composer/markers/0/style: tests nothing"},
		{"/composer/markers/0/text", "ab", "/composer/markers/0/text: is not one character"},
		{"/composer/markers/0/held", "x", "/composer/markers: has no ordinary marker"},
		{"/composer/indent", 0, "/composer/indent: is 0"},
		{"/footer/7/above", true, "/footer/7/above: belongs to a hint below a framed composer"},
		{"/composer/gap", "ab", "/composer/gap: is not the one character"},
		{"/composer/frame", map[string]any{"name": "f", "text": "─+"}, "/composer/frame/full: is not set"},
		{"/composer/cursor", map[string]any{}, "/composer/cursor: tests nothing"},
		{"/composer/scroll/style", nil, "/composer/scroll/style: tests nothing"},
		{"/footer", []any{}, "/footer: has no row that means"},
		{"/footer/0/means", "odd", "/footer/0/means: \"odd\" is not one of"},
		{"/footer/0/held", nil, "/footer/0/held: belongs to means"},
		{"/footer/0/row/text", "(", "/footer/0/row/text: error parsing"},
		{"/footer/0/row/text", "", "/footer/0/row/text: is empty"},
		{"/footer/0/row/name", "", "/footer/0/row/name: is empty"},
		{"/footer/0/row/style", map[string]any{"nope": map[string]any{"dim": true}}, "/footer/0/row/style/nope: text has no such group"},
		{"/footer/0/row/style", map[string]any{"row": map[string]any{}}, "/footer/0/row/style/row: tests nothing"},
		{"/footer/0/row/style", map[string]any{"row": map[string]any{"fg": "red"}}, "/footer/0/row/style/row/fg: colour"},
		{"/busy/rows", []any{}, "/busy/rows: is empty"},
		{"/busy/window", 0, "/busy/window: is 0"},
		{"/popups/rows/0/where", "left", "/popups/rows/0/where"},
		{"/dialogs/0/state", "idle", "/dialogs/0/state"},
		{"/dialogs/0/kind", nil, "/dialogs/0/kind: belongs to approval"},
		{"/dialogs/0/name", "approval-patch", "/dialogs/1/name: is used twice"},
		{"/dialogs/0/options", nil, "/dialogs/0/options: is missing"},
		{"/dialogs/0/options/selected/style", nil, "/dialogs/0/options/selected/style: is missing"},
		{"/dialogs/0/options/other/text", "x", "/dialogs/0/options/other/text: needs the group label"},
		{"/dialogs/0/options/other/text", "(?P<label>x)", "/dialogs/0/options/other/text: needs the group n, or the dialog a question"},
		{"/dialogs/0/like", "nothing", "/dialogs/0/like: \"nothing\" is not a dialog"},
		{"/dialogs/0/reject", nil, "/dialogs/0/reject: is missing"},

		{"/dialogs/0/title/style", nil, "/dialogs/0/title/style: is missing"},
		{"/dialogs/0/approve/keys", []any{"p"}, "/dialogs/0/approve/keys/0: \"p\" is not a key"},
		{"/dialogs/0/approve/keys", []any{"C-c"}, "/dialogs/0/approve/keys/0: \"C-c\" is not a key"},
		{"/dialogs/0/approve/keys", []any{"y", "y"}, "/dialogs/0/approve/keys: an answer is exactly one key"},
		{"/dialogs/0/extract/0/form", "{nope}", "/dialogs/0/extract/0/form: start has no group nope"},
		{"/dialogs/0/extract/0/to", "x", "/dialogs/0/extract/0/to"},
		{"/keys/interrupt", "C-c", "/keys/interrupt: \"C-c\" is not a key"},
		{"/input/request_bytes", 0, "/input/request_bytes: is 0"},
		{"/input/wrap_word", " ", "/input/wrap_word: is empty"},
		{"/records/kinds", []any{}, "/records/kinds: is empty"},
		{"/records/at", "/a/b", "/records/at: is not a pointer to an outermost member"},
		{"/records/kinds/0/kind", "other", "/records/kinds/0/kind"},
		{"/records/kinds/0/where", []any{}, "/records/kinds/0/where: is empty"},
		{"/records/kinds/0/where/0/at", "type", "/records/kinds/0/where/0/at"},
		{"/records/kinds/0/where/0/is", "present", "/records/kinds/0/where/0: needs exactly one"},
		{"/records/kinds/0/take/nope", map[string]any{"at": "/a"}, "/records/kinds/0/take/nope: is not a field"},
		{"/records/kinds/0/take/call.id", map[string]any{"at": "/a"}, "/records/kinds/0/take/call.id: belongs to calls"},
		{"/records/kinds/0/take/thread", map[string]any{"at": "/a", "as": "x"}, "/records/kinds/0/take/thread/as"},
		{"/records/kinds/0/take/thread", map[string]any{"at": "/a", "as": "parts"}, "/records/kinds/0/take/thread/parts"},
		{"/records/kinds/0/take/thread", map[string]any{"at": "/a", "join": []any{map[string]any{"at": "/b"}}}, "/records/kinds/0/take/thread: has both"},
		{"/records/kinds/6/call", nil, "/records/kinds/6/call: belongs to kind"},
	} {
		t.Run(tc.path+" "+tc.want, func(t *testing.T) {
			tree := source(t, "codex-0.171.0.json")
			change(t, tree, tc.path, tc.value)
			_, err := rule.Compile("mine.json", encode(t, tree))
			if err == nil || !strings.Contains(err.Error(), "rule file mine.json: ") || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
	if _, err := rule.Compile("mine.json", []byte(`{"schema":1,"schema":1}`)); err == nil {
		t.Error("a member twice is taken")
	}
	if _, err := rule.Compile("mine.json", []byte(`{}`)); err == nil || strings.Count(err.Error(), "\n") < 5 {
		t.Errorf("an empty file names not all that is missing: %v", err)
	}
}

// No name of an agent, and none of its words, is in the engine.
func TestEngine_KnowsNoAgent(t *testing.T) {
	list, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range list {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"codex", "claude", "esc to interrupt", "Would you like", "›", "❯", "rollout"} {
			if strings.Contains(strings.ToLower(string(text)), strings.ToLower(word)) {
				t.Errorf("%s holds %q", path, word)
			}
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, v := range versions {
		f.Add(encode(f, source(f, "codex-"+v+".json")))
	}
	f.Add([]byte(`{"schema":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := rule.Compile("x.json", text)
		if (file == nil) == (err == nil) {
			t.Fatal(file, err)
		}
		if file != nil { // whatever it says, it can be used
			file.Read(terminal.Screen{Text: []byte("› x\n"), Pane: terminal.Pane{Width: 120, Height: 1}})
			_, _ = file.Record([]byte(`{"type":"event_msg"}`))
		}
	})
}

package house_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/scripts/internal/house"
)

func TestImports(t *testing.T) {
	for _, tc := range []struct{ from, to, want string }{
		{"shared/process", "drawbridge/shared/fault", ""},
		{"shared/handoff", "drawbridge/shared/agent/rule", ""},
		{"shared/agent", "drawbridge/shared/agent/rule", ""},
		{"shared/agent/codex", "drawbridge/shared/store", ""},
		{"shared/fault", "drawbridge/shared/process", "imports shared/process, which is not below it"},
		{"shared/fault", "drawbridge/shared/strictjson", "imports shared/strictjson, which is not below it"},
		{"shared/store", "drawbridge/shared/callback", "imports shared/callback, which is not below it"},
		{"shared/store", "drawbridge/shared/service", "imports shared/service, which is not below it"},
		{"shared/wheel", "drawbridge/shared/fault", "is a package of shared without a layer; give it one in scripts/internal/house"},
		{"shared/store", "drawbridge/bridge/internal/catalog", "imports drawbridge/bridge/internal/catalog; shared knows no program"},
		{"watchd", "drawbridge/bridge/internal/catalog", "imports drawbridge/bridge/internal/catalog; programs meet in the Store, never in each other's code"},
		{"watchd", "drawbridge/scripts/internal/rig", "imports drawbridge/scripts/internal/rig; nothing imports scripts"},
		{"scripts/internal/rig", "drawbridge/shared/process", ""},
		{"shared/store", "database/sql", ""},
		{"bridge", "database/sql", "imports database/sql, which is reserved to drawbridge/shared/store, drawbridge/scripts/"},
		{"watchd", "github.com/modelcontextprotocol/go-sdk/mcp", "imports github.com/modelcontextprotocol/go-sdk/mcp, which is reserved to drawbridge/bridge/, drawbridge/scripts/"},
		{"bridge/internal/mcpserver", "github.com/modelcontextprotocol/go-sdk/mcp", ""},
		{"kitrun/internal/worker", "github.com/docker/docker/client", ""},
		{"shared/redact", "github.com/docker/docker/client", "imports github.com/docker/docker/client, which is reserved to drawbridge/kitrun/"},
		{"outboxd", "drawbridge/shared/testkit", "imports drawbridge/shared/testkit, which is reserved to tests"},
	} {
		var want []string
		if tc.want != "" {
			want = []string{"drawbridge/" + tc.from + ": " + tc.want}
		}
		got := say(house.Imports([]house.Package{{ImportPath: "drawbridge/" + tc.from, Imports: []string{tc.to}}}))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s imports %s (-want +got):\n%s", tc.from, tc.to, diff)
		}
	}
}

func TestImports_Tests(t *testing.T) {
	got := say(house.Imports([]house.Package{{
		ImportPath:   "drawbridge/bridge",
		TestImports:  []string{"drawbridge/shared/testkit", "database/sql"},
		XTestImports: []string{"drawbridge/scripts/internal/rig"},
	}}))
	want := []string{"drawbridge/bridge: test imports drawbridge/scripts/internal/rig; nothing imports scripts"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestSharing(t *testing.T) {
	program := func(name string, deps ...string) house.Package {
		return house.Package{ImportPath: "drawbridge/" + name, Name: "main", Deps: deps}
	}
	got := say(house.Sharing([]house.Package{
		{ImportPath: "drawbridge/shared/both", Name: "both"},
		{ImportPath: "drawbridge/shared/one", Name: "one"},
		{ImportPath: "drawbridge/shared/none", Name: "none"},
		{ImportPath: "drawbridge/shared/testkit", Name: "testkit"},
		program("bridge", "drawbridge/shared/both", "drawbridge/shared/one", "drawbridge/bridge/internal/used", "fmt"),
		{ImportPath: "drawbridge/bridge/internal/used", Name: "used"},
		{ImportPath: "drawbridge/bridge/internal/forgotten", Name: "forgotten"},
		program("watchd", "drawbridge/shared/both"),
		{ImportPath: "drawbridge/scripts/internal/x", Name: "x", Deps: []string{"drawbridge/shared/none"}},
	}))
	want := []string{
		"drawbridge/bridge/internal/forgotten: neither the program nor a test uses it",
		"drawbridge/shared/one: only bridge uses it; code of one program lives in its own module",
		"drawbridge/shared/none: no program uses it",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestSupport(t *testing.T) {
	got := house.Support([]house.Package{
		{ImportPath: "drawbridge/outboxd", Name: "main", Deps: []string{"drawbridge/outboxd/internal/deliver"}},
		{ImportPath: "drawbridge/outboxd/internal/deliver", XTestImports: []string{"drawbridge/outboxd/internal/fakehost", "drawbridge/shared/store"}},
		{ImportPath: "drawbridge/outboxd/internal/fakehost"},
		{ImportPath: "drawbridge/outboxd/internal/forgotten"},
		{ImportPath: "drawbridge/shared/store"},
		{ImportPath: "drawbridge/shared/testkit/scripted"},
	})
	want := map[string]bool{
		"drawbridge/outboxd": false, "drawbridge/outboxd/internal/deliver": false,
		"drawbridge/outboxd/internal/fakehost": true, "drawbridge/outboxd/internal/forgotten": false,
		"drawbridge/shared/store": false, "drawbridge/shared/testkit/scripted": true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("support (-want +got):\n%s", diff)
	}
}

func TestFiles(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	registry := "registry." + "npmjs"
	write("a.md", "fine\nfrom https://"+registry+".org/x\n")
	write("b.go", "package b\n// "+"TO"+"DO later\n")
	write("c.md", "a "+"TO"+"DO list is fine in prose\n")
	write("d.go", strings.Repeat("\n", 701))
	write("shared/e/e.go", "package e\nfunc f() { fmt.Println() }\n")
	write("shared/e/main.go", "package main\nfunc f() { fmt.Println() }\n")
	write("x/testdata/f.txt", registry)
	write("g.sh", "cd /wo"+"rk/main\n")
	found, err := house.Files(root, []string{"a.md", "b.go", "c.md", "d.go", "shared/e/e.go", "shared/e/main.go", "x/testdata/f.txt", "g.sh", "gone.go"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a.md:2: names a package registry; packages are named by name and version",
		"b.go:2: marks unfinished work; finish it, or file an issue",
		"d.go: 702 lines, more than 700: it is two nouns",
		"shared/e/e.go:2: prints; stdout belongs to the protocol, and is passed in from main",
		"g.sh:1: holds a path of one machine",
	}
	if diff := cmp.Diff(want, say(found)); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestProofs(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	const text = `package x_test

// A says it. Pro` + `ves core 19.4, 19.5 and 19.6, and
// tools 11.1.
func TestA(t *testing.T) {
	t.Run("b", nil) // Pro` + `ves host-profile 15.38
}

// Pro` + `ves core 19.4 again, and core §13 row 7.
func FuzzB(f *testing.F) {}

// Pro` + `ves core 59.
func TestC(t *testing.T) {}

// Pro` + `ves core 19.64.
func TestD(t *testing.T) {}

// Pro` + `ves core 19.7.
func helper() {}
`
	if err := os.WriteFile(filepath.Join(root, "x", "a_test.go"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	page, found, err := house.Proofs(root, []string{"x/a_test.go", "x/a.go", "x/gone_test.go"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 19.4 ★ | x `FuzzB`, `TestA` |\n", "| 19.6 ★ | x `TestA` |\n", "| 11.1 ★ | x `TestA` |\n", "| 15.38 | x `TestA` |\n",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page has no %q", want)
		}
	}
	said := strings.Join(say(found), "\n")
	for _, want := range []string{
		"x/a_test.go:12: ", "x/a_test.go:18: ", "x: TestD proves core 19.64, which is no line of a specification", "docs/proofs.md: no test proves core 19.7", "docs/proofs.md: no test proves core 19.53",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no finding %q", want)
		}
	}
	for _, unwanted := range []string{"proves core 19.4", "a_test.go:9"} {
		if strings.Contains(said, unwanted+"\n") || strings.Contains(said, unwanted+": ") {
			t.Errorf("a finding %q", unwanted)
		}
	}
}

func say(findings []house.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, f.String())
	}
	return out
}

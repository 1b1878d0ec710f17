package kit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"drawbridge/kitrun/kit"
)

func Example() {
	source, err := os.MkdirTemp("", "kit-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(source)
	for name, content := range map[string]string{
		"kit.json": `{"schema_version":"1.0","id":"hello","name":"Hello","flows":[{"id":"hello.flow","path":"flow.json"}],` +
			`"execution":{"contract":"kontour.kit.execution_request@1.0","module":"entry.mjs","export":"run"}}`,
		"flow.json": "{}",
		"entry.mjs": "export const run = async () => ({ status: 'completed' });",
	} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(content), 0o644); err != nil {
			panic(err)
		}
	}
	dest := filepath.Join(source, "..", filepath.Base(source)+"-work")
	defer os.RemoveAll(dest)

	ctx := context.Background()
	out, err := kit.Install(ctx, kit.InstallOptions{Source: source, Dest: dest})
	fmt.Println(out.Change, out.ID, err)
	v, err := kit.Verify(ctx, "hello", dest)
	fmt.Println(v.Hash == out.Hash, v.Descriptor.Export, err)

	_ = os.WriteFile(filepath.Join(v.KitRoot, "flow.json"), []byte("{ }"), 0o644)
	_, err = kit.Verify(ctx, "hello", dest)
	fmt.Println(kit.CodeOf(err) == kit.Drifted)
	// Output:
	// installed hello <nil>
	// true run <nil>
	// true
}

func TestHashTree(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "a", "b")
	if err := errors.Join(os.MkdirAll(root, 0o755), os.WriteFile(filepath.Join(root, "a"), []byte("x"), 0o644), os.Symlink("a", filepath.Join(base, "l"))); err != nil {
		t.Fatal(err)
	}
	const want = "sha256:9702daf1994748818090bc1579c00984a67885e04aea8046fb1f1c5826564acb"
	for _, tc := range []struct {
		name, root, trusted string
		code                kit.Code // "" when it has the hash
	}{
		{"alone", root, "", ""},
		{"below a trusted root", root, base, ""},
		{"the trusted root itself", root, root, ""},
		{"through a link", filepath.Join(base, "l", "b"), "", ""},
		{"through a link below a trusted root", filepath.Join(base, "l", "b"), base, kit.TreeInvalid},
		{"a link", filepath.Join(base, "l"), "", kit.TreeInvalid},
		{"outside of the trusted root", root, filepath.Join(base, "a", "b", "c"), kit.TreeInvalid},
		{"beside the trusted root", filepath.Join(base, "ab"), filepath.Join(base, "a"), kit.TreeInvalid},
		{"a file", filepath.Join(root, "a"), "", kit.TreeInvalid},
		{"nothing", filepath.Join(base, "nowhere"), "", kit.Missing},
		{"nothing below a trusted root", filepath.Join(base, "nowhere", "at"), base, kit.Missing},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := kit.HashTree(t.Context(), tc.root, tc.trusted)
			if kit.CodeOf(err) != tc.code || tc.code == "" && got != want {
				t.Errorf("%s, %v (%s), want %q", got, err, kit.CodeOf(err), tc.code)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	_, err := kit.Install(t.Context(), kit.InstallOptions{Source: t.TempDir(), Dest: t.TempDir()})
	var e *kit.Error
	if !errors.As(err, &e) || e.Code != kit.Invalid {
		t.Fatalf("err = %v", err)
	}
	if list, ok := e.Details["diagnostics"].([]string); !ok || len(list) != 1 {
		t.Errorf("diagnostics: %v", e.Details)
	}
	r, err := kit.Validate(t.TempDir())
	if err != nil || len(r.Errors) != 1 {
		t.Errorf("report: %+v, %v", r, err)
	}
	if _, err := kit.Verify(t.Context(), "nothing", t.TempDir()); kit.CodeOf(err) != kit.NotInstalled {
		t.Errorf("err = %v", err)
	}
}

package mcpserver_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"drawbridge/bridge/internal/catalog"
)

var update = flag.Bool("update", false, "rewrite the golden protocol files")

// Client lines in, server lines out: each file of testdata/mcp is one session.
// A line waits for its answer, so that the order is fixed; one that begins with
// "! " has none. Server lines are indented for the reader.
//
// Proves tools 11.1, 11.2, 11.3, 11.4, 11.5 and 11.8 on the wire.
func TestServer_Golden(t *testing.T) {
	files, err := filepath.Glob("../../testdata/mcp/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r := serve(t, nil)
			var got bytes.Buffer
			for line := range strings.Lines(section(archive, "client")) {
				line = strings.TrimSuffix(line, "\n")
				if silent, ok := strings.CutPrefix(line, "! "); ok {
					r.send("%s", silent)
					continue
				}
				r.send("%s", line)
				answer, ok := r.next()
				if !ok {
					t.Fatalf("the session ended at %s", line)
				}
				write(t, &got, answer)
			}
			r.in.Close()
			for line := range r.lines {
				t.Errorf("one more line: %s", line)
			}
			if err := r.wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
			if *update {
				set(archive, "server", got.Bytes())
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(section(archive, "server"), got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func write(t *testing.T, out *bytes.Buffer, line string) {
	t.Helper()
	instructions, err := json.Marshal(catalog.Instructions)
	if err != nil {
		t.Fatal(err)
	}
	line = strings.Replace(line, string(instructions), `"(catalog.Instructions)"`, 1)
	if err := json.Indent(out, []byte(line), "", "  "); err != nil {
		t.Fatalf("the server wrote %q: %v", line, err)
	}
	out.WriteByte('\n')
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func set(a *txtar.Archive, name string, data []byte) {
	for i, f := range a.Files {
		if f.Name == name {
			a.Files[i].Data = data
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: data})
}

package kit_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/kitrun/internal/kit"
)

// What nobody here knows stays, in its place.
func TestRegistry_Unknown(t *testing.T) {
	dest := t.TempDir()
	write(t, dest, map[string]string{"kits/local/installed-kits.json": `{"zeta":{"b":1.50,"a":[]},"schema_version":"1.0","kits":[
		{"id":"other","mine":{"x":"ü"},"hash":"?"}, {"id":"sample","source":"old","mine":1}, 7, {"id":"third"}, {"id":"sample"}],"tail":null}`})
	out := install(t, sample(t, nil), dest, update)
	text := read(t, registry(dest))
	want := `{
  "zeta": {
    "b": 1.50,
    "a": []
  },
  "schema_version": "1.0",
  "kits": [
    {
      "id": "other",
      "mine": {
        "x": "ü"
      },
      "hash": "?"
    },
    {
      "id": "sample",
      "source": "` + out.Source + `",
      "hash": "` + out.Hash + `",
      "installed_at": "` + strings.SplitAfterN(text, `"installed_at": "`, 2)[1][:20] + `",
      "installed_path": "kits/local/repositories/sample",
      "state": "installed",
      "version": "1.0.0"
    },
    7,
    {
      "id": "third"
    }
  ],
  "tail": null
}
`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("registry (-want +got):\n%s", diff)
	}
	all, err := kit.List(dest)
	if err != nil || len(all) != 3 || all[0].ID() != "other" || all[1].ID() != "sample" {
		t.Errorf("list: %v, %v", all, err)
	}
}

func FuzzRegistry(f *testing.F) {
	f.Add([]byte(`{"schema_version":"1.0","kits":[]}`))
	f.Add([]byte(`{"schema_version":"1.0","kits":[{"id":"a","hash":"sha256:x","state":1},3,{"id":"a"}],"x":{"y":[]}}`))
	f.Add([]byte(`{"schema_version":"1.0","kits":{}}`))
	f.Add([]byte(`{"schema_version":"1.0","schema_version":"2.0","kits":[null]}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		once, err := kit.Rewrite(data)
		if err != nil {
			return
		}
		twice, err := kit.Rewrite(once)
		if err != nil {
			t.Fatalf("its own registry is refused: %v\n%s", err, once)
		}
		if !bytes.Equal(once, twice) {
			t.Errorf("written once (-) and twice (+):\n%s", cmp.Diff(string(once), string(twice)))
		}
	})
}

func FuzzManifest(f *testing.F) {
	f.Add([]byte(manifest))
	f.Add([]byte(`{"schema_version":"1.0","id":"a","name":"b","flows":[{"path":"x"}],"dependencies":[{"kit_id":"c"},1],"execution":{}}`))
	f.Add([]byte(`{"id":"a","id":7,"execution":{"contract":"kontour.kit.execution_request@1.0","module":"a/../b.mjs","export":"x"}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := kit.Parse(data)
		if e := r.Manifest.Execution; e != nil {
			if !strings.HasSuffix(e.Module, ".mjs") || strings.HasPrefix(e.Module, "/") || strings.Contains("/"+e.Module+"/", "/../") || e.Export == "" {
				t.Errorf("execution %+v", e)
			}
		}
		for _, d := range r.Manifest.Dependencies {
			if kit.CheckID(d.ID) != nil {
				t.Errorf("dependency %q", d.ID)
			}
		}
		if len(r.Errors) == 0 && kit.CheckID(r.Manifest.ID) != nil {
			t.Errorf("valid with the id %q", r.Manifest.ID)
		}
	})
}

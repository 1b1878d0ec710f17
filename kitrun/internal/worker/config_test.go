package worker_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/testkit"

	"github.com/google/go-cmp/cmp"
)

// The container that is asked for, whole, as a reviewer reads it.
func TestSpec_Golden(t *testing.T) {
	r := newRig(t)
	r.opts.User = "1000:1000"
	r.opts.ProviderProxy.BaseURL = "http://host.docker.internal:41273/v1"
	r.opts.OwnerID = "11111111-2222-3333-4444-555555555555"
	r.opts.Setup = &worker.Setup{Bootstrap: "echo set up", Environment: map[string]string{"ZED": "last", "ALPHA": "first"}}
	addOverlay(r, r.path("source"), "/workspace/over")
	r.deps.NewID = func() string { return "x" }
	spec, err := worker.SpecOf(r.opts, r.deps)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(spec); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(r.dir, "DIR", r.opts.InvocationID, "INVOCATION", r.opts.Image, "IMAGE", r.opts.RunID, "RUN",
		r.capability(), "CAPABILITY").Replace(b.String())
	testkit.Golden(t, "spec.json", []byte(text))
	if n := strings.Count(text, "CAPABILITY\""); n != 1 {
		t.Errorf("the capability is in the container's configuration %d times, want once, in the environment", n)
	}
}

func TestParseHarness(t *testing.T) {
	digest := strings.Repeat("0f", 32)
	for _, tc := range []struct{ out, version, digest string }{
		{"codex-cli 0.171.0\n" + digest + "  /usr/bin/codex\n", "0.171.0", "sha256:" + digest},
		{"0.0.0-fake\n" + digest + "  /x\n", "0.0.0-fake", "sha256:" + digest},
		{"\n" + digest + "  /x\n", "", ""},
		{"codex-cli 1\n", "", ""},
		{"codex-cli 1\nno digest\n", "", ""},
		{"codex-cli \x1b[31m1\n" + digest + "  /x\n", "", ""},
		{"", "", ""},
	} {
		version, got, err := worker.ParseHarness([]byte(tc.out))
		if version != tc.version || got != tc.digest || (err != nil) != (tc.version == "") {
			t.Errorf("%q: %q, %q, %v", tc.out, version, got, err)
		}
	}
}

func TestParseMountTable(t *testing.T) {
	const table = `23 28 0:21 / /sys rw,nosuid shared:7 - sysfs sysfs rw
36 28 254:0 /a\040dir /mnt/with\134back\011tab rw - ext4 /dev/vda rw
short line
37 28 254:0 /b\400 /mnt/\0 rw - ext4 /dev/vda rw
`
	want := []worker.Mounted{{"0:21", "/", "/sys"}, {"254:0", "/a dir", "/mnt/with\\back\ttab"}, {"254:0", `/b\400`, `/mnt/\0`}}
	if diff := cmp.Diff(want, worker.ParseMountTable([]byte(table))); diff != "" {
		t.Error(diff)
	}
}

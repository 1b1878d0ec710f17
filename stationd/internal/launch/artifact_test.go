package launch_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/launch"
)

// program is a harness that leaves a mark when somebody executes it.
func program(t *testing.T) (path, digest, mark string) {
	t.Helper()
	dir := t.TempDir()
	path, mark = filepath.Join(dir, "harness"), filepath.Join(dir, "mark")
	text := []byte("#!/bin/sh\ntouch " + mark + "\n")
	if err := os.WriteFile(path, text, 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	return path, hex.EncodeToString(sum[:]), mark
}

// Proves station 17.L6: what is not proven is not handed out, so there is nothing
// to execute.
func TestUnprovenArtifacts(t *testing.T) {
	path, digest, mark := program(t)
	for name, c := range map[string]struct {
		artifact launch.Artifact
		want     fault.Code
	}{
		"unpinned":  {launch.Artifact{Path: path}, fault.ArtifactUnpinned},
		"wrong":     {launch.Artifact{Path: path, SHA256: strings.Repeat("0", 64)}, fault.IntegrityFailed},
		"missing":   {launch.Artifact{Path: path + "-", SHA256: digest}, fault.ArtifactRefused},
		"directory": {launch.Artifact{Path: filepath.Dir(path), SHA256: digest}, fault.ArtifactRefused},
		"device":    {launch.Artifact{Path: "/dev/zero", SHA256: digest}, fault.ArtifactRefused},
		"http":      {launch.Artifact{URL: "http://127.0.0.1:1/x", SHA256: digest}, fault.ArtifactRefused},
		"userinfo":  {launch.Artifact{URL: "https://u:p@127.0.0.1:1/x", SHA256: digest}, fault.ArtifactRefused},
	} {
		dir := t.TempDir()
		got, err := launch.Obtain(t.Context(), c.artifact, dir, nil)
		if !fault.Is(err, c.want) || got != (launch.Obtained{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if err != nil && strings.Contains(err.Error(), filepath.Dir(path)) {
			t.Errorf("%s: the refusal holds a local path: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it was executed")
	}
}

// Proves station 17.L7: what is verified is a private copy; the shim executes that
// very file, compared once more, through its descriptor.
func TestASwappedArtifact(t *testing.T) {
	path, digest, _ := program(t)
	dir := t.TempDir()
	got, err := launch.Obtain(t.Context(), launch.Artifact{Path: path, SHA256: digest}, dir, nil)
	if err != nil || got.SHA256 != digest {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(got.Path)
	if sum := sha256.Sum256(data); err != nil || hex.EncodeToString(sum[:]) != digest {
		t.Errorf("the copy changed with its source: %v", err)
	}
	info, err := os.Stat(got.Path)
	if err != nil || info.Mode().Perm() != 0o500 || filepath.Dir(got.Path) != dir {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, err := launch.Obtain(t.Context(), launch.Artifact{Path: path, SHA256: digest}, dir, nil); err == nil {
		t.Error("a file that is there already was taken")
	}
}

func TestArtifactsOverHTTPS(t *testing.T) {
	path, digest, _ := program(t)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }))
	defer plain.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/file":
			http.ServeFile(w, r, path)
		case "/moved":
			http.Redirect(w, r, "/file", http.StatusFound)
		case "/down":
			http.Redirect(w, r, plain.URL, http.StatusFound)
		case "/round":
			http.Redirect(w, r, "/round", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	client := server.Client()
	defer client.CloseIdleConnections()
	for name, want := range map[string]fault.Code{"/file": "", "/moved": "", "/down": fault.ArtifactRefused, "/round": fault.ArtifactRefused, "/gone?sig=hunter2hunter2": fault.ArtifactRefused} {
		_, err := launch.Obtain(t.Context(), launch.Artifact{URL: server.URL + name, SHA256: digest}, t.TempDir(), client)
		if fault.CodeOf(err) != want || err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Proves station 17.L8: the fixture was signed by minisign 0.11 from the command
// line.
func TestSignatures(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join("testdata", "minisign", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	key, signature := read("key.pub"), read("harness.minisig")
	harness, err := filepath.Abs(filepath.Join("testdata", "minisign", "harness"))
	if err != nil {
		t.Fatal(err)
	}
	altered := filepath.Join(t.TempDir(), "altered")
	if err := os.WriteFile(altered, []byte(read("harness")+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	other, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	reader := minisign.NewReader(strings.NewReader(read("harness")))
	if _, err := reader.Read(make([]byte, 1<<10)); err != nil {
		t.Fatal(err)
	}
	inProcess := string(reader.Sign(private))
	line := strings.Split(key, "\n")[1]

	for name, c := range map[string]struct {
		path, key, signature string
		want                 fault.Code
	}{
		"command line":    {harness, key, signature, ""},
		"key as a line":   {harness, line, signature, ""},
		"in process":      {harness, other.String(), inProcess, ""},
		"other key":       {harness, other.String(), signature, fault.IntegrityFailed},
		"other signature": {harness, key, inProcess, fault.IntegrityFailed},
		"altered file":    {altered, key, signature, fault.IntegrityFailed},
		"trusted comment": {harness, key, strings.Replace(signature, "a harness, reviewed", "a harness, improved", 1), fault.IntegrityFailed},
		"no key":          {harness, "RWQ", signature, fault.IntegrityFailed},
		"no signature":    {harness, key, "untrusted comment: x", fault.IntegrityFailed},
	} {
		dir := t.TempDir()
		got, err := launch.Obtain(t.Context(), launch.Artifact{Path: c.path, Minisign: &launch.Minisign{PublicKey: c.key, Signature: c.signature}}, dir, nil)
		if fault.CodeOf(err) != c.want || (err == nil) != (len(got.KeyID) == 16) {
			t.Errorf("%s: %+v, %v, want %q", name, got, err, c.want)
		}
		if left, _ := os.ReadDir(dir); err != nil && len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

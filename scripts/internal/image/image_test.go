package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/scripts/internal/engine"
	"drawbridge/scripts/internal/image"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// sources are those of the fake image, with codex in a file of the test's own.
func sources(t *testing.T) image.Sources {
	t.Helper()
	testkit.Need(t, "busybox", "git")
	s := image.Sources{Codex: filepath.Join(t.TempDir(), "codex"), Version: "fake", Tag: "drawbridge/worker:image-test"}
	var err error
	if s.Busybox, err = image.Find("busybox", "/bin/busybox", "/usr/bin/busybox"); err != nil {
		t.Fatal(err)
	}
	if s.Git, err = image.Find("git", "/usr/bin/git"); err != nil {
		t.Fatal(err)
	}
	if err := image.BuildFake(t.Context(), s.Codex); err != nil {
		t.Fatal(err)
	}
	return s
}

func build(t *testing.T, s image.Sources) (*image.Image, []byte) {
	t.Helper()
	img, err := image.New(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if n, err := img.WriteTo(&out); err != nil || n != int64(out.Len()) {
		t.Fatalf("wrote %d bytes of %d: %v", n, out.Len(), err)
	}
	return img, out.Bytes()
}

// Proves worker 17.33, for the fake image; TestReal_Loaded is the real one.
func TestNew_Reproducible(t *testing.T) {
	s := sources(t)
	first, one := build(t, s)
	// What is not content must not matter: times, and the mode of the source.
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := errors.Join(os.Chtimes(s.Codex, old, old), os.Chmod(s.Codex, 0o700)); err != nil {
		t.Fatal(err)
	}
	second, two := build(t, s)
	if first.ID != second.ID || !bytes.Equal(one, two) {
		t.Errorf("two builds differ: %s with %d bytes, %s with %d bytes", first.ID, len(one), second.ID, len(two))
	}
	// And built from the sources again, as another run of the tool does it.
	if err := image.BuildFake(t.Context(), s.Codex); err != nil {
		t.Fatal(err)
	}
	if third, _ := build(t, s); third.ID != first.ID {
		t.Errorf("a new build of the fake codex gives %s, want %s", third.ID, first.ID)
	}

	e, err := engine.NewClient(dockertest.Host(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Load(t.Context(), e); err != nil { // verifies the id that the engine reports
		t.Fatal(err)
	}
	t.Cleanup(func() { dockertest.Try(t, http.MethodDelete, "/images/"+s.Tag+"?noprune=1", nil) })
}

// The tool, on the real Codex: the id that is printed is the one that the engine
// knows, and printing it again gives the same.
//
// Proves worker 17.33
func TestReal_Loaded(t *testing.T) {
	loaded := dockertest.WorkerImage(t)
	program := testkit.BuildProgram(t, "scripts/cmd/workerimage")
	file := filepath.Join(t.TempDir(), "worker.tar")
	cmd := exec.Command(program, "-o", file)
	cmd.Dir = testkit.Root()
	printed, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(printed)); got != loaded {
		t.Errorf("printed %s, and loaded %s", got, loaded)
	}
	var seen struct {
		ID     string
		Config struct{ WorkingDir string }
	}
	dockertest.Call(t, http.MethodGet, "/images/"+loaded+"/json", nil, &seen)
	if seen.ID != loaded || seen.Config.WorkingDir != "/workspace" {
		t.Errorf("the engine knows %+v, want %s in /workspace", seen, loaded)
	}
	info, err := os.Stat(file)
	if err != nil || info.Size() < 100<<20 {
		t.Errorf("the archive has %v, %v, want a whole Codex in it", info, err)
	}
}

// Each member of the layer has the time zero, the owner root, and stands behind its
// directory; what the bootstrap of a worker needs is there.
func TestNew_Layer(t *testing.T) {
	_, archive := build(t, sources(t))
	seen := map[string]*tar.Header{}
	outer := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := outer.Next()
		if err == io.EOF {
			t.Fatal("the archive has no layer")
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(h.Name, "/layer.tar") {
			break
		}
	}
	layer := tar.NewReader(outer)
	for {
		h, err := layer.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(time.Unix(0, 0)) || h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Mode&0o6000 != 0 {
			t.Errorf("%s: time %v, owner %d:%d %q, mode %o", h.Name, h.ModTime, h.Uid, h.Gid, h.Uname, h.Mode)
		}
		if dir := filepath.Dir(strings.TrimSuffix(h.Name, "/")); dir != "." && seen[dir+"/"] == nil {
			t.Errorf("%s comes before its directory", h.Name)
		}
		seen[h.Name] = h
	}
	for name, want := range map[string]string{
		"bin/busybox": "", "bin/sh": "busybox", "bin/sha256sum": "busybox", "bin/readlink": "busybox", "usr/bin/git": "",
		"usr/bin/codex": "/opt/codex/bin/codex", "opt/codex/bin/codex": "", "lib64/ld-linux-x86-64.so.2": "", "etc/passwd": "",
		"workspace/": "", "treatment/": "", "context/": "", "codex-home/": "", "tmp/": "", "run/drawbridge/": "", "opt/drawbridge/relay": "",
	} {
		if h := seen[name]; h == nil {
			t.Errorf("%s is not there", name)
		} else if h.Linkname != want {
			t.Errorf("%s leads to %q, want %q", name, h.Linkname, want)
		}
	}
	if h := seen["tmp/"]; h != nil && h.Mode != 0o1777 {
		t.Errorf("tmp has mode %o, want 1777", h.Mode)
	}
}

// A file that is replaced between the two readings makes an error, not an image
// with the wrong id.
func TestWriteTo_Changed(t *testing.T) {
	s := sources(t)
	good, err := os.ReadFile(s.Codex)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(good)
	other[len(other)-1] ^= 1
	for name, data := range map[string][]byte{"same size": other, "longer": append(bytes.Clone(good), 0), "shorter": good[:len(good)-600]} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(s.Codex, good, 0o755); err != nil {
				t.Fatal(err)
			}
			img, err := image.New(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(s.Codex, data, 0o755); err != nil {
				t.Fatal(err)
			}
			if _, err := img.WriteTo(io.Discard); !errors.Is(err, image.ErrChanged) {
				t.Errorf("got %v, want %v", err, image.ErrChanged)
			}
		})
	}
}

// A program that needs libraries is refused: the image has none for it.
func TestNew_Dynamic(t *testing.T) {
	s := sources(t)
	s.Codex = s.Git
	if img, err := image.New(t.Context(), s); err == nil || !strings.Contains(err.Error(), "is linked to libraries") {
		t.Errorf("got %v, %v, want that %s is refused", img, err, s.Codex)
	}
}

// An engine that fails in the middle, that answers 200 and then an error, or that
// knows the image by another id, is an error with its words.
func TestLoad_Refused(t *testing.T) {
	img, _ := build(t, sources(t))
	for _, tc := range []struct {
		name, want string
		load       func(w http.ResponseWriter, r *http.Request)
	}{
		{"status", "status 500: no space", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no space", 500) }},
		{"stream", "the engine says: bad layer", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, `{"stream":"loading"}`+"\n"+`{"error":"bad layer"}`)
		}},
		{"another id", "does not know it as " + img.ID, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := engine.NewClient(fakeEngine(t, tc.load))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := img.Load(ctx, e); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want … %s …", err, tc.want)
			}
		})
	}
}

// fakeEngine knows no image, and does with one that is loaded what load does.
func fakeEngine(t *testing.T, load http.HandlerFunc) (host string) {
	t.Helper()
	socket := filepath.Join(testkit.RuntimeDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /images/load", load)
	mux.HandleFunc("GET /images/{id}/json", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, `{"message":"no such image"}`, 404) })
	server := &http.Server{Handler: mux}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { _ = server.Close(); serving.Wait() })
	return "unix://" + socket
}

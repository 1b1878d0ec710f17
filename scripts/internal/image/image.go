// Package image writes the image of the worker container (worker §13): one layer
// with busybox and its applets, git with the libraries it is linked to, and one
// static codex. The archive is a function of the bytes of those files alone: no
// time, no owner, no order of a directory gets into it, so two builds are equal
// to the byte, and the id that the engine will report is known before loading.
//
// Nothing is downloaded and no engine is needed to build: the files come from
// the packages of the machine (Debian's busybox-static and git) and from the
// pinned agent of scripts/setup. Load is the one part that talks to an engine.
package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"
)

// Names under which the engine lists the images; workers are started by id.
const (
	Tag     = "drawbridge/worker:codex"
	FakeTag = "drawbridge/worker:fake"
)

// Places inside the image.
const (
	codexPath = "opt/codex/bin/codex"
	epoch     = "1970-01-01T00:00:00Z"
)

// ErrChanged says that a file was replaced while it was read: the archive would
// not be that of its id.
var ErrChanged = errors.New("a file of the image changed while it was being written")

// An entry is one member of the layer: a directory, a link, a file of this
// machine, or bytes.
type entry struct {
	name string
	mode int64
	dir  bool
	link string
	from string
	data []byte
}

// An Image is a set of files and the id that it has.
type Image struct {
	// ID is "sha256:" and the digest of the configuration.
	ID string
	// Tag is the name in the archive.
	Tag string

	entries []entry
	config  []byte
	diffID  string
	size    int64 // of the layer
}

// Sources are the files of this machine that go in.
type Sources struct {
	Busybox string // static; its applets become links
	Git     string // its libraries are found from it
	Codex   string // static
	Version string // of codex, for the label
	Tag     string
}

// New reads the sources once, to know their digest.
func New(ctx context.Context, s Sources) (*Image, error) {
	entries, err := layout(ctx, s)
	if err != nil {
		return nil, err
	}
	img := &Image{Tag: s.Tag, entries: entries}
	img.diffID, img.size, err = img.layer(io.Discard)
	if err != nil {
		return nil, fmt.Errorf("read the files of the image: %w", err)
	}
	if img.config, err = configuration(s.Version, img.diffID); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(img.config)
	img.ID = "sha256:" + hex.EncodeToString(sum[:])
	return img, nil
}

// WriteTo writes the docker-archive: configuration, layer, manifest. It reads
// the sources again, and fails when they are no longer those that New saw.
func (img *Image) WriteTo(w io.Writer) (int64, error) {
	counted := &counter{w: w}
	err := img.archive(counted)
	return counted.n, err
}

func (img *Image) archive(w io.Writer) error {
	id := strings.TrimPrefix(img.ID, "sha256:")
	layer := strings.TrimPrefix(img.diffID, "sha256:") + "/layer.tar"
	manifest, err := json.Marshal([]struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{{id + ".json", []string{img.Tag}, []string{layer}}})
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	out := tar.NewWriter(w)
	if err := put(out, id+".json", img.config); err != nil {
		return err
	}
	if err := out.WriteHeader(header(layer, tar.TypeReg, 0o644, img.size)); err != nil {
		return fmt.Errorf("write %s: %w", layer, err)
	}
	got, _, err := img.layer(out)
	switch {
	case errors.Is(err, tar.ErrWriteTooLong), err == nil && got != img.diffID:
		return ErrChanged
	case err != nil:
		return fmt.Errorf("write %s: %w", layer, err)
	}
	if err := put(out, "manifest.json", manifest); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		// The member is shorter than its header says.
		return fmt.Errorf("%w: %v", ErrChanged, err)
	}
	return nil
}

// layer writes the layer and gives its digest and size.
func (img *Image) layer(w io.Writer) (diffID string, size int64, err error) {
	sum := sha256.New()
	counted := &counter{w: io.MultiWriter(w, sum)}
	out := tar.NewWriter(counted)
	for _, e := range img.entries {
		if err := e.write(out); err != nil {
			return "", 0, fmt.Errorf("%s: %w", e.name, err)
		}
	}
	if err := out.Close(); err != nil {
		return "", 0, err
	}
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), counted.n, nil
}

func (e entry) write(out *tar.Writer) error {
	switch {
	case e.dir:
		return out.WriteHeader(header(e.name, tar.TypeDir, e.mode, 0))
	case e.link != "":
		h := header(e.name, tar.TypeSymlink, 0o777, 0)
		h.Linkname = e.link
		return out.WriteHeader(h)
	case e.from == "":
		if err := out.WriteHeader(header(e.name, tar.TypeReg, e.mode, int64(len(e.data)))); err != nil {
			return err
		}
		_, err := out.Write(e.data)
		return err
	}
	f, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", e.from)
	}
	if err := out.WriteHeader(header(e.name, tar.TypeReg, e.mode, info.Size())); err != nil {
		return err
	}
	if _, err := io.Copy(out, f); err != nil {
		return err
	}
	return out.Flush() // fails when the file became shorter
}

func put(out *tar.Writer, name string, data []byte) error {
	if err := (entry{name: name, mode: 0o644, data: data}).write(out); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// header has no time (the zero time is written as 1970), owner 0:0 and no names.
// USTAR has no optional records, so equal members give equal bytes.
func header(name string, kind byte, mode, size int64) *tar.Header {
	return &tar.Header{Name: name, Typeflag: kind, Mode: mode, Size: size, Format: tar.FormatUSTAR}
}

// configuration is the config JSON of the image, members in a fixed order.
func configuration(version, diffID string) ([]byte, error) {
	type labels struct {
		Image string `json:"drawbridge.worker.image"`
		Codex string `json:"drawbridge.worker.codex"`
	}
	type settings struct {
		Env        []string
		WorkingDir string
		Labels     labels
	}
	type rootfs struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	}
	type step struct {
		Created   string `json:"created"`
		CreatedBy string `json:"created_by"`
	}
	config := struct {
		Architecture string   `json:"architecture"`
		OS           string   `json:"os"`
		Created      string   `json:"created"`
		Config       settings `json:"config"`
		RootFS       rootfs   `json:"rootfs"`
		History      []step   `json:"history"`
	}{
		"amd64", "linux", epoch,
		settings{[]string{"PATH=/usr/bin:/bin"}, "/workspace", labels{"1", version}},
		rootfs{"layers", []string{diffID}},
		[]step{{epoch, "drawbridge worker image"}},
	}
	data, err := json.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("write the configuration of the image: %w", err)
	}
	return data, nil
}

// layout lists the members of the layer, sorted, each after its directory.
func layout(ctx context.Context, s Sources) ([]entry, error) {
	for _, program := range []string{s.Busybox, s.Codex} {
		if err := requireStatic(program); err != nil {
			return nil, err
		}
	}
	applets, err := appletsOf(ctx, s.Busybox)
	if err != nil {
		return nil, err
	}
	libraries, err := libraries(s.Git)
	if err != nil {
		return nil, err
	}
	t := tree{}
	t.file("bin/busybox", s.Busybox, 0o755)
	for _, applet := range applets {
		t.link("bin/"+applet, "busybox")
	}
	t.file("usr/bin/git", s.Git, 0o755)
	for _, library := range libraries {
		t.file(strings.TrimPrefix(library, "/"), library, 0o755)
	}
	t.file(codexPath, s.Codex, 0o755)
	t.link("usr/bin/codex", "/"+codexPath)
	t.bytes("etc/passwd", "root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n")
	t.bytes("etc/group", "root:x:0:\nnogroup:x:65534:\n")
	// Mount points: the root of a worker is read-only, and the runtime cannot
	// make them there.
	for _, dir := range []string{
		"codex-home", "context", "dev", "opt/drawbridge", "proc", "run/drawbridge", "sys", "treatment", "usr/share/git-core/templates", "workspace",
	} {
		t.dir(dir, 0o755)
	}
	t.bytes("opt/drawbridge/relay", "")
	t.dir("tmp", 0o1777)
	t.dir("var/tmp", 0o1777)
	return t.sorted(), nil
}

// A tree collects entries by name; directories above them come by themselves.
type tree map[string]entry

func (t tree) add(e entry) {
	t[e.name] = e
	for up := path.Dir(strings.TrimSuffix(e.name, "/")); up != "."; up = path.Dir(up) {
		if _, ok := t[up+"/"]; !ok {
			t[up+"/"] = entry{name: up + "/", mode: 0o755, dir: true}
		}
	}
}

func (t tree) dir(name string, mode int64) { t.add(entry{name: name + "/", mode: mode, dir: true}) }
func (t tree) link(name, to string)        { t.add(entry{name: name, link: to}) }
func (t tree) bytes(name, text string)     { t.add(entry{name: name, mode: 0o644, data: []byte(text)}) }

func (t tree) file(name, from string, mode int64) {
	t.add(entry{name: name, mode: mode, from: from})
}

func (t tree) sorted() []entry {
	all := make([]entry, 0, len(t))
	for _, e := range t {
		all = append(all, e)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].name < all[j].name })
	return all
}

// counter counts what goes through.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

package place_test

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/tree"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

const id = "lse_aaaaaaaaaaaaaaaaaaaaaaaaaa"

func newBase(t *testing.T) place.Base {
	t.Helper()
	dir := testkit.RuntimeDir(t)
	return place.Base{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
}

// serve asks one thing, with content behind it.
func serve(t *testing.T, q place.Request, content io.Reader) place.Answer {
	t.Helper()
	line, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	in := io.Reader(bytes.NewReader(append(line, '\n')))
	if content != nil {
		in = io.MultiReader(in, content)
	}
	var out bytes.Buffer
	if err := place.Serve(t.Context(), in, &out); err != nil {
		t.Fatal(err)
	}
	a, err := place.Read(bytes.TrimSpace(out.Bytes()))
	if err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return a
}

// What arrives is what was sent, or nothing is kept.
func TestServe_Content(t *testing.T) {
	base := newBase(t)
	for _, op := range []string{place.OpMake, place.OpPrepare} {
		if a := serve(t, place.Request{Op: op, Base: base, Lease: id}, nil); a.Fault() != nil {
			t.Fatal(a.Fault())
		}
	}
	at := serve(t, place.Request{Op: place.OpCheck, Base: base, Lease: id}, nil).Layout
	put := func(want string) place.Answer {
		return serve(t, place.Request{Op: place.OpPut, Base: base, Lease: id, SHA256: want}, strings.NewReader("program"))
	}
	sum := "5bf97abb98ba7e3e8f61a9eb2bd6b4d2ea78e02d85f7d1cfe3e5fe7f2dd02a8d"
	if a := put(sum); !fault.Is(a.Fault(), fault.IntegrityFailed) {
		t.Errorf("another digest: %+v", a)
	}
	if left, err := os.ReadDir(at.Harness); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum = serve(t, place.Request{Op: place.OpIdentify, Path: file}, nil).SHA256
	a := put(sum)
	if info, err := os.Stat(a.Path); a.Fault() != nil || err != nil || info.Mode() != 0o500 || filepath.Dir(a.Path) != at.Harness {
		t.Errorf("%+v, %v", a, err)
	}
	if a := put(sum); a.Fault() == nil {
		t.Error("the harness was written over")
	}

	source := t.TempDir()
	if err := os.WriteFile(filepath.Join(source, "a"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	want, err := tree.Of(source)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		want string
		code fault.Code
	}{{strings.Repeat("0", 64), fault.IntegrityFailed}, {want, fault.LeaseUnavailable}} { // the file is there then
		var archive bytes.Buffer
		if err := tree.Pack(t.Context(), source, &archive); err != nil {
			t.Fatal(err)
		}
		if a := serve(t, place.Request{Op: place.OpUnpack, Base: base, Lease: id, SHA256: tc.want}, &archive); !fault.Is(a.Fault(), tc.code) {
			t.Errorf("%+v, want %s", a, tc.code)
		}
	}
	if a := serve(t, place.Request{Op: place.OpRelease, Base: base, Lease: id}, nil); a.Fault() != nil {
		t.Error(a.Fault())
	}
	if a := serve(t, place.Request{Op: place.OpCheck, Base: base, Lease: id}, nil); !fault.Is(a.Fault(), fault.LeaseUnavailable) {
		t.Errorf("released: %+v", a)
	}
}

// Requests that make no sense are refused, and say so with a code.
func TestServe_Refused(t *testing.T) {
	base := newBase(t)
	for name, q := range map[string]place.Request{
		"no op":        {Base: base, Lease: id},
		"unknown":      {Op: "shell", Base: base, Lease: id},
		"no process":   {Op: place.OpKill, Base: base, Lease: id},
		"no spec":      {Op: place.OpStart, Base: base, Lease: id},
		"a path":       {Op: place.OpUnlink, Base: base, Lease: id, Path: "../../x"},
		"no lease":     {Op: place.OpWipe, Base: base},
		"a lease up":   {Op: place.OpRelease, Base: base, Lease: "../x"},
		"relative":     {Op: place.OpMake, Base: place.Base{State: "s", Run: "r"}, Lease: id},
		"no such file": {Op: place.OpIdentify, Path: "/no/such"},
		"never made":   {Op: place.OpPrepare, Base: base, Lease: id},
	} {
		a := serve(t, q, nil)
		if err := a.Fault(); err == nil {
			t.Errorf("%s: %+v", name, a)
		} else if strings.Contains(err.Error(), base.State) {
			t.Errorf("%s: a path is told: %v", name, err)
		}
	}
	for _, text := range []string{"", "{}", "text\n", `{"op":"about","more":1}` + "\n"} {
		if err := place.Serve(t.Context(), strings.NewReader(text), io.Discard); !fault.Is(err, fault.Usage) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "{}x", `{"id":1,"more":2}`} {
		if _, err := place.Read([]byte(text)); err == nil {
			t.Errorf("%q is an answer", text)
		}
	}
	a, err := place.Read([]byte(`{"id":1,"error":{"code":"made_up","message":"x\ny"}}`))
	if err != nil || !fault.Is(a.Fault(), fault.LeaseUnavailable) || strings.Contains(a.Fault().Error(), "\n") {
		t.Errorf("%+v, %v", a, err)
	}
}

// Many requests are answered each with its id, whatever the order.
func TestServe_Many(t *testing.T) {
	base := newBase(t)
	self := process.Self()
	var in bytes.Buffer
	for i := range 100 {
		if err := json.NewEncoder(&in).Encode(place.Request{ID: int64(i), Op: place.OpAlive, Base: base, Lease: id, Incarnation: &self}); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := place.Serve(t.Context(), &in, &out); err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for line := range bytes.Lines(out.Bytes()) {
		a, err := place.Read(bytes.TrimSpace(line))
		if err != nil || !a.Alive || seen[a.ID] {
			t.Errorf("%+v, %v", a, err)
		}
		seen[a.ID] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d answers", len(seen))
	}
}

// A deep tree goes with its links, and not with where they lead.
func TestRelease_Deep(t *testing.T) {
	base := newBase(t)
	p, err := place.Open(base, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Make(); err != nil {
		t.Fatal(err)
	}
	if err := p.Prepare(nil); err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), "kept")
	if err := os.WriteFile(outside, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(p.Layout().Workspace, strings.Repeat("d/", 300))
	if err := os.MkdirAll(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(deep, "out")); err != nil {
		t.Fatal(err)
	}
	if err := p.Release(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if left, err := os.ReadDir(base.State); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

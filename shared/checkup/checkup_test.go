package checkup_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

func checks() []checkup.Check {
	return []checkup.Check{
		{Name: "good", Facts: checkup.Facts("version", "<1>", "found", []string{"a", "b"}, "none", "")},
		{Name: "so_so", Err: checkup.Warn(fault.New(fault.Usage, "not quite").WithHint("do that"))},
		{Name: "bad", Facts: checkup.Facts("bytes", 7), Err: errors.New("gone\nfor good")},
	}
}

func TestObject(t *testing.T) {
	got, err := checkup.Object(checkup.Facts("ok", false, "checks", checks()))
	const want = `{"ok":false,"checks":[{"name":"good","status":"ok","version":"<1>","found":["a","b"],"none":""},` +
		`{"name":"so_so","status":"warning","detail":"not quite [usage]","hint":"do that"},` +
		`{"name":"bad","status":"error","bytes":7,"detail":"gone\nfor good"}]}`
	if err != nil || string(got) != want {
		t.Errorf("got  %s (%v)\nwant %s", got, err, want)
	}
	if got, err := checkup.Object(nil); err != nil || string(got) != "{}" {
		t.Errorf("nothing: %s, %v", got, err)
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := checkup.Table(&out, checks()); err != nil {
		t.Fatal(err)
	}
	const want = "good   ok       version <1>; found a b\n" +
		"so_so  warning  not quite [usage]\n" +
		"                hint: do that\n" +
		"bad    error    gone for good; bytes 7\n"
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestWorst(t *testing.T) {
	all := checks()
	for n, want := range []checkup.Status{checkup.OK, checkup.OK, checkup.Warning, checkup.Failed} {
		if got := checkup.Worst(all[:n]); got != want {
			t.Errorf("of %d: %s, want %s", n, got, want)
		}
	}
}

// Looking makes nothing, and says of a Store what there is.
func TestStore(t *testing.T) {
	dir := filepath.Join(testkit.StoreDir(t), "store")
	state := func() string {
		facts, err := checkup.Store("test", dir)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return facts[0].Value.(string)
	}
	if got := state(); got != "absent" {
		t.Errorf("state %s", got)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("it was made")
	}
	if got := checkup.Holders(t.Context(), "test", dir, "brokerd"); len(got) != 0 {
		t.Errorf("without a Store %v hold a lease", got)
	}
	s, err := store.Open(t.Context(), store.Options{Dir: dir, Program: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Acquire(t.Context(), store.BrokerdLease(), store.LeaseTTL); err != nil {
		t.Fatal(err)
	}
	if got := state(); got != "present" {
		t.Errorf("state %s", got)
	}
	if got := checkup.Holders(t.Context(), "test", dir, "brokerd", "watchd"); strings.Join(got, " ") != "brokerd" {
		t.Errorf("%v hold a lease", got)
	}
	dir = filepath.Join(dir, "store.db", "store") // a file is in the way
	if facts, err := checkup.Store("test", dir)(t.Context()); err == nil || checkup.Makeable(dir) {
		t.Errorf("a place where nothing can be made: %v", facts)
	}
}

func TestExecutable(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"runs": 0o700, "data": 0o600} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{"runs": true, "data": false, "none": false, ".": false} {
		if got := checkup.Executable(filepath.Join(dir, name)); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

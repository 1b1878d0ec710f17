package scan_test

import (
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/shared/testkit/scan"
)

// Each form is found wherever it stands, and nothing else is.
func TestIn(t *testing.T) {
	const value = `val"ue/of+a secret~0123456789`
	s := scan.Secrets{Values: map[string]string{"it": value}}
	for _, text := range []string{
		value, `{"a":"val\"ue/of+a secret~0123456789"}`, "?q=val%22ue%2Fof%2Ba+secret~0123456789&", hex.EncodeToString([]byte("x" + value)), strings.ToUpper(hex.EncodeToString([]byte(value))),
		"before " + value[:14] + "\x00\x00page\x00", "\x00" + value[15:],
	} {
		if got := s.In("here", []byte("some "+text+" more")); len(got) != 1 || got[0].What != "it" || strings.Contains(got[0].String(), value[:5]) {
			t.Errorf("%q: %v", text, got)
		}
	}
	for shift := range 7 {
		for tail := range 4 {
			text := strings.Repeat("\xff", shift) + value + strings.Repeat("\xfe", tail)
			for _, e := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
				if got := s.In("here", []byte(e.EncodeToString([]byte(text)))); len(got) != 1 {
					t.Errorf("base64 at %d, %d behind: %v", shift, tail, got)
				}
			}
		}
	}
	for _, text := range []string{"", value[:10], "the value of a secret", hex.EncodeToString([]byte(value[:10]))} {
		if got := s.In("here", []byte(text)); got != nil {
			t.Errorf("%q: %v", text, got)
		}
	}
	if got := (scan.Secrets{Tokens: true}).In("here", []byte("a dbt"+"_"+strings.Repeat("x", 43))); len(got) != 1 {
		t.Errorf("a ticket: %v", got)
	}
}

func TestBelow(t *testing.T) {
	dir := t.TempDir()
	marks := scan.Marks(2)
	s := scan.Secrets{Values: marks}
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a/ordinary", "text")
	s.None(t, dir)
	write("a/b/bad", "x"+marks["mark 1"])
	write("a/"+marks["mark 2"], "")
	got, seen, err := s.Below(dir)
	if err != nil || len(got) != 2 || seen < 40 || marks["mark 1"] == marks["mark 2"] {
		t.Errorf("%v, %d bytes, %v", got, seen, err)
	}
	if _, _, err := s.Below(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory that is not there")
	}
	if more := s.With("x", "y"); len(more.Values) != 3 || len(s.Values) != 2 {
		t.Errorf("%v", more)
	}
}

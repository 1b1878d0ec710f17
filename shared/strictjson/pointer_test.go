package strictjson_test

import (
	"strings"
	"testing"

	"drawbridge/shared/strictjson"
)

// Proves host-profile 15.24 as far as a single pointer goes.
func TestValidPointer(t *testing.T) {
	for _, tc := range []struct {
		name, ptr string
		ok        bool
	}{
		{"one token", "/result", true},
		{"empty token", "/", true},
		{"empty tokens", "//a//", true},
		{"escapes", "/a~1b/c~0d", true},
		{"non-ASCII", "/é/日本", true},
		{"inner space", "/a b/c", true},
		{"16 tokens", strings.Repeat("/a", 16), true},
		{"256 characters", "/" + strings.Repeat("é", 255), true},
		{"empty", "", false},
		{"no slash", "result/a", false},
		{"fragment", "#/a", false},
		{"~2", "/a~2", false},
		{"~ at the end", "/a~", false},
		{"17 tokens", strings.Repeat("/a", 17), false},
		{"257 characters", "/" + strings.Repeat("é", 256), false},
		{"control character", "/a\x01b", false},
		{"DEL", "/a\x7fb", false},
		{"space at the end", "/a ", false},
		{"no-break space at the end", "/a\u00a0", false},
		{"byte order mark at the end", "/a\ufeff", false},
		{"invalid UTF-8", "/a\xff", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := strictjson.ValidPointer(tc.ptr); (err == nil) != tc.ok {
				t.Errorf("ValidPointer(%q) = %v, want ok %v", tc.ptr, err, tc.ok)
			}
		})
	}
}

func TestPointer(t *testing.T) {
	tree, err := strictjson.Parse([]byte(`{"a":{"b/c":1,"~1":2,"":3,"null":null},"list":["x",["y"]],"length":9,"01":4}`), strictjson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		ptr  string
		want any
		ok   bool
	}{
		{"/a/b~1c", strictjson.Number("1"), true},
		{"/a/~01", strictjson.Number("2"), true},
		{"/a/", strictjson.Number("3"), true},
		{"/a/null", nil, true},
		{"/01", strictjson.Number("4"), true},
		{"/list/0", "x", true},
		{"/list/1/0", "y", true},
		{"/list/2", nil, false},
		{"/list/01", nil, false},
		{"/list/-", nil, false},
		{"/list/-1", nil, false},
		{"/list/+1", nil, false},
		{"/list/length", nil, false},
		{"/list/99999999999999999999", nil, false},
		{"/a/missing", nil, false},
		{"/list/0/x", nil, false},
		{"/length/0", nil, false},
		{"", nil, false},
		{"/a/~2", nil, false},
	} {
		got, ok := strictjson.Pointer(tree, tc.ptr)
		if got != tc.want || ok != tc.ok {
			t.Errorf("Pointer(%q) = %v, %v, want %v, %v", tc.ptr, got, ok, tc.want, tc.ok)
		}
	}
}

func FuzzPointer(f *testing.F) {
	for _, s := range []string{"/a/0", "/~01", "/", "//", "/a~", "/日本"} {
		f.Add(s)
	}
	tree := map[string]any{"a": []any{map[string]any{"": 1}}, "": 2}
	f.Fuzz(func(t *testing.T, ptr string) {
		if _, ok := strictjson.Pointer(tree, ptr); ok && strictjson.ValidPointer(ptr) != nil {
			t.Fatalf("%q resolves and is not valid", ptr)
		}
	})
}

package strictjson_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/strictjson"
)

func TestParseOrdered(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     string // Indented
		repeated []string
	}{
		{"order", `{"b":1,"a":[{"d":null,"c":true}],"e":{}}`, "{\n  \"b\": 1,\n  \"a\": [\n    {\n      \"d\": null,\n      \"c\": true\n    }\n  ],\n  \"e\": {}\n}", nil},
		{"last wins at the first place", `{"a":1,"b":2,"a":{"x":1,"x":2},"a":3}`, "{\n  \"a\": 3,\n  \"b\": 2\n}", []string{"x", "a"}},
		{"numbers stay as written", `[1.50,1e3,-0,12345678901234567890]`, "[\n  1.50,\n  1e3,\n  -0,\n  12345678901234567890\n]", nil},
		{"text", `["é\u00e9\u2028<>&\u0001\n\ud83d\ude00\u007f/"]`, "[\n  \"éé\u2028<>&\\u0001\\n😀\u007f/\"\n]", nil},
		{"empty", `[[],{}]`, "[\n  [],\n  {}\n]", nil},
		{"scalar", ` "x" `, `"x"`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tree, repeated, err := strictjson.ParseOrdered([]byte(tc.in), strictjson.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			got, err := strictjson.Indented(tree)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.repeated, repeated); diff != "" {
				t.Errorf("repeated (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseOrdered_Refused(t *testing.T) {
	for in, want := range map[string]strictjson.Kind{
		"":                 strictjson.Syntax,
		`{"a":1,}`:         strictjson.Syntax,
		`{"a":1}{}`:        strictjson.Trailing,
		"\"\xff\"":         strictjson.Encoding,
		`["\ud800"]`:       strictjson.Encoding,
		"\ufeff{}":         strictjson.Syntax,
		`{"a":1,"a":[01]}`: strictjson.Syntax,
	} {
		if _, _, err := strictjson.ParseOrdered([]byte(in), strictjson.Limits{}); strictjson.KindOf(err) != want {
			t.Errorf("%q: %v, want %s", in, err, want)
		}
	}
	if _, _, err := strictjson.ParseOrdered([]byte(`[[[1]]]`), strictjson.Limits{MaxDepth: 2}); strictjson.KindOf(err) != strictjson.Depth {
		t.Errorf("too deep: %v", err)
	}
}

func FuzzParseOrdered(f *testing.F) {
	for _, seed := range []string{`{"a":1,"a":2}`, `[1,"x",null]`, `{"a":{"b":[{}]}}`, `"\ud800"`, `{`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, _, err := strictjson.ParseOrdered(data, strictjson.Limits{})
		if err != nil {
			return
		}
		out, err := strictjson.Indented(tree)
		if err != nil {
			t.Fatal(err)
		}
		again, repeated, err := strictjson.ParseOrdered(out, strictjson.Limits{MaxBytes: 64 * (len(out) + 1)})
		if err != nil || len(repeated) > 0 {
			t.Fatalf("%q: %v, repeated %v", out, err, repeated)
		}
		if diff := cmp.Diff(tree, again); diff != "" {
			t.Errorf("read again (-want +got):\n%s", diff)
		}
	})
}

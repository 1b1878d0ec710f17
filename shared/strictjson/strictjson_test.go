package strictjson_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/strictjson"
)

// nested gives n arrays in one another.
func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// Proves host-profile 15.6: duplicate member, trailing bytes, invalid UTF-8, a
// lone surrogate escape and 33-deep nesting are each refused.
func TestParse_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name, doc string
		want      strictjson.Kind
		pointer   string
	}{
		{"empty", "", strictjson.Syntax, ""},
		{"white space only", " \n\t", strictjson.Syntax, ""},
		{"cut", `{"a":`, strictjson.Syntax, ""},
		{"bare word", `yes`, strictjson.Syntax, ""},
		{"single quotes", `{'a':1}`, strictjson.Syntax, ""},
		{"comment", `{"a":1 /* x */}`, strictjson.Syntax, ""},
		{"trailing comma", `[1,]`, strictjson.Syntax, ""},
		{"leading zero", `[01]`, strictjson.Syntax, ""},
		{"NaN", `NaN`, strictjson.Syntax, ""},
		{"raw control character", "\"a\nb\"", strictjson.Syntax, ""},
		{"byte order mark", "\ufeff{}", strictjson.Syntax, ""},
		{"duplicate", `{"a":1,"b":{"c":1,"c":2}}`, strictjson.Duplicate, "/b/c"},
		{"duplicate by escape", `{"a":1,"\u0061":2}`, strictjson.Duplicate, "/a"},
		{"second document", `{} {}`, strictjson.Trailing, ""},
		{"trailing bracket", `{}]`, strictjson.Trailing, ""},
		{"trailing NUL", "{}\x00", strictjson.Trailing, ""},
		{"invalid UTF-8", "{\"a\":\"\xff\"}", strictjson.Encoding, ""},
		{"invalid UTF-8 in a name", "{\"\xc3\":1}", strictjson.Encoding, ""},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", strictjson.Encoding, ""},
		{"lone high surrogate", `{"a":"\ud800"}`, strictjson.Encoding, "/a"},
		{"lone low surrogate", `["x","\udc00 y"]`, strictjson.Encoding, "/1"},
		{"two high surrogates", `"\ud800\ud800"`, strictjson.Encoding, ""},
		{"lone surrogate in a name", `{"\udfff":1}`, strictjson.Encoding, ""},
		{"33 deep", nested(33), strictjson.Depth, ""},
		{"33 deep, never closed", strings.Repeat(`{"a":`, 33), strictjson.Depth, ""},
		{"very deep", strings.Repeat("[", 200_000), strictjson.Depth, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tree, err := strictjson.Parse([]byte(tc.doc), strictjson.Limits{})
			if got := strictjson.KindOf(err); got != tc.want || tree != nil {
				t.Fatalf("Parse = %v, %v (kind %q), want kind %q", tree, err, got, tc.want)
			}
			var own *strictjson.Error
			if errors.As(err, &own); tc.pointer != "" && own.Pointer != tc.pointer {
				t.Errorf("pointer = %q, want %q", own.Pointer, tc.pointer)
			}
			var v any
			if got := strictjson.KindOf(strictjson.Decode([]byte(tc.doc), &v, strictjson.Limits{})); got != tc.want {
				t.Errorf("Decode: kind = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestParse_Accepts(t *testing.T) {
	n := func(s string) strictjson.Number { return strictjson.Number(s) }
	for _, tc := range []struct {
		name, doc string
		want      any
	}{
		{"object", ` {"b":[1,2.50,-0,1e3],"a":{"":null}} ` + "\r\n\t", map[string]any{
			"b": []any{n("1"), n("2.50"), n("-0"), n("1e3")}, "a": map[string]any{"": nil}}},
		{"empty containers", `[{},[],""]`, []any{map[string]any{}, []any{}, ""}},
		{"scalars", `[true,false,null]`, []any{true, false, nil}},
		{"top-level string", `"\u00e9\ud83d\ude00\/"`, "é😀/"},
		{"top-level number", `12345678901234567890`, n("12345678901234567890")},
		{"names that differ in case", `{"id":1,"ID":2}`, map[string]any{"id": n("1"), "ID": n("2")}},
		{"noncharacter", "\"\uffff\"", "\uffff"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := strictjson.Parse([]byte(tc.doc), strictjson.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("tree (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := strictjson.Parse([]byte(nested(32)), strictjson.Limits{}); err != nil {
		t.Errorf("32 deep: %v", err)
	}
}

func TestLimits(t *testing.T) {
	doc := []byte(`{"a":[1]}`)
	for _, tc := range []struct {
		name string
		lim  strictjson.Limits
		want strictjson.Kind
	}{
		{"exactly the bytes", strictjson.Limits{MaxBytes: len(doc)}, ""},
		{"one byte too many", strictjson.Limits{MaxBytes: len(doc) - 1}, strictjson.Size},
		{"exactly the depth", strictjson.Limits{MaxDepth: 2}, ""},
		{"one too deep", strictjson.Limits{MaxDepth: 1}, strictjson.Depth},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := strictjson.Parse(doc, tc.lim); strictjson.KindOf(err) != tc.want {
				t.Errorf("err = %v, want kind %q", err, tc.want)
			}
		})
	}
	big := []byte(`"` + strings.Repeat("x", strictjson.DefaultMaxBytes) + `"`)
	if _, err := strictjson.Parse(big, strictjson.Limits{}); strictjson.KindOf(err) != strictjson.Size {
		t.Errorf("default size: %v", err)
	}
}

type target struct {
	ID    string             `json:"id"`
	Count int64              `json:"count"`
	Ratio *strictjson.Number `json:"ratio,omitempty"`
	Any   any                `json:"any,omitempty"`
	Inner *struct {
		On bool `json:"on"`
	} `json:"inner,omitempty"`
}

func TestDecode(t *testing.T) {
	ratio := strictjson.Number("8e3")
	for _, tc := range []struct {
		name, doc string
		allow     bool
		want      target
		kind      strictjson.Kind
		pointer   string
	}{
		{name: "all members", doc: `{"id":"x","count":3,"ratio":8e3,"any":{"n":[1.0]},"inner":{"on":true}}`,
			want: target{ID: "x", Count: 3, Ratio: &ratio, Any: map[string]any{"n": []any{strictjson.Number("1.0")}},
				Inner: &struct {
					On bool `json:"on"`
				}{true}}},
		{name: "unknown", doc: `{"id":"x","more":1}`, kind: strictjson.Unknown, pointer: "/more"},
		{name: "unknown inside", doc: `{"inner":{"on":true,"off":1}}`, kind: strictjson.Unknown, pointer: "/inner/off"},
		{name: "unknown allowed", doc: `{"id":"x","more":{"a":[1]}}`, allow: true, want: target{ID: "x"}},
		{name: "other case", doc: `{"ID":"x"}`, kind: strictjson.Unknown, pointer: "/ID"},
		{name: "other case allowed is no match", doc: `{"ID":"x"}`, allow: true, want: target{}},
		{name: "string for number", doc: `{"count":"3"}`, kind: strictjson.Type, pointer: "/count"},
		{name: "fraction for integer", doc: `{"count":3.5}`, kind: strictjson.Type, pointer: "/count"},
		{name: "integer too big", doc: `{"count":9223372036854775808}`, kind: strictjson.Type, pointer: "/count"},
		{name: "string for Number", doc: `{"ratio":"8"}`, kind: strictjson.Type},
		{name: "array for object", doc: `[]`, kind: strictjson.Type},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got target
			err := strictjson.Decode([]byte(tc.doc), &got, strictjson.Limits{AllowUnknown: tc.allow})
			if strictjson.KindOf(err) != tc.kind {
				t.Fatalf("err = %v, want kind %q", err, tc.kind)
			}
			if err != nil {
				var own *strictjson.Error
				errors.As(err, &own)
				if tc.pointer != "" && own.Pointer != tc.pointer {
					t.Errorf("pointer = %q, want %q", own.Pointer, tc.pointer)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("value (-want +got):\n%s", diff)
			}
		})
	}
}

// An error may be logged; a document may hold a secret.
func TestErrorsHideValues(t *testing.T) {
	const canary = "s3cr3t-canary"
	for _, doc := range []string{
		`{"id":` + canary + `}`,
		`{"count":"` + canary + `"}`,
		`{"id":"` + canary + `\ud800"}`,
		`{"id":"` + canary + `"} ` + canary,
		`{"ratio":"` + canary + `"}`,
		`"` + canary,
	} {
		err := strictjson.Decode([]byte(doc), &target{}, strictjson.Limits{})
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("Decode(%s): %v", doc, err)
		}
	}
	long := strictjson.Decode([]byte(`{"`+strings.Repeat("é", 500)+`":1}`), &target{}, strictjson.Limits{})
	if n := len(long.Error()); n > 300 {
		t.Errorf("error of %d bytes for a long name", n)
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.5e3,"\u00e9\ud83d\ude00",null,true]}`, `[{"a":{}},[]]`, `"\ud800"`, `{"a":1,"a":2}`, `-0`, nested(40), "\"\xff\"", `1e400`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := strictjson.Parse(data, strictjson.Limits{})
		var v any
		err2 := strictjson.Decode(data, &v, strictjson.Limits{})
		if (err == nil) != (err2 == nil) {
			t.Fatalf("Parse says %v, Decode says %v", err, err2)
		}
		if err != nil {
			if strictjson.KindOf(err) == "" {
				t.Fatalf("error without a kind: %v", err)
			}
			return
		}
		if !reflect.DeepEqual(tree, v) { // cmp.Diff takes exponential time on nested interfaces
			t.Fatalf("Parse gives %v, Decode %v", tree, v)
		}
		canon, err := strictjson.Canonical(tree)
		if err != nil {
			return // a number that has no canonical form
		}
		again, err := strictjson.Parse(canon, strictjson.Limits{MaxBytes: 6*len(data) + 6})
		if err != nil {
			t.Fatalf("canonical form %q does not parse: %v", canon, err)
		}
		twice, err := strictjson.Canonical(again)
		if err != nil || string(twice) != string(canon) {
			t.Fatalf("canonical form is not stable: %q, then %q (%v)", canon, twice, err)
		}
	})
}

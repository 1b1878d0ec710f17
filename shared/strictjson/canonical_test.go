package strictjson_test

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"os"
	"testing"

	"drawbridge/shared/strictjson"
)

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}

func TestCanonical(t *testing.T) {
	type state string
	type row struct {
		B int    `json:"b"`
		A string `json:"a"`
	}
	for _, tc := range []struct {
		name string
		v    any
		want string // "" means refused
	}{
		{"nil", nil, `null`},
		{"sorted by bytes", map[string]any{"b": 1, "a": 2, "B": 3, "é": 4, "": 5}, `{"":5,"B":3,"a":2,"b":1,"é":4}`},
		{"ordered object is sorted too", strictjson.Object{{"b", 1}, {"a", strictjson.Object{{"d", 1}, {"c", 2}}}}, `{"a":{"c":2,"d":1},"b":1}`},
		{"only what must be escaped", "\x00\x01\b\t\n\v\f\r\x1f \"\\/<>&'\x7f\u2028\u2029é😀", `"\u0000\u0001\b\t\n\u000b\f\r\u001f \"\\/<>&'` + "\x7f\u2028\u2029é😀" + `"`},
		{"integers in every spelling", []any{strictjson.Number("8000.0"), strictjson.Number("8e3"), strictjson.Number("-0"), strictjson.Number("0.0e9")}, `[8000,8000,0,0]`},
		{"Go integers", []any{int8(-1), uint16(2), int64(3), 4}, `[-1,2,3,4]`},
		{"largest", strictjson.MaxExact, `9007199254740991`},
		{"smallest", -strictjson.MaxExact, `-9007199254740991`},
		{"too large", strictjson.MaxExact + 1, ""},
		{"too large as text", strictjson.Number("9007199254740993"), ""},
		{"too large unsigned", uint64(math.MaxUint64), ""},
		{"fraction", strictjson.Number("1.5"), ""},
		{"huge exponent", strictjson.Number("1e999999999999"), ""},
		{"float", 1.5, ""},
		{"float that is integral", float64(8), `8`},
		{"named text", state("open"), `"open"`},
		{"map of text", map[string]string{"b": "x", "a": ""}, `{"a":"","b":"x"}`},
		{"texts", []string{"b", "a"}, `["b","a"]`},
		{"struct", row{1, "<"}, `{"a":"<","b":1}`},
		{"pointer to struct", &row{}, `{"a":"","b":0}`},
		{"slice of structs", []row{{A: "x"}}, `[{"a":"x","b":0}]`},
		{"invalid UTF-8", "a\xff", ""},
		{"invalid UTF-8 in a name", map[string]any{"\xff": 1}, ""},
		{"channel", make(chan int), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := strictjson.Canonical(tc.v)
			if (err != nil) != (tc.want == "") || string(got) != tc.want {
				t.Errorf("Canonical = %s, %v, want %s", got, err, tc.want)
			}
		})
	}
}

// The fixture of core §15.2: no escaping of <, &, U+2028 or é.
func TestCanonical_CoreFixture(t *testing.T) {
	got, err := strictjson.Canonical(map[string]any{"a": "<&>\u2028é"})
	if err != nil {
		t.Fatal(err)
	}
	if want := "78bbc592c6504285064069ea5115b931ca2a68226e68bc52337a39e971b04231"; sum(got) != want {
		t.Errorf("digest of %s = %s, want %s", got, sum(got), want)
	}
}

// The fixture of host-profile §7, read from the document as it is shipped.
func TestCanonical_ProfileFixture(t *testing.T) {
	data, err := os.ReadFile("testdata/starter.json")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := strictjson.Parse(data, strictjson.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	got, err := strictjson.Canonical(tree)
	if err != nil {
		t.Fatal(err)
	}
	if want := "0346d0c8503f62a94f53450f51a0cbef82cb1b2bcb8d0f448018b3e751d9bf67"; len(got) != 1162 || sum(got) != want {
		t.Errorf("%d bytes with digest %s, want 1162 and %s", len(got), sum(got), want)
	}
}

// Proves core 19.36 for the id itself: the digest is over the members in the
// order of core §7.
func TestOrdered_WatchNotificationFixture(t *testing.T) {
	evidence := ""
	for range 64 {
		evidence += "a"
	}
	doc := strictjson.Ordered("schema", "agent-knock-knock/terminal-watch-notification", "version", 1,
		"watch_id", "terminal-watch-1", "kind", "completed", "evidence_fingerprint", evidence)
	if want := "ae352a06ad15d680c68387d21a414b27ae89093a20cd7af6e0f10845a3c57c63"; sum(doc) != want {
		t.Errorf("digest of %s = %s, want %s", doc, sum(doc), want)
	}
}

func TestOrdered(t *testing.T) {
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"order is kept", strictjson.Ordered("b", 1, "a", strictjson.Object{{"z", "<"}, {"y", nil}}), `{"b":1,"a":{"z":"<","y":null}}`},
		{"maps inside are sorted", strictjson.Ordered("m", map[string]any{"b": 1, "a": 2}), `{"m":{"a":2,"b":1}}`},
		{"empty", strictjson.Ordered(), `{}`},
		{"list", strictjson.List("x", true, 3, []string{"y"}), `["x",true,3,["y"]]`},
		{"empty list", strictjson.List(), `[]`},
		{"bytes that are not UTF-8", strictjson.Ordered("a", "x\xff\xfey"), `{"a":"x` + "\ufffd" + `y"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if string(tc.got) != tc.want {
				t.Errorf("got %s, want %s", tc.got, tc.want)
			}
		})
	}
	if _, err := (strictjson.Object{{"a", "\xff"}}).JSON(); err == nil {
		t.Error("Object.JSON took bytes that are not UTF-8")
	}
	for name, f := range map[string]func(){
		//lint:ignore SA5012 the odd number is what is tested
		"odd":          func() { strictjson.Ordered("a") },
		"name no text": func() { strictjson.Ordered(1, 2) },
		"no form":      func() { strictjson.Ordered("a", 1.5) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

package upstream_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"drawbridge/brokerd/internal/upstream"
)

// Proves broker 18.6 and 18.8 for the form itself: one member of a name, compact,
// order kept, integers unchanged.
func TestCanonical(t *testing.T) {
	deep := func(n int) string {
		return `{"a":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
	}
	many := func(last string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := range 40 {
			fmt.Fprintf(&b, `"m%d":%d,`, 39-i, i)
		}
		return b.String() + last + "}"
	}
	for _, tc := range []struct{ name, in, want string }{ // want "" means refused
		{"order, duplicates and numbers", `{"model":"other","b":{"z":1,"a":2,"z":3},"model":"bound","n":12345678901234567890}`, `{"model":"bound","b":{"z":3,"a":2},"n":12345678901234567890}`},
		{"space", " {\r\n\t\"a\" : [ 1 , 2 ] , \"b\" : { } , \"c\" : [ ] } \n", `{"a":[1,2],"b":{},"c":[]}`},
		{"words", `{"a":true,"b":false,"c":null}`, `{"a":true,"b":false,"c":null}`},
		{"numbers keep their spelling", `{"a":[0,-0,1.50,1E+2,-2e-3,0.0]}`, `{"a":[0,-0,1.50,1E+2,-2e-3,0.0]}`},
		{"three of a name, with what is inside", `{"a":{"x":1,"x":2},"b":1,"a":[{"y":1,"y":2}],"a":{"z":1,"z":{"w":1,"w":2}}}`, `{"a":{"z":{"w":2}},"b":1}`},
		{"escapes in a row", `{"a\n":"\n\n\\\"\t","b\\":"\\"}`, `{"a\n":"\n\n\\\"\t","b\\":"\\"}`},
		{"a name escaped", `{"model":"other","mod\u0065l":"bound"}`, `{"model":"bound"}`},
		{"case matters", `{"Model":1,"model":2}`, `{"Model":1,"model":2}`},
		{"many members", many(`"z":1`), many(`"z":1`)},
		{"many members, one twice", many(`"m39":"last"`), strings.Replace(strings.TrimSuffix(many(""), ",}")+"}", `"m39":0`, `"m39":"last"`, 1)},
		{"escapes", `{"a":"\u0041\/\"\\\b\f\n\r\t\u0000\u001f\u007f\u2028\u2029<>&é😀"}`, `{"a":"A/\"\\\b\f\n\r\t\u0000\u001f` + "\x7f" + `\u2028\u2029<>&é😀"}`},
		{"line separators", "{\"a\":\"\u2028\u2029\u2027\u202a\"}", `{"a":"\u2028\u2029` + "\u2027\u202a\"}"},
		{"surrogates", `{"a":"\ud83d\ude00\ud800x\udc00\ud800\ud800\ud83d\ude00\ud800\u0041"}`, `{"a":"😀` + "\ufffdx\ufffd\ufffd\ufffd😀\ufffdA\"}"},
		{"names that become the same", `{"\ud800":1,"\ufffd":2}`, "{\"\ufffd\":2}"},
		{"200 deep", deep(200), deep(200)},
		{"201 deep", deep(201), ""},
		{"very deep", `{"a":` + strings.Repeat("[", 1_000_000), ""},
		{"empty", ``, ""}, {"white space", ` `, ""}, {"array", `[]`, ""}, {"text", `"a"`, ""}, {"number", `1`, ""}, {"null", `null`, ""},
		{"two values", `{} {}`, ""}, {"trailing bracket", `{}]`, ""}, {"trailing NUL", "{}\x00", ""}, {"BOM", "\ufeff{}", ""},
		{"trailing comma", `{"a":1,}`, ""}, {"trailing comma in array", `{"a":[1,]}`, ""}, {"leading comma", `{,"a":1}`, ""}, {"missing colon", `{"a" 1}`, ""},
		{"missing comma", `{"a":1 "b":2}`, ""}, {"missing value", `{"a":}`, ""}, {"bare name", `{a:1}`, ""}, {"name is a number", `{1:1}`, ""},
		{"single quotes", `{'a':1}`, ""}, {"comment", `{"a":1/**/}`, ""}, {"wrong bracket", `{"a":[1}`, ""}, {"cut", `{"a":"b`, ""}, {"cut in an escape", `{"a":"\u00`, ""}, {"cut at a backslash", `{"a":"\`, ""},
		{"bad escape", `{"a":"\x"}`, ""}, {"bad hex", `{"a":"\u00g0"}`, ""}, {"raw newline", "{\"a\":\"\n\"}", ""}, {"raw NUL", "{\"a\":\"\x00\"}", ""},
		{"leading zero", `{"a":01}`, ""}, {"plus", `{"a":+1}`, ""}, {"bare point", `{"a":1.}`, ""}, {"point first", `{"a":.1}`, ""}, {"bare exponent", `{"a":1e}`, ""}, {"minus", `{"a":-}`, ""}, {"hex number", `{"a":0x1}`, ""}, {"NaN", `{"a":NaN}`, ""}, {"word run on", `{"a":truex}`, ""},
		{"invalid UTF-8", "{\"a\":\"\xff\"}", ""}, {"overlong", "{\"a\":\"\xc0\xaf\"}", ""}, {"surrogate in UTF-8", "{\"a\":\"\xed\xa0\x80\"}", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := []byte(tc.in)
			got, err := upstream.Canonical(in)
			if (err != nil) != (tc.want == "") || string(got) != tc.want {
				t.Errorf("Canonical = %s, %v, want %s", got, err, tc.want)
			}
			if string(in) != tc.in {
				t.Error("the input is changed")
			}
			if want, err := reference(in); (err != nil) != (tc.want == "") || want != tc.want {
				t.Errorf("the reference says %s, %v", want, err)
			}
		})
	}
}

// reference is the same by other means: the token stream of encoding/json into an
// ordered tree, written by its encoder.
func reference(in []byte) (string, error) {
	if !utf8.Valid(in) {
		return "", errors.New("UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(in))
	d.UseNumber()
	first, err := d.Token()
	if err != nil || first != json.Delim('{') {
		return "", errors.Join(err, errors.New("no object"))
	}
	tree, err := referenceValue(d, first, 1)
	if err != nil {
		return "", err
	}
	if _, err := d.Token(); err != io.EOF {
		return "", errors.New("trailing")
	}
	var b strings.Builder
	tree.write(&b)
	return b.String(), nil
}

// tree is a value: an object (names), an array (names nil, list not) or a leaf.
type tree struct {
	leaf  any
	names []string
	list  []tree
	kind  byte
}

func referenceValue(d *json.Decoder, tok json.Token, depth int) (tree, error) {
	delim, ok := tok.(json.Delim)
	if !ok {
		return tree{leaf: tok}, nil
	}
	if depth > upstream.MaxDepth {
		return tree{}, errors.New("deep")
	}
	out := tree{kind: byte(delim)}
	for d.More() {
		tok, err := d.Token()
		if err != nil {
			return tree{}, err
		}
		at := len(out.list)
		if delim == '{' {
			name := tok.(string)
			if at = slices.Index(out.names, name); at < 0 {
				at = len(out.list)
				out.names = append(out.names, name)
			}
			if tok, err = d.Token(); err != nil {
				return tree{}, err
			}
		}
		v, err := referenceValue(d, tok, depth+1)
		if err != nil {
			return tree{}, err
		}
		out.list = append(out.list[:at], append([]tree{v}, out.list[min(at+1, len(out.list)):]...)...)
	}
	_, err := d.Token()
	return out, err
}

func (v tree) write(b *strings.Builder) {
	leaf := func(x any) {
		var line bytes.Buffer
		e := json.NewEncoder(&line)
		e.SetEscapeHTML(false)
		if err := e.Encode(x); err != nil {
			panic(err)
		}
		b.Write(bytes.TrimSuffix(line.Bytes(), []byte("\n")))
	}
	if v.kind == 0 {
		leaf(v.leaf)
		return
	}
	b.WriteByte(v.kind)
	for i, item := range v.list {
		if i > 0 {
			b.WriteByte(',')
		}
		if v.kind == '{' {
			leaf(v.names[i])
			b.WriteByte(':')
		}
		item.write(b)
	}
	b.WriteByte(v.kind + 2)
}

// A body that is made to cost much costs a bounded time and room.
func TestCanonical_Hostile(t *testing.T) {
	names := func(n int, name func(int) string) string {
		var b strings.Builder
		b.WriteByte('{')
		for i := range n {
			fmt.Fprintf(&b, `%s%q:0`, map[bool]string{true: ","}[i > 0], name(i))
		}
		return b.String() + "}"
	}
	for name, in := range map[string]string{
		"many names":          names(500_000, func(i int) string { return fmt.Sprint(i) }),
		"one name":            names(500_000, func(int) string { return "a" }),
		"twice at each depth": strings.Repeat(`{"a":1,"a":`, 199) + names(100_000, func(i int) string { return fmt.Sprint(i % 50_000) }) + strings.Repeat("}", 199),
		"texts":               `{"input":[` + strings.TrimSuffix(strings.Repeat(`{"type":"input_text","text":""},`, 200_000), ",") + `]}`,
		"texts in texts":      `{"input":` + strings.Repeat(`{"type":"input_text","text":"x","a":`, 190) + `[` + strings.TrimSuffix(strings.Repeat(`{"type":"input_text","text":""},`, 50_000), ",") + `]` + strings.Repeat("}", 191),
	} {
		doc, err := upstream.Canonical([]byte(in))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		again, err := upstream.Canonical(doc)
		if err != nil || !bytes.Equal(again, doc) {
			t.Errorf("%s: not stable, %v", name, err)
		}
		doc.InputDigests()
	}
}

func TestDocument(t *testing.T) {
	doc, err := upstream.Canonical([]byte(`{"model":"gpt \"x\" \u2028","reasoning":{"effort":"high","n":[1,{"effort":"low"}]},"a\"b":{},"n":1,"t":"x","effort":null}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path []string
		want string
		ok   bool
	}{
		{[]string{"model"}, "gpt \"x\" \u2028", true}, {[]string{"reasoning", "effort"}, "high", true}, {[]string{"t"}, "x", true},
		{[]string{"Model"}, "", false}, {[]string{"effort"}, "", false}, {[]string{"n"}, "", false}, {[]string{"reasoning"}, "", false},
		{[]string{"model", "effort"}, "", false}, {[]string{"reasoning", "n", "effort"}, "", false}, {[]string{"missing"}, "", false},
	} {
		if got, ok := doc.Text(tc.path...); got != tc.want || ok != tc.ok {
			t.Errorf("Text(%q) = %q, %v, want %q, %v", tc.path, got, ok, tc.want, tc.ok)
		}
	}
	if v, ok := doc.Member(`a"b`); string(v) != "{}" || !ok {
		t.Errorf("Member = %s, %v", v, ok)
	}
}

func TestInputDigests(t *testing.T) {
	sum := func(text string) string {
		h := sha256.Sum256([]byte(text))
		return "sha256:" + hex.EncodeToString(h[:])
	}
	text := func(s string) string { return `{"type":"input_text","text":` + s + `}` }
	many := strings.TrimSuffix(strings.Repeat(text(`"x"`)+",", upstream.MaxDigests+1), ",")
	for _, tc := range []struct {
		name, input string
		want        []string
		truncated   bool
	}{
		{"none", `[]`, []string{}, false},
		{"a text", `"say \u0068i"`, []string{sum("say hi")}, false},
		{"depth first", `[{"content":[` + text(`"a"`) + `,` + text(`"b\n"`) + `]},` + text(`"c"`) + `]`, []string{sum("a"), sum("b\n"), sum("c")}, false},
		{"outer before inner, whatever its members' order", `{"in":` + text(`"inner"`) + `,"text":"outer","type":"input_text"}`, []string{sum("outer"), sum("inner")}, false},
		{"not texts", `[{"type":"output_text","text":"a"},{"type":"input_text","text":1},{"type":"input_text"},{"text":"b"},{"Type":"input_text","text":"c"},1,null,"d"]`, []string{}, false},
		{"exactly enough", "[" + many[len(text(`"x"`))+1:] + "]", slices.Repeat([]string{sum("x")}, upstream.MaxDigests), false},
		{"too many", "[" + many + "]", slices.Repeat([]string{sum("x")}, upstream.MaxDigests), true},
		{"too many because of the outermost", `{"in":[` + many[len(text(`"x"`))+1:] + `],"type":"input_text","text":"o"}`, append([]string{sum("o")}, slices.Repeat([]string{sum("x")}, upstream.MaxDigests-1)...), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc, err := upstream.Canonical([]byte(`{"x":"input","input":` + tc.input + `,"y":` + text(`"no"`) + `}`))
			if err != nil {
				t.Fatal(err)
			}
			got, truncated := doc.InputDigests()
			if diff := cmp.Diff(tc.want, got); diff != "" || truncated != tc.truncated {
				t.Errorf("truncated %v, digests (-want +got):\n%s", truncated, diff)
			}
		})
	}
	doc, _ := upstream.Canonical([]byte(`{"a":1}`))
	if got, truncated := doc.InputDigests(); len(got) != 0 || got == nil || truncated {
		t.Errorf("without input: %v, %v", got, truncated)
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{
		`{"model":"other","b":{"z":1,"a":2,"z":3},"model":"bound","n":12345678901234567890}`, `{"a":"\ud83d\ude00\ud800\u2028\/","input":[{"type":"input_text","text":"x"}]}`,
		`{"a":[1,-0,2.5e+3,{"b":[]},null,true,false,""],"":{}}`, "{\"a\":\"\u2028\xff\"}", `{"\ud800":1,"\ufffd":2}`, `{"a":1,}`, `{"a":1}}`, ` { "a" : 1 , "a" : { "c" : 1 , "c" : 2 } } `,
		`{"1":1,"2":2,"3":3,"4":4,"5":5,"6":6,"7":7,"8":8,"9":9,"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"1":9,"h":0}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := upstream.Canonical(in)
		want, wantErr := reference(in)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("Canonical says %v, encoding/json says %v", err, wantErr)
		}
		if err != nil {
			return
		}
		if string(got) != want {
			t.Fatalf("Canonical gives %s, encoding/json %s", got, want)
		}
		got.InputDigests()
		var members map[string]json.RawMessage
		if err := json.Unmarshal(got, &members); err != nil {
			t.Fatal(err)
		}
		for name, value := range members {
			if v, ok := got.Member(name); !ok || !bytes.Equal(v, value) {
				t.Fatalf("member %q is %s, encoding/json says %s", name, v, value)
			}
		}
	})
}

package mcpserver_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/bridge/internal/mcpserver"
	"drawbridge/shared/strictjson"
)

func TestParseMessage(t *testing.T) {
	tests := map[string]struct {
		line string
		want mcpserver.Line
	}{
		"call":              {`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":1}}`, mcpserver.Line{ID: "1", Call: true, Method: "m", Params: json.RawMessage(`{"a":1}`)}},
		"text id":           {`{"jsonrpc":"2.0","id":"1","method":"m"}`, mcpserver.Line{ID: `"1"`, Call: true, Method: "m"}},
		"escaped id":        {`{"jsonrpc":"2.0","id":"\u0031\n","method":"m"}`, mcpserver.Line{ID: `"1\n"`, Call: true, Method: "m"}},
		"notification":      {`{"jsonrpc":"2.0","method":"m","params":null}`, mcpserver.Line{Method: "m"}},
		"empty method":      {`{"jsonrpc":"2.0","id":1,"method":""}`, mcpserver.Line{ID: "1", Call: true}},
		"unknown member":    {`{"jsonrpc":"2.0","id":1,"method":"m","ID":2}`, mcpserver.Line{ID: "1", Call: true, Method: "m"}},
		"answer":            {`{"jsonrpc":"2.0","id":1,"result":{}}`, mcpserver.Line{Ignore: true}},
		"null answer":       {`{"jsonrpc":"2.0","id":1,"result":null}`, mcpserver.Line{Ignore: true}},
		"error answer":      {`{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"x"}}`, mcpserver.Line{Ignore: true}},
		"not JSON":          {`{"jsonrpc":"2.0",`, mcpserver.Line{Code: -32700}},
		"two documents":     {`{"jsonrpc":"2.0","id":1,"method":"m"} {}`, mcpserver.Line{Code: -32700}},
		"duplicate":         {`{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`, mcpserver.Line{Code: -32700}},
		"duplicate inside":  {`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":{"b":1,"b":2}}}`, mcpserver.Line{Code: -32700}},
		"invalid UTF-8":     {"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}", mcpserver.Line{Code: -32700}},
		"lone surrogate":    {`{"jsonrpc":"2.0","id":1,"method":"\ud800"}`, mcpserver.Line{Code: -32700}},
		"array":             {`[{"jsonrpc":"2.0","id":1,"method":"m"}]`, mcpserver.Line{Code: -32600}},
		"number":            {`7`, mcpserver.Line{Code: -32600}},
		"null":              {`null`, mcpserver.Line{Code: -32600}},
		"empty object":      {`{}`, mcpserver.Line{Code: -32600}},
		"no method":         {`{"jsonrpc":"2.0","id":1}`, mcpserver.Line{Code: -32600}},
		"null id":           {`{"jsonrpc":"2.0","id":null,"method":"m"}`, mcpserver.Line{Code: -32600}},
		"object id":         {`{"jsonrpc":"2.0","id":{},"method":"m"}`, mcpserver.Line{Code: -32600}},
		"bool id":           {`{"jsonrpc":"2.0","id":true,"method":"m"}`, mcpserver.Line{Code: -32600}},
		"long id":           {`{"jsonrpc":"2.0","id":"` + strings.Repeat("x", 600) + `","method":"m"}`, mcpserver.Line{Code: -32600}},
		"other version":     {`{"jsonrpc":"1.0","id":1.0,"method":"m"}`, mcpserver.Line{Code: -32600, Echo: "1.0"}},
		"no version":        {`{"id":1,"method":"m"}`, mcpserver.Line{Code: -32600, Echo: "1"}},
		"method no text":    {`{"jsonrpc":"2.0","id":1,"method":5}`, mcpserver.Line{Code: -32600, Echo: "1"}},
		"params an array":   {`{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}`, mcpserver.Line{Code: -32602, Echo: "1"}},
		"nested too deep":   {`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + `}}`, mcpserver.Line{Code: -32600}},
		"deep, not too":     {`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}}`, mcpserver.Line{ID: "1", Call: true, Method: "m", Params: json.RawMessage(`{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`)}},
		"wrong case method": {`{"jsonrpc":"2.0","id":1,"Method":"m"}`, mcpserver.Line{Code: -32600}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, mcpserver.ParseLine([]byte(tt.line))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Proves tools 11.9: ids are told apart by type and value, whatever way they
// are written.
func TestCallID(t *testing.T) {
	same := map[string][]string{
		`host-bridge:["bridge-instance-a",1]`:                {`1`, `1.0`, `1e0`, `10e-1`, `0.1e1`, `1E+0`, `1.000`},
		`host-bridge:["bridge-instance-a","1"]`:              {`"1"`, `"\u0031"`},
		`host-bridge:["bridge-instance-a","1.0"]`:            {`"1.0"`},
		`host-bridge:["bridge-instance-a",7]`:                {`7`, `0.7e1`},
		`host-bridge:["bridge-instance-a",0]`:                {`0`, `-0`, `0.0`, `0e5`, `-0e-3`},
		`host-bridge:["bridge-instance-a",-15]`:              {`-15`, `-1.5e1`, `-150e-1`},
		`host-bridge:["bridge-instance-a",1.5]`:              {`1.5`, `15e-1`},
		`host-bridge:["bridge-instance-a",0.05]`:             {`0.05`, `5e-2`},
		`host-bridge:["bridge-instance-a",9007199254740992]`: {`9007199254740992`, `9007199254740992.0`},
		`host-bridge:["bridge-instance-a",9007199254740993]`: {`9007199254740993`},
		`host-bridge:["bridge-instance-a",1e400]`:            {`1e400`, `10e399`},
		`host-bridge:["bridge-instance-a","a\"\\/\n é"]`:     {`"a\"\\\/\u000a é"`},
	}
	for want, raws := range same {
		for _, raw := range raws {
			got, err := mcpserver.CallID("bridge-instance-a", json.RawMessage(raw))
			if err != nil || got != want {
				t.Errorf("CallID of %s: %q, %v; want %q", raw, got, err, want)
			}
		}
	}
	for _, raw := range []string{``, `null`, `true`, `{}`, `[]`, `1e99999999999`} {
		if got, err := mcpserver.CallID("i", json.RawMessage(raw)); err == nil {
			t.Errorf("CallID of %q: %q", raw, got)
		}
	}
}

// The message id of tools §5 that follows from the call id.
func TestCallID_MessageFixture(t *testing.T) {
	id, err := mcpserver.CallID("bridge-instance-a", json.RawMessage(`7.0`))
	if err != nil {
		t.Fatal(err)
	}
	const session = "trusted-session-id"
	sum := sha256.Sum256(strictjson.List(session, session, "agent_knock_knock_send", id))
	const want = "fb25932bdc666aa02e3c12df9d8afc99b0549936b067f65d9663211e806b9bca"
	if got := hex.EncodeToString(sum[:]); got != want {
		t.Errorf("digest %s, want %s", got, want)
	}
}

func FuzzPlainNumber(f *testing.F) {
	for _, s := range []string{"1", "1.0", "1e0", "-0.0", "12.50e-3", "1e21", "123456789012345678901234567890", "5e-22"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 64 || !json.Valid([]byte(s)) || strings.ContainsAny(s, "\"[{tfn \t\r\n") {
			t.Skip()
		}
		if i := strings.IndexAny(s, "eE"); i >= 0 && len(s)-i > 6 {
			t.Skip() // a power of ten that big.Rat would take minutes for
		}
		got, ok := mcpserver.PlainNumber(s)
		if !ok {
			t.Fatalf("%q is refused", s)
		}
		a, _ := new(big.Rat).SetString(s)
		b, ok := new(big.Rat).SetString(got)
		if !ok || a.Cmp(b) != 0 {
			t.Fatalf("%q became %q", s, got)
		}
		if again, _ := mcpserver.PlainNumber(got); again != got {
			t.Fatalf("%q became %q and then %q", s, got, again)
		}
	})
}

func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{},"task":{}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}`,
		`[1]`, `{"id":"\ud83d\ude00","method":"\\"}`, `{"jsonrpc":"2.0","id":null,"method":"m"}`, "\xef\xbb\xbf{}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got := mcpserver.ParseLine(line)
		if got.Code == 0 && !json.Valid(line) {
			t.Fatalf("%q is no JSON and is taken", line)
		}
		if got.Call {
			if again, ok := mcpserver.IDKey(got.ID); !ok || again != got.ID {
				t.Fatalf("id %q is not its own canonical form: %q", got.ID, again)
			}
			mcpserver.AsksForTask(got.Params)
		}
	})
}

// Proves tools 11.3 in part: both ways to ask for a task are seen.
func TestAsksForTask(t *testing.T) {
	tests := map[string]bool{
		``: false, `{}`: false, `{"name":"x","arguments":{"task":1}}`: false, `{"_meta":{"tasks":1}}`: false, `{"_meta":5}`: false,
		`{"task":{}}`: true, `{"task":null}`: true, `{"_meta":{"task":{"ttl":1}}}`: true, `{"_meta":{"task":null}}`: true,
	}
	for params, want := range tests {
		if got := mcpserver.AsksForTask(json.RawMessage(params)); got != want {
			t.Errorf("%s: %t", params, got)
		}
	}
}

package profile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

const semver = `(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)\.(?:0|[1-9]\d*)` +
	`(?:-(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?`

// referenceRange is the grammar of host-profile §3 written once more.
var referenceRange = regexp.MustCompile(`^(?:>=|>|<=|<|=)?` + semver + `(?: (?:>=|>|<=|<|=)?` + semver + `){0,3}$`)

// Proves host-profile 15.38: an independent validator with the published schema
// and our parser give one corpus the same verdict, but for the parser-only rules
// that the schema's own description lists.
func TestSchema_AgreesWithParser(t *testing.T) {
	schema := compile(t)
	const (
		disp    = "callback.acknowledgement.disposition"
		pointer = disp + ".jsonPointer"
		mapping = disp + ".mapping"
		args    = "callback.arguments"
		exe     = "callback.executable"
	)
	needed := func(extra ...string) []string {
		return append([]string{"${controller.session_id}", "${envelope.delivery_id}", "${envelope.message_id}"}, extra...)
	}
	type set = []any
	corpus := []set{
		{}, {"$schema", gone{}}, {"$schema", "x"}, {"$schema", nil}, {"schema", "x"}, {"schema", gone{}}, {"version", 1.0}, {"version", 2},
		{"version", "1"}, {"version", true}, {"version", json.RawMessage("1.0e0")}, {"extra", 1}, {"ID", "a"},
		{"id", "A"}, {"id", "a..b"}, {"id", ""}, {"id", "a\n"}, {"id", 1}, {"id", strings.Repeat("a", 64)}, {"id", strings.Repeat("a", 65)},
		{"revision", "r:1_2"}, {"revision", "-"}, {"revision", strings.Repeat("r", 129)},
		{"compatibility", gone{}}, {"compatibility", "x"}, {"compatibility.extra", 1}, {"compatibility.host", "a b"}, {"compatibility.range", gone{}},
		{"compatibility.range", "1.0.0"}, {"compatibility.range", ">=1.0.0-a.0+b <2.0.0"}, {"compatibility.range", ">=1.0.0  <2.0.0"},
		{"compatibility.range", "^1.0.0"}, {"compatibility.range", ">1.0.0 >1.0.0 >1.0.0 >1.0.0 >1.0.0"}, {"compatibility.range", "1.0.0-01"},
		{"compatibility.range", "01.0.0"}, {"compatibility.range", ""}, {"compatibility.range", " 1.0.0"}, {"compatibility.range", "1.0.0-"},
		{"controllerContext", nil}, {"controllerContext.extra", 1}, {"controllerContext.driver", "x"}, {"controllerContext.scope", "startup_v1"},
		{"controllerContext.scope", "route_bound_v1"}, {"controllerContext.scope", "x"}, {"controllerContext.scope", nil},
		{"controllerContext.sessionIdVariable", gone{}}, {"controllerContext.sessionIdVariable", 1},
		{"callback", []int{}}, {"callback.extra", 1}, {"callback.driver", "x"}, {"callback.stdin", "x"}, {"callback.stdin", gone{}},
		{exe, "/x"}, {exe, "x"}, {exe, "/"}, {exe, "/a/"}, {exe, ""}, {exe, "/a b/c"}, {exe, "/a\n"}, {exe, "/a/${x}"}, {exe, "/a/$x"},
		{exe, "/bin/x "}, {exe, "/bin/x\u00a0"}, {exe, "/Bin/SH"}, {exe, "/PowerShell.exe"}, {exe, "/powershellxexe"}, {exe, "/bin/bash2"}, {exe, "/sh/x"},
		{exe, "/" + strings.Repeat("a", 4095)}, {exe, "/" + strings.Repeat("a", 4096)}, {exe, 1},
		{args, "x"}, {args, []string{}}, {args, []any{1}}, {args, needed()}, {args, needed(repeat(61, "")...)}, {args, needed(repeat(62, "")...)},
		{args, needed()[1:]}, {args, needed()[:2]}, {args, []string{"${envelope.delivery_id}", "x${envelope.message_id}y${controller.session_id}"}},
		{args, needed(strings.Repeat("é", 4096))}, {args, needed(strings.Repeat("a", 4097))},
		{"callback.environment", gone{}}, {"callback.environment.extra", 1}, {"callback.environment.allow", nil}, {"callback.environment.allow", []string{}},
		{"callback.environment.allow", []string{"A", "A"}}, {"callback.environment.allow", []any{1}},
		{"callback.timeoutMs", 0}, {"callback.timeoutMs", 1}, {"callback.timeoutMs", 30001}, {"callback.timeoutMs", 1.5}, {"callback.timeoutMs", "1"},
		{"callback.timeoutMs", json.RawMessage("8e3")}, {"callback.timeoutMs", json.RawMessage("8000.0")}, {"callback.timeoutMs", nil},
		{"callback.maxOutputBytes", 1048576}, {"callback.maxOutputBytes", 1048577}, {"callback.maxOutputBytes", 0},
		{mapping, map[string]string{}}, {mapping, map[string]string{"a b": "accepted"}}, {mapping, map[string]string{"a": "x", "b": "accepted"}},
		{mapping, map[string]string{strings.Repeat("k", 64): "accepted"}}, {mapping, map[string]string{strings.Repeat("k", 65): "accepted"}},
		{mapping, 1}, {disp, gone{}}, {disp + ".extra", 1},
		{pointer, "/"}, {pointer, "/a~0~1"}, {pointer, "/a~"}, {pointer, "/~2"}, {pointer, "a"}, {pointer, ""}, {pointer, 1},
		{pointer, strings.Repeat("/a", 16)}, {pointer, strings.Repeat("/a", 17)}, {pointer, "/a "}, {pointer, "/a\u3000"}, {pointer, "/a\u0085"},
		{pointer, "/a\n"}, {pointer, "/a\x7fb"}, {pointer, "/" + strings.Repeat("é", 255)}, {pointer, "/" + strings.Repeat("é", 256)},
		{"callback.acknowledgement.acceptanceId", "/a"}, {"callback.acknowledgement.acceptanceId.extra", 1},
		{"callback.acknowledgement.acknowledgedDeliveryId", gone{}}, {"callback.acknowledgement.extra", 1},
	}
	for _, a := range []string{
		"", "a&b", "a&", "&", "&&", "a&&b", "&${envelope.message_id}&", "& &", "${envelope.body}", "x${envelope.body}", "${x}", "${}", "$", "$(x)", "${",
		"${a${envelope.message_id}}", "a;b", "a|b", "<", ">", "`", "a\nb", "a\rb", "a\x00b", "a\tb", "{}", "$${envelope.message_id}{x}",
		"${envelope.idempotency_key}${envelope.idempotency_key}", "\u2028", "}", "a}b{",
	} {
		corpus = append(corpus, set{args, needed(a)})
	}
	for _, v := range []string{
		"ENV", "BASH_ENV", "LD_AUDIT", "RUBYOPT", "DYLD_", "DYLD_X", "AKK_HOST_PROFILE_", "AKK_HOST_PROFILE", "DRAWBRIDGE_A", "DRAWBRIDGE", "A", "_9", "9",
		"a", "", "A\n", strings.Repeat("A", 128), strings.Repeat("A", 129),
	} {
		corpus = append(corpus, set{"controllerContext.sessionIdVariable", v}, set{"callback.environment.allow", []string{v}})
	}
	if len(corpus) < 60 {
		t.Fatalf("the corpus has %d documents", len(corpus))
	}
	var yes, no int
	for _, changes := range corpus {
		doc := edit(t, changes...)
		_, err := profile.Parse(doc)
		verr := schema.Validate(instance(t, doc))
		if (err == nil) != (verr == nil) {
			t.Errorf("%v: parser says %v, schema says %v", changes, err, verr)
		}
		if err == nil {
			yes++
		} else {
			no++
		}
	}
	t.Logf("%d documents: %d accepted, %d refused", len(corpus), yes, no)
}

// The rules that a JSON Schema cannot say, or not well: accepted by the schema,
// refused by the parser.
func TestSchema_ParserOnlyRules(t *testing.T) {
	schema := compile(t)
	sum := []string{"${controller.session_id}", "${envelope.delivery_id}", "${envelope.message_id}"}
	for range 4 {
		sum = append(sum, strings.Repeat("a", 4096))
	}
	for name, changes := range map[string][]any{
		"no accepted":            {"callback.acknowledgement.disposition.mapping", map[string]string{"a": "uncertain"}},
		"equal echo pointers":    {"callback.acknowledgement.acknowledgedMessageId.jsonPointer", "/request/delivery_id"},
		"sum of arguments":       {"callback.arguments", sum},
		"reserved id":            {"id", "builtin-x"},
		"normalised path":        {"callback.executable", "/a/../b"},
		"version beyond 63 bits": {"compatibility.range", ">=9223372036854775808.0.0"},
	} {
		doc := edit(t, changes...)
		if err := schema.Validate(instance(t, doc)); err != nil {
			t.Errorf("%s: the schema refuses it: %v", name, err)
		}
		if _, err := profile.Parse(doc); err == nil {
			t.Errorf("%s: the parser accepts it", name)
		}
	}
}

func TestSchema_Identity(t *testing.T) {
	var head struct {
		Schema string `json:"$schema"`
		ID     string `json:"$id"`
	}
	if err := json.Unmarshal(profile.PublishedSchema(), &head); err != nil {
		t.Fatal(err)
	}
	if head.ID != profile.SchemaURL || head.Schema != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("got %+v", head)
	}
}

// Every error carries a registered class.
func TestClasses_Registered(t *testing.T) {
	for _, c := range []fault.Code{
		fault.ProfilePathInvalid, fault.ProfileUnreadable, fault.ProfileTooLarge, fault.ProfileEncoding, fault.ProfileJSON, fault.ProfileSchema,
		fault.ProfileVersion, fault.ProfileUnknownField, fault.ProfileMissingField, fault.ProfileValue, fault.ProfileReservedID, fault.ProfileRange,
		fault.ProfileVariableUnsafe, fault.ProfileExecutableUnsafe, fault.ProfileTemplate, fault.ProfileAcknowledgement, fault.HostInputInvalid,
		fault.HostIncompatible, fault.ControllerSession, fault.CallbackExecutable, fault.ScopeNotStandalone, fault.RelayIncomplete, fault.ProfileChanged,
	} {
		if !fault.Known(c) {
			t.Errorf("%s is not registered", c)
		}
	}
	err := fmt.Errorf("start: %w", &profile.ProfileError{Class: fault.CallbackExecutable, Path: "callback.executable", Detail: "does not exist"})
	if got := fault.ExitCode(err); got != 69 {
		t.Errorf("exit code: got %d, want 69", got)
	}
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	if err := c.AddResource(profile.SchemaURL, instance(t, profile.PublishedSchema())); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(profile.SchemaURL)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func instance(t *testing.T, doc []byte) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

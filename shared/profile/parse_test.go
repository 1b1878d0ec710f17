package profile_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
)

// Proves host-profile 15.1: the same model, the same fingerprint.
func TestParse_Starter(t *testing.T) {
	var compact bytes.Buffer
	if err := json.Compact(&compact, profile.Starter()); err != nil {
		t.Fatal(err)
	}
	for name, doc := range map[string][]byte{
		"as shipped":          profile.Starter(),
		"without $schema":     edit(t, "$schema", gone{}),
		"members re-ordered":  edit(t), // encoding/json sorts them
		"re-indented":         compact.Bytes(),
		"byte order mark":     append([]byte("\xEF\xBB\xBF"), profile.Starter()...),
		"integers as 8e3":     bytes.Replace(profile.Starter(), []byte("8000"), []byte("8e3"), 1),
		"integers as 65536.0": bytes.Replace(profile.Starter(), []byte("65536"), []byte("65536.0"), 1),
	} {
		t.Run(name, func(t *testing.T) {
			if got := mustParse(t, doc).Fingerprint(); got != starterFingerprint {
				t.Errorf("got %s, want %s", got, starterFingerprint)
			}
		})
	}
}

// Proves host-profile 15.2.
func TestParse_ScopeChangesTheFingerprintOnly(t *testing.T) {
	p := mustParse(t, edit(t, "controllerContext.scope", "startup_v1"))
	if got, want := p.Fingerprint(), "sha256:182ec55d16285d5e843c73f749b6cd531901aaf4417fa195e51f1832eb6ca9c7"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := p.Scope(), mustParse(t, profile.Starter()).Scope(); got != want || got != profile.ScopeStartup {
		t.Errorf("scope: got %s, want %s", got, want)
	}
}

// Proves host-profile 15.3: raw characters, no escapes of HTML or of line
// separators. The wanted digest is of the canonical text written by hand.
func TestParse_FingerprintOverRawCharacters(t *testing.T) {
	doc := edit(t, "callback.arguments", []string{"--s=${controller.session_id}", "${envelope.delivery_id}", "${envelope.message_id}", "é & \u2028 done"},
		"callback.acknowledgement.acceptanceId.jsonPointer", "/<&\u2028é")
	got := mustParse(t, doc).Fingerprint()
	const want = "sha256:d2ba34608ca1f6a858e6747000c3535fc5cc288e08572d699435a0c64c6b7da4"
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if mustParse(t, profile.Starter()).Fingerprint() == "sha256:15fe837ba6c0235e36a332adc791f753f9c800e10a7d14821d6756691da8a0f6" {
		t.Error("the starter's fingerprint is that of an HTML-escaping encoder")
	}
}

// Proves host-profile 15.4.
func TestParse_UnknownMemberInEachObject(t *testing.T) {
	for _, object := range []string{
		"$", "compatibility", "controllerContext", "callback", "callback.environment", "callback.acknowledgement",
		"callback.acknowledgement.disposition", "callback.acknowledgement.acceptanceId",
		"callback.acknowledgement.acknowledgedDeliveryId", "callback.acknowledgement.acknowledgedMessageId",
	} {
		t.Run(object, func(t *testing.T) {
			path := strings.TrimPrefix(object+".extra", "$.")
			_, err := profile.Parse(edit(t, path, 1))
			refused(t, err, fault.ProfileUnknownField, object)
			if !strings.Contains(err.Error(), `"extra"`) {
				t.Errorf("the error does not name the member: %v", err)
			}
		})
	}
	t.Run("names are sorted", func(t *testing.T) {
		_, err := profile.Parse(edit(t, "zz", 1, "aa", 2))
		if !strings.Contains(err.Error(), `"aa", "zz"`) {
			t.Errorf("got %v", err)
		}
	})
}

// Proves host-profile 15.5.
func TestParse_NamesMatchByteForByte(t *testing.T) {
	_, err := profile.Parse(edit(t, "id", gone{}, "ID", "my-agent-command"))
	refused(t, err, fault.ProfileUnknownField, "$")
	_, err = profile.Parse(edit(t, "id", gone{}))
	refused(t, err, fault.ProfileMissingField, "id")
}

// Proves host-profile 15.6.
func TestParse_JSONTraps(t *testing.T) {
	starter := string(profile.Starter())
	deep := strings.Replace(starter, `"my-agent-command"`, strings.Repeat("[", 32)+strings.Repeat("]", 32), 1)
	for _, c := range []struct {
		name, doc string
		class     fault.Code
	}{
		{"duplicate member", strings.Replace(starter, `"version": 1`, `"version": 1, "version": 1`, 1), fault.ProfileJSON},
		{"duplicate member below", strings.Replace(starter, `"timeoutMs": 8000`, `"timeoutMs": 8000, "timeoutMs": 8000`, 1), fault.ProfileJSON},
		{"duplicate by escape", strings.Replace(starter, `"version": 1`, `"version": 1, "v\u0065rsion": 1`, 1), fault.ProfileJSON},
		{"trailing document", starter + "{}", fault.ProfileJSON},
		{"trailing byte", starter + "x", fault.ProfileJSON},
		{"invalid UTF-8", strings.Replace(starter, "my-agent-command", "my-\xff", 1), fault.ProfileEncoding},
		{"lone high surrogate", strings.Replace(starter, "my-agent-command", `\ud800`, 1), fault.ProfileEncoding},
		{"lone low surrogate", strings.Replace(starter, "my-agent-command", `\udc00x`, 1), fault.ProfileEncoding},
		{"33 deep", deep, fault.ProfileJSON},
		{"empty", "", fault.ProfileJSON},
		{"truncated", starter[:len(starter)/2], fault.ProfileJSON},
		{"second byte order mark", "\xEF\xBB\xBF\xEF\xBB\xBF" + starter, fault.ProfileJSON},
		{"comment", "// x\n" + starter, fault.ProfileJSON},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := profile.Parse([]byte(c.doc))
			refused(t, err, c.class, "$")
		})
	}
	t.Run("a pair of surrogates is one character", func(t *testing.T) {
		doc := strings.Replace(starter, `"--json"`, `"\ud83d\ude00"`, 1)
		mustParse(t, []byte(doc))
	})
	t.Run("32 deep is no syntax error", func(t *testing.T) {
		doc := strings.Replace(starter, `"my-agent-command"`, strings.Repeat("[", 31)+strings.Repeat("]", 31), 1)
		_, err := profile.Parse([]byte(doc))
		refused(t, err, fault.ProfileValue, "id")
	})
}

// Each rule of the document, with the class and place of its violation.
// Proves host-profile 15.9, host-profile 15.13, host-profile 15.14,
// host-profile 15.15, host-profile 15.19, host-profile 15.20, host-profile 15.21,
// host-profile 15.22, host-profile 15.23, host-profile 15.24.
func TestParse_Rules(t *testing.T) {
	const (
		ack     = "callback.acknowledgement"
		disp    = ack + ".disposition"
		pointer = disp + ".jsonPointer"
		mapping = disp + ".mapping"
	)
	needed := []string{"${controller.session_id}", "${envelope.delivery_id}", "${envelope.message_id}"}
	args := func(extra ...string) []string { return append(slices.Clone(needed), extra...) }
	// The three placeholders have 24+23+22 characters.
	const placeholders = 24 + 23 + 22
	fill := func(sum int) []string {
		out, left := args(), sum-placeholders
		for left > 0 {
			n := min(left, 4096)
			out, left = append(out, strings.Repeat("a", n)), left-n
		}
		return out
	}
	names := func(n int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = fmt.Sprintf("NAME_%d", i)
		}
		return out
	}
	entries := func(n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[fmt.Sprintf("k%d", i)] = "accepted"
		}
		return out
	}
	const ok = fault.Code("")
	type row struct {
		name    string
		changes []any
		class   fault.Code
		path    string
	}
	set := func(path string, v any) []any { return []any{path, v} }
	rows := []row{
		{"$schema other", set("$schema", "https://example.org/x.json"), fault.ProfileSchema, "$schema"},
		{"$schema null", set("$schema", nil), fault.ProfileSchema, "$schema"},
		{"schema other", set("schema", "agent-knock-knock/host-profiles"), fault.ProfileSchema, "schema"},
		{"schema absent", set("schema", gone{}), fault.ProfileMissingField, "schema"},
		{"version 2", set("version", 2), fault.ProfileVersion, "version"},
		{"version text", set("version", "1"), fault.ProfileVersion, "version"},
		{"version 1.5", set("version", 1.5), fault.ProfileVersion, "version"},
		{"version 1.0", set("version", json.RawMessage("1.0")), ok, ""},
		{"version 10e-1", set("version", json.RawMessage("10e-1")), ok, ""},
		{"version null", set("version", nil), fault.ProfileVersion, "version"},
		{"version true", set("version", true), fault.ProfileVersion, "version"},

		{"id upper case", set("id", "My"), fault.ProfileValue, "id"},
		{"id with dots", set("id", "a.b-c_d9"), ok, ""},
		{"id double dot", set("id", "a..b"), fault.ProfileValue, "id"},
		{"id digit first", set("id", "9a"), fault.ProfileValue, "id"},
		{"id 64", set("id", strings.Repeat("a", 64)), ok, ""},
		{"id 65", set("id", strings.Repeat("a", 65)), fault.ProfileValue, "id"},
		{"id newline at end", set("id", "a\n"), fault.ProfileValue, "id"},
		{"id number", set("id", 5), fault.ProfileValue, "id"},
		{"id reserved", set("id", "builtin-x"), fault.ProfileReservedID, "id"},
		{"id builtin alone", set("id", "builtin"), ok, ""},
		{"revision 128", set("revision", strings.Repeat("r", 128)), ok, ""},
		{"revision 129", set("revision", strings.Repeat("r", 129)), fault.ProfileValue, "revision"},
		{"revision dot first", set("revision", ".1"), fault.ProfileValue, "revision"},
		{"revision slash", set("revision", "1/2"), fault.ProfileValue, "revision"},

		{"compatibility array", set("compatibility", []int{}), fault.ProfileValue, "compatibility"},
		{"compatibility absent", set("compatibility", gone{}), fault.ProfileMissingField, "compatibility"},
		{"host bad", set("compatibility.host", "a b"), fault.ProfileValue, "compatibility.host"},
		{"range five", set("compatibility.range", ">1.0.0 >1.0.0 >1.0.0 >1.0.0 >1.0.0"), fault.ProfileRange, "compatibility.range"},
		{"range number", set("compatibility.range", 1), fault.ProfileValue, "compatibility.range"},
		{"range padded", set("compatibility.range", " >=1.0.0"), fault.ProfileValue, "compatibility.range"},

		{"context driver", set("controllerContext.driver", "environment_v2"), fault.ProfileValue, "controllerContext.driver"},
		{"variable absent", set("controllerContext.sessionIdVariable", gone{}), fault.ProfileMissingField, "controllerContext.sessionIdVariable"},
		{"variable number", set("controllerContext.sessionIdVariable", 1), fault.ProfileValue, "controllerContext.sessionIdVariable"},
		{"scope route bound", set("controllerContext.scope", "route_bound_v1"), ok, ""},
		{"scope other", set("controllerContext.scope", "x"), fault.ProfileValue, "controllerContext.scope"},
		{"scope null", set("controllerContext.scope", nil), fault.ProfileValue, "controllerContext.scope"},

		{"callback driver", set("callback.driver", "command_json_v2"), fault.ProfileValue, "callback.driver"},
		{"executable empty", set("callback.executable", ""), fault.ProfileValue, "callback.executable"},
		{"executable too long", set("callback.executable", "/"+strings.Repeat("a", 4096)), fault.ProfileValue, "callback.executable"},
		{"executable longest", set("callback.executable", "/"+strings.Repeat("a", 4095)), ok, ""},
		{"executable padded", set("callback.executable", "/bin/x "), fault.ProfileValue, "callback.executable"},
		{"stdin other", set("callback.stdin", "${envelope.body}\n"), fault.ProfileTemplate, "callback.stdin"},
		{"stdin absent", set("callback.stdin", gone{}), fault.ProfileMissingField, "callback.stdin"},

		{"arguments text", set("callback.arguments", "x"), fault.ProfileValue, "callback.arguments"},
		{"arguments of numbers", set("callback.arguments", []any{1}), fault.ProfileValue, "callback.arguments[0]"},
		{"arguments none", set("callback.arguments", []string{}), fault.ProfileValue, "callback.arguments"},
		{"arguments 64", set("callback.arguments", args(repeat(61, "")...)), ok, ""},
		{"arguments 65", set("callback.arguments", args(repeat(62, "")...)), fault.ProfileValue, "callback.arguments"},
		{"argument 4096", set("callback.arguments", args(strings.Repeat("é", 4096))), ok, ""},
		{"argument 4097", set("callback.arguments", args(strings.Repeat("a", 4097))), fault.ProfileValue, "callback.arguments[3]"},
		{"sum 16384", set("callback.arguments", fill(16384)), ok, ""},
		{"sum 16385", set("callback.arguments", fill(16385)), fault.ProfileValue, "callback.arguments"},

		{"allow none", set("callback.environment.allow", []string{}), ok, ""},
		{"allow 32", set("callback.environment.allow", names(32)), ok, ""},
		{"allow 33", set("callback.environment.allow", names(33)), fault.ProfileValue, "callback.environment.allow"},
		{"allow twice", set("callback.environment.allow", []string{"A", "B", "A"}), fault.ProfileVariableUnsafe, "callback.environment.allow[2]"},
		{"allow of numbers", set("callback.environment.allow", []any{1}), fault.ProfileValue, "callback.environment.allow[0]"},
		{"environment text", set("callback.environment", "x"), fault.ProfileValue, "callback.environment"},

		{"timeout 1", set("callback.timeoutMs", 1), ok, ""},
		{"timeout 30000", set("callback.timeoutMs", 30000), ok, ""},
		{"timeout 0", set("callback.timeoutMs", 0), fault.ProfileValue, "callback.timeoutMs"},
		{"timeout 30001", set("callback.timeoutMs", 30001), fault.ProfileValue, "callback.timeoutMs"},
		{"timeout 1.5", set("callback.timeoutMs", 1.5), fault.ProfileValue, "callback.timeoutMs"},
		{"timeout text", set("callback.timeoutMs", "8000"), fault.ProfileValue, "callback.timeoutMs"},
		{"timeout null", set("callback.timeoutMs", nil), fault.ProfileValue, "callback.timeoutMs"},
		{"timeout true", set("callback.timeoutMs", true), fault.ProfileValue, "callback.timeoutMs"},
		{"timeout negative", set("callback.timeoutMs", -1), fault.ProfileValue, "callback.timeoutMs"},
		{"timeout huge exponent", set("callback.timeoutMs", json.RawMessage("1e999999999")), fault.ProfileValue, "callback.timeoutMs"},
		{"output 1", set("callback.maxOutputBytes", 1), ok, ""},
		{"output 1048576", set("callback.maxOutputBytes", 1048576), ok, ""},
		{"output 0", set("callback.maxOutputBytes", 0), fault.ProfileValue, "callback.maxOutputBytes"},
		{"output 1048577", set("callback.maxOutputBytes", 1048577), fault.ProfileValue, "callback.maxOutputBytes"},

		{"mapping without accepted", set(mapping, map[string]string{"a": "uncertain"}), fault.ProfileAcknowledgement, mapping},
		{"mapping empty", set(mapping, map[string]string{}), fault.ProfileAcknowledgement, mapping},
		{"mapping 16", set(mapping, entries(16)), ok, ""},
		{"mapping 17", set(mapping, entries(17)), fault.ProfileAcknowledgement, mapping},
		{"mapping bad key", set(mapping, map[string]string{"a b": "accepted"}), fault.ProfileAcknowledgement, mapping},
		{"mapping empty key", set(mapping, map[string]string{"": "accepted"}), fault.ProfileAcknowledgement, mapping},
		{"mapping key of 65", set(mapping, map[string]string{strings.Repeat("k", 65): "accepted"}), fault.ProfileAcknowledgement, mapping},
		{"mapping bad value", set(mapping, map[string]string{"a": "accepted", "b": "ok"}), fault.ProfileAcknowledgement, mapping},
		{"mapping array", set(mapping, []string{}), fault.ProfileAcknowledgement, mapping},

		{"pointer ~2", set(pointer, "/a~2"), fault.ProfileAcknowledgement, pointer},
		{"pointer ~ at end", set(pointer, "/a~"), fault.ProfileAcknowledgement, pointer},
		{"pointer no slash", set(pointer, "a"), fault.ProfileAcknowledgement, pointer},
		{"pointer empty", set(pointer, ""), fault.ProfileAcknowledgement, pointer},
		{"pointer 16 tokens", set(pointer, strings.Repeat("/a", 16)), ok, ""},
		{"pointer 17 tokens", set(pointer, strings.Repeat("/a", 17)), fault.ProfileAcknowledgement, pointer},
		{"pointer 256", set(pointer, "/"+strings.Repeat("é", 255)), ok, ""},
		{"pointer 257", set(pointer, "/"+strings.Repeat("a", 256)), fault.ProfileAcknowledgement, pointer},
		{"pointer number", set(pointer, 1), fault.ProfileAcknowledgement, pointer},
		{"pointer root member", set(pointer, "/"), ok, ""},
		{"equal echo pointers", set(ack+".acknowledgedMessageId.jsonPointer", "/request/delivery_id"), fault.ProfileAcknowledgement, ack},
		{"echo pointer equal to another", set(ack+".acknowledgedMessageId.jsonPointer", "/result/acceptance_id"), ok, ""},
		{"place text", set(ack+".acceptanceId", "/a"), fault.ProfileValue, ack + ".acceptanceId"},
	}
	for _, leave := range needed {
		var rest []string
		for _, a := range needed {
			if a != leave {
				rest = append(rest, a)
			}
		}
		rows = append(rows, row{"without " + leave, set("callback.arguments", rest), fault.ProfileTemplate, "callback.arguments"})
	}
	for name, arg := range map[string]string{
		"unknown placeholder": "${envelope.other}", "empty placeholder": "${}", "environment": "$HOME",
		"command substitution": "$(x)", "semicolon": "a;b", "pipe": "a|b", "newline": "a\nb", "carriage return": "a\rb",
		"back-tick": "`x`", "and": "a&&b", "and across a placeholder": "&${envelope.message_id}&", "less": "<x", "greater": ">x",
		"body": "${envelope.body}", "body embedded": "--b=${envelope.body}", "open": "${", "nested": "${a${envelope.message_id}}",
		"lone dollar": "5$", "NUL": "a\x00b", "placeholder by removal": "$${envelope.message_id}{HOME}",
	} {
		rows = append(rows, row{"argument " + name, set("callback.arguments", args(arg)), fault.ProfileTemplate, "callback.arguments[3]"})
	}
	for name, arg := range map[string]string{
		"empty": "", "single ampersand": "a&b", "two apart": "a& &b", "trailing ampersand": "a&", "embedded": "--m=${envelope.message_id}:x",
		"idempotency": "${envelope.idempotency_key}", "quotes": `"'\`, "braces": "{a}", "tab": "a\tb", "unicode": "é\u2028",
	} {
		rows = append(rows, row{"argument " + name, set("callback.arguments", args(arg)), ok, ""})
	}
	for _, name := range []string{
		"BASH_ENV", "ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "NODE_OPTIONS", "NODE_PATH", "SHELLOPTS", "LD_AUDIT", "PERL5OPT",
		"PYTHONSTARTUP", "RUBYOPT", "DYLD_X", "AKK_HOST_PROFILE_SELECTION", "AKK_HOST_PROFILE_FUTURE", "DRAWBRIDGE_X",
		"lower", "9A", "", "A-B", "A B", strings.Repeat("A", 129),
	} {
		rows = append(rows,
			row{"session variable " + name, set("controllerContext.sessionIdVariable", name), fault.ProfileVariableUnsafe, "controllerContext.sessionIdVariable"},
			row{"allowed variable " + name, set("callback.environment.allow", []string{name}), fault.ProfileVariableUnsafe, "callback.environment.allow[0]"})
	}
	for _, name := range []string{"_", "A", "PATH", "LD_X", "AKK_HOST_PROFILE", strings.Repeat("A", 128)} {
		rows = append(rows,
			row{"session variable " + name, set("controllerContext.sessionIdVariable", name), ok, ""},
			row{"allowed variable " + name, set("callback.environment.allow", []string{name}), ok, ""})
	}
	executables := []string{"bin/x", "./x", "/a/../b", "/a/./b", "/a//b", "/a/", "/", "/a\nb", "/a\x7f", "/a/${x}"}
	for _, shell := range []string{"bash", "cmd", "cmd.exe", "csh", "dash", "env", "fish", "ksh", "powershell", "powershell.exe", "pwsh", "sh", "tcsh", "zsh"} {
		executables = append(executables, "/usr/bin/"+shell, "/x/"+strings.ToUpper(shell), "/"+strings.ToUpper(shell[:1])+shell[1:])
	}
	for _, name := range executables {
		rows = append(rows, row{"executable " + name, set("callback.executable", name), fault.ProfileExecutableUnsafe, "callback.executable"})
	}
	for _, name := range []string{"/x", "/bin/bash2", "/sh/x", "/opt/my agent/run", "/..x", "/a/$x"} {
		rows = append(rows, row{"executable " + name, set("callback.executable", name), ok, ""})
	}
	for _, c := range rows {
		t.Run(c.name, func(t *testing.T) {
			_, err := profile.Parse(edit(t, c.changes...))
			if c.class == ok {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			refused(t, err, c.class, c.path)
		})
	}
}

// The first error is stable: the order of host-profile §2.
func TestParse_OrderOfChecks(t *testing.T) {
	broken := []any{
		"extra", 1, "$schema", "x", "schema", "x", "version", 2, "id", "X", "revision", "", "compatibility.host", "X",
		"compatibility.range", "x", "controllerContext.driver", "x", "controllerContext.sessionIdVariable", "x",
		"controllerContext.scope", "x", "callback.driver", "x", "callback.executable", "x", "callback.arguments", []string{},
		"callback.stdin", "x", "callback.environment.allow", []string{"x"}, "callback.timeoutMs", 0, "callback.maxOutputBytes", 0,
		"callback.acknowledgement.disposition.jsonPointer", "x",
		"callback.acknowledgement.disposition.mapping", map[string]string{},
		"callback.acknowledgement.acceptanceId.jsonPointer", "x",
		"callback.acknowledgement.acknowledgedDeliveryId.jsonPointer", "x",
		"callback.acknowledgement.acknowledgedMessageId.jsonPointer", "x",
	}
	for i := 0; i < len(broken); i += 2 {
		_, err := profile.Parse(edit(t, broken[i:]...))
		pe, ok := err.(*profile.ProfileError)
		if !ok {
			t.Fatalf("%s: got %v", broken[i], err)
		}
		want := broken[i].(string)
		if want == "extra" {
			want = "$"
		}
		if !strings.HasPrefix(pe.Path, want) {
			t.Errorf("first error at %s, want %s", pe.Path, want)
		}
	}
}

func TestParse_ErrorsDoNotRepeatArguments(t *testing.T) {
	const canary = "CANARY-7f3a"
	for _, arg := range []string{"${" + canary + "}", "$" + canary, canary + ";", canary + "\x00"} {
		_, err := profile.Parse(edit(t, "callback.arguments", []string{arg}))
		if err == nil || strings.Contains(err.Error(), canary) {
			t.Errorf("%q: got %v", arg, err)
		}
	}
}

// What accessors return does not reach into the Profile.
func TestProfile_Immutable(t *testing.T) {
	p := mustParse(t, profile.Starter())
	p.Allow()[0] = "X"
	p.Acknowledgement().Mapping["accepted"] = profile.Uncertain
	profile.Starter()[0] = 'x'
	if got := p.Allow()[0]; got != "MY_AGENT_TOKEN" {
		t.Errorf("allow: got %s", got)
	}
	if got := p.Acknowledgement().Mapping["accepted"]; got != profile.Accepted {
		t.Errorf("mapping: got %s", got)
	}
	if profile.Starter()[0] != '{' {
		t.Error("starter changed")
	}
}

func TestArguments(t *testing.T) {
	p := mustParse(t, edit(t, "callback.arguments", []string{
		"--s=${controller.session_id}", "${envelope.delivery_id}${envelope.delivery_id}", "${envelope.message_id}", "", "a&b", "k=${envelope.idempotency_key}",
	}))
	got, err := p.Arguments(profile.Values{SessionID: "$(x) ${y", DeliveryID: "d", MessageID: "m", IdempotencyKey: "i"})
	if err == nil {
		t.Errorf("a value that opens an interpolation was rendered: %q", got)
	}
	got, err = p.Arguments(profile.Values{SessionID: "$(x) $HOME `y`", DeliveryID: "d", MessageID: "m", IdempotencyKey: "i"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"--s=$(x) $HOME `y`", "dd", "m", "", "a&b", "k=i"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := p.Arguments(profile.Values{SessionID: "a\x00", DeliveryID: "d", MessageID: "m"}); err == nil {
		t.Error("NUL was rendered")
	}
}

package redact_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/shared/redact"
	"drawbridge/shared/testkit"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// Made-up values; the prefixes are joined at run time so that scanners of
// repositories do not take them for real.
var (
	skKey   = "sk-" + "abcdEFGH0123456789_-zz"
	ghKey   = "gh" + "p_0123456789abcdefghijABCDEFGHIJ012345"
	awsKey  = "AKIA" + "ABCDEFGHIJKLMNOP"
	npmKey  = "npm" + "_0123456789abcdefghijklmnopqrstuvwxyz"
	jwt     = "eyJ" + "hbGciOiJIUzI1NiJ9." + "eyJ" + "zdWIiOiIxMjM0In0.c2lnbmF0dXJlLXBhcnQ"
	pemKey  = "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA75\nabc+/def==\n-----END RSA PRIVATE KEY-----"
	pemOpen = "-----BEGIN " + "OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nmore"
	plain   = "plainknownvalue1"
	known   = `Tr0ub4dor&3<"/x`
)

// cases are texts and what becomes of them; "" means unchanged.
var cases = []struct{ name, in, want string }{
	// Patterns.
	{"sk", "key " + skKey + " end", "key [redacted] end"},
	{"sk-ant", "x sk-" + "ant-api03-AAAAAAAAAAAAAAAA\n", "x [redacted]\n"},
	{"github", ghKey, "[redacted]"},
	{"github fine-grained", "github" + "_pat_11ABCDEFG0abcdefghijkl_xyz", "[redacted]"},
	{"gitlab", "(glpat" + "-abcdefghij0123456789)", "([redacted])"},
	{"slack", "xox" + "b-1234567890-abcdef,", "[redacted],"},
	{"aws", "id=" + awsKey + ";", "id=[redacted];"},
	{"aws, too long to be one", "AKIAABCDEFGHIJKLMNOPQ", ""},
	{"google", "AIza" + "SyA0123456789abcdefghijklmnopqrstuv", "[redacted]"},
	{"npm", "//registry/:_x " + npmKey, "//registry/:_x [redacted]"},
	{"hugging face", "hf" + "_abcdefghijklmnopqrstuvwxyzABCDEF", "[redacted]"},
	{"databricks", "dbt" + "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJ", "[redacted]"},
	{"jwt", "a " + jwt + " b", "a [redacted] b"},
	{"behind a newline escape", `"line\n` + skKey + `"`, `"line\n[redacted]"`},
	{"behind a double escape", `"line\\n` + skKey + `\\n"`, `"line\\n[redacted]\\n"`},
	{"behind a unicode escape", `\u0022` + skKey, `\u0022[redacted]`},
	{"behind a URL escape", "x%22" + skKey + "%22", "x%22[redacted]%22"},
	{"behind what is no escape", `100%dbt` + "_" + strings.Repeat("x", 43) + ` C:\` + npmKey + ` %bearer abcdefghijklmnop %22bearer abcdefghijklmnop`, `100%[redacted] C:\[redacted] %bearer [redacted] %22bearer [redacted]`},
	{"inside a word", "task-management-system-and-more", ""},
	{"behind an underscore", "my_" + skKey, "my_[redacted]"},
	{"bearer", "sent Bearer abcdefghijklmnop0123 ok", "sent Bearer [redacted] ok"},
	{"bearer in quotes", `auth: bearer "abcdefghijklmnop0123" x`, `auth: bearer "[redacted] x`},
	{"bearer with colon", "bearer:abcdefghijklmnop0123", "bearer:[redacted]"},
	{"bearer with equals", "bearer=abcdefghijklmnop0123", "bearer=[redacted]"},
	{"bearer with any separator", "Bearer \t: = abcdefghijklmnop0123 x", "Bearer \t: = [redacted] x"},
	{"bearer folded", "x: Bearer \r\n  abcdefghijklmnop0123 x\n abcdefghijklmnop0123", "x: Bearer \r\n  [redacted] x\n abcdefghijklmnop0123"},
	{"basic folded", "x:\tBasic\n\tdXNlcjpwYXNzd29yZA==\ny", "x:\tBasic\n\t[redacted]\ny"},
	{"basic, an indented list", "level: basic\n  internationalization: x\n", ""},
	{"bearer, next line", "the bearer\nabcdefghijklmnop0123\n", ""},
	{"bearer, short", "the bearer of this letter", ""},
	{"basic", "Basic dXNlcjpwYXNzd29yZA== x", "Basic [redacted] x"},
	{"basic, prose", "Basic internationalization. Basic Authentication-related", ""},

	// Headers.
	{"authorization", "Authorization: Digest username=x, nonce=\"y\"\nHost: h\n", "Authorization: [redacted]\nHost: h\n"},
	{"authorization in the middle", "curl -H 'Authorization: Bearer abc' https://x", "curl -H 'Authorization: [redacted]"},
	{"authorization folded", "Authorization:\n Bearer abc\n\tdef\nHost: h", "Authorization:\n [redacted]\n\t[redacted]\nHost: h"},
	{"cookie", "> Cookie: a=b; c=d\r\n> Accept: x\r\n", "> Cookie: [redacted]\r\n> Accept: x\r\n"},
	{"set-cookie", "set-cookie: sid=1; Path=/", "set-cookie: [redacted]"},
	{"x-api-key", "X-Api-Key: abc def\nX: y", "X-Api-Key: [redacted]\nX: y"},
	{"yaml", "  - password: hunter2\n    user: joe", "  - password: [redacted]\n    user: joe"},
	{"nothing behind the name", "password:\nnext", ""},
	{"name in the middle of a line", "login failed, token: abc123def, retry", "login failed, token: [redacted] retry"},
	{"name in the middle, prose", "got token: expired, try again", ""},

	// Settings, flags.
	{"setting", "PASSWORD=hunter2 next", "PASSWORD=[redacted] next"},
	{"setting with a prefix", "MY_APP_API_KEY=abc next", "MY_APP_API_KEY=[redacted] next"},
	{"setting in quotes", `DB_PASSWORD="a b c" next`, `DB_PASSWORD="[redacted]" next`},
	{"setting, half in quotes", `DB_PASSWORD="a b"cd next`, `DB_PASSWORD=[redacted] next`},
	{"setting with a quote inside", `token=abc"def next`, `token=[redacted] next`},
	{"setting with an escape inside", `token=abc\"def\n next`, `token=[redacted] next`},
	{"setting, quote not closed", "secret='a b c\nnext", "secret='[redacted]\nnext"},
	{"setting, escaped equals", "x?y=1&access_token%3Dabc&z=1", "x?y=1&access_token%3D[redacted]&z=1"},
	{"setting without a value", "token= next", ""},
	{"other names", "tokens=3 secrets=4 monkey=5 key=6 author=7", ""},
	{"flag", "run --token abc --verbose", "run --token [redacted] --verbose"},
	{"flag with equals", "run --api-key=abc --verbose", "run --api-key=[redacted] --verbose"},
	{"flag in quotes", "run --password 'a b' -v", "run --password '[redacted]' -v"},
	{"flag auth", "run --auth abc", "run --auth [redacted]"},
	{"flag without a value", "run --token --verbose", ""},
	{"flag with a placeholder", "run --token {token} --x", ""},

	// JSON in a text.
	{"member", `log {"api_key": "abc\"def", "n": 1}`, `log {"api_key": "[redacted]", "n": 1}`},
	{"member, escaped", `"{\"token\":\"a\\\"b\",\"n\":1}"`, `"{\"token\":\"[redacted]\",\"n\":1}"`},
	{"member, twice escaped", `"{\\\"token\\\":\\\"abc\\\",\\\"n\\\":1}"`, `"{\\\"token\\\":\\\"[redacted]\\\",\\\"n\\\":1}"`},
	{"member of a dict", `{'Authorization': 'Bearer x', 'n': 1}`, `{'Authorization': '[redacted]', 'n': 1}`},
	{"member of a hash", `{"secret" => "x y", "n" => 1}`, `{"secret" => "[redacted]", "n" => 1}`},
	{"member, not a string", `{"token": 12, "password": null}`, ""},
	{"member ends in a backslash", `{"secret":"abc\\","n":"x"}`, `{"secret":"[redacted]","n":"x"}`},

	// URLs.
	{"user information", "git clone https://joe:pw@host/x.git", "git clone https://[redacted]@host/x.git"},
	{"token as user", "https://abcdef@host/x", "https://[redacted]@host/x"},
	{"user with a slash in the password", "postgres://u:p/w@h:5432/db x", "postgres://[redacted]@h:5432/db x"},
	{"git", "ssh://git@host/x", ""},
	{"port and at in the path", "http://host:8080/@scope/pkg?x=1", ""},
	{"query", "GET /x?a=1&access_token=abc&b=2 HTTP/1.1", "GET /x?a=1&access_token=[redacted]&b=2 HTTP/1.1"},
	{"fragment", "cb#id_token=abc", "cb#id_token=[redacted]"},
	{"signed, azure", "https://h/x?se=2020&sp=r&sv=1&sig=abc%3D#f", "https://h/x?[redacted]#f"},
	{"signed, aws", "https://h/x?a=1&X-Amz-Signature=abc&b=2 x", "https://h/x?[redacted] x"},
	{"amz without signature", "h/x?a=1&X-Amz-Security-Token=abc&b=2 x", "h/x?a=1&X-Amz-Security-Token=[redacted]&b=2 x"},
	{"signed, inside another query", "h/x?next=https://y/?sig=abc&b=1 x", "h/x?[redacted] x"},

	// PEM.
	{"pem", "a\n" + pemKey + "\nb\n", "a\n[redacted]\nb\n"},
	{"pem in one line", strings.ReplaceAll(`k="`+pemKey+`" x`, "\n", `\n`), `k="[redacted]" x`},
	{"pem unfinished", "a " + pemOpen, "a [redacted]"},
	{"pem behind another", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----" + pemKey + "\nb", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----[redacted]\nb"},
	{"certificate", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", ""},

	// Known values.
	{"known", "x " + known + " y", "x [redacted] y"},
	{"known, JSON", `x Tr0ub4dor&3<\"/x y`, "x [redacted] y"},
	{"known, JSON with HTML escapes", `x Tr0ub4dor\u00263\u003c\"/x y`, "x [redacted] y"},
	{"known, query", "x " + url.QueryEscape(known) + " y", "x [redacted] y"},
	{"known, path", "x " + url.PathEscape(known) + " y", "x [redacted] y"},
	{"known, path in lower case", "x Tr0ub4dor&3%3c%22%2fx y", "x [redacted] y"},
	{"known, base64", "x" + base64.StdEncoding.EncodeToString([]byte(known)) + " y", "x[redacted] y"},
	{"known, basic credential", "x " + base64.StdEncoding.EncodeToString([]byte("joe:"+known)) + " y", "x [redacted]== y"},
	{"known, hex", "x" + hex.EncodeToString([]byte(known)) + "y", "x[redacted]y"},
	{"known, HEX", "x" + strings.ToUpper(hex.EncodeToString([]byte(known))) + "y", "x[redacted]y"},
	{"known, twice and touching", known + known, "[redacted][redacted]"},
	{"known, then a token", plain + skKey + " y", "[redacted][redacted] y"},
	{"known, then a setting", plain + "token=abc y", "[redacted]token=[redacted] y"},
	{"known, then a credential", plain + "Bearer abcdefghijklmnop y", "[redacted]Bearer [redacted] y"},
	{"known, three times, then a token", plain + plain + "x" + plain + awsKey, "[redacted][redacted]x[redacted][redacted]"},
	{"known, its beginning only", known[:8], ""},

	// Paths.
	{"paths", "open /home/joe/.config/x: no /home/joe, /home/joey, /srv/home/joe /home/joe.", "open <home>/.config/x: no <home>, /home/joey, /srv/home/joe /home/joe."},
	{"longer path first", `"/home/joe/work/x"`, `"<work>/x"`},

	{"path in a URL", "file:///home/joe/x http://home/joe/x //home/joe/y srv//home/joe", "file://<home>/x http://home/joe/x /<home>/y srv//home/joe"},
	{"path behind a flag", "cc -I/home/joe/include -L/home/joe x-I/home/joe --I/home/joe", "cc -I<home>/include -L<home> x-I/home/joe --I/home/joe"},
	{"path, escaped", `?directory=%2Fhome%2Fjoe%2fwork x=%2fhome%2fjoe%2fwork%2fa {"a":"\/home\/joe\/b"} a%2Fhome%2Fjoe`,
		`?directory=<home>%2fwork x=<work>%2fa {"a":"<home>\/b"} a%2Fhome%2Fjoe`},
	{"paths in a list", "PATH=/home/joe/bin:/home/joe/work/bin:/bin (/home/joe) '/home/joe' @/home/joe", "PATH=<home>/bin:<work>/bin:/bin (<home>) '<home>' @<home>"},
	{"path behind a secret", plain + "/home/joe/x " + ghKey + "/home/joe/x", "[redacted]<home>/x [redacted]<home>/x"},
	{"path with a space", "cd /srv/my files/x; ls /srv/my file", "cd <files>/x; ls /srv/my file"},

	// Ordinary text.
	{"source", "func f(ctx context.Context, token Token) (err error) {\n\tif token.Kind == '{' { return p.next() } // token\n", ""},
	{"hash", "commit 3f786850e387550fdab836ed7e6dc881de23001b 550e8400-e29b-41d4-a716-446655440000", ""},
	{"prose", "The secret of the cookie is its token sweetness; a basic password policy, e.g. 'auth'.", ""},
	{"already", `Authorization: [redacted] {"token":"[redacted]"} x`, "Authorization: [redacted]"},
	{"binary", "\x00\xff\xfe token=\xff\xfe \x01", "\x00\xff\xfe token=[redacted] \x01"},
	{"empty", "", ""},
}

func sample(opts redact.Options) *redact.Redactor {
	opts.Paths = map[string]string{"/home/joe": "<home>", "/home/joe/work/": "<work>", "/srv/my files": "<files>"}
	r := redact.New(opts)
	r.Learn(known, "joe")
	r.Learn(plain)
	return r
}

// Proves station 17.D1, 17.D3, 17.D4 and 17.D6.
func TestText(t *testing.T) {
	r := sample(redact.Options{})
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			want := tc.want
			if want == "" {
				want = tc.in
			}
			got := r.Text(tc.in)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("Text (-want +got):\n%s", diff)
			}
			// Proves station 17.D5: redacting twice changes nothing.
			if again := r.Text(got); again != got {
				t.Errorf("second pass: %q, then %q", got, again)
			}
			if found := r.Finds([]byte(got)); found {
				t.Errorf("Finds sees something in %q", got)
			}
			if hidden := got != tc.in && strings.Contains(got, redact.Word); r.Finds([]byte(tc.in)) != hidden && tc.name != "already" {
				t.Errorf("Finds = %v for %q", !hidden, tc.in)
			}
		})
	}
}

// Proves station 17.D1: every name of a secret, however it is written, in text, JSON,
// JSON inside JSON, headers, settings, flags and URLs; the name stays.
func TestText_EveryName(t *testing.T) {
	r := redact.New(redact.Options{})
	const value = "hunter2x9"
	for _, words := range []string{
		"token", "secret", "password", "passwd", "api key", "auth key", "access key", "private key", "credential", "credentials", "authorization", "cookie",
		"set cookie", "signature", "session key", "client secret", "refresh token", "id token", "proxy authorization", "x amz security token",
	} {
		title := ""
		for word := range strings.FieldsSeq(words) {
			title += strings.ToUpper(word[:1]) + word[1:]
		}
		for _, name := range []string{
			strings.ReplaceAll(words, " ", ""), strings.ReplaceAll(words, " ", "_"), strings.ReplaceAll(words, " ", "-"), title,
			strings.ToUpper(strings.ReplaceAll(words, " ", "_")), "my_" + strings.ReplaceAll(words, " ", "_"),
		} {
			one, _ := json.Marshal(map[string]string{name: value})
			two, _ := json.Marshal(map[string]string{"body": string(one)})
			three, _ := json.Marshal(map[string]string{"body": string(two)})
			for _, text := range []string{
				string(one), string(two), string(three), name + ": " + value, name + "=" + value + " x", "run --" + name + " " + value + " x", "run --" + name + "=" + value,
				"https://h.test/x?a=1&" + name + "=" + value + "&b=2", "{'" + name + "': '" + value + "'}",
			} {
				if got := r.Text(text); strings.Contains(got, value) || !strings.Contains(got, name) {
					t.Errorf("Text(%q) = %q", text, got)
				}
				if json.Valid([]byte(text)) {
					got, err := r.JSON([]byte(text))
					if err != nil || strings.Contains(string(got), value) || !strings.Contains(string(got), name) || !json.Valid(got) {
						t.Errorf("JSON(%s) = %s, %v", text, got, err)
					}
				}
			}
		}
	}
}

// Proves station 17.D2: every input cut at every byte, into two pieces and into
// single bytes, gives the same as whole.
func TestStream_CutAnywhere(t *testing.T) {
	r := sample(redact.Options{})
	var all strings.Builder
	for _, tc := range cases {
		if !strings.HasPrefix(tc.name, "pem unfinished") {
			all.WriteString(tc.in + "\n")
		}
	}
	var texts []string
	for _, tc := range cases {
		texts = append(texts, tc.in, "before "+tc.in+" after", "one\n"+tc.in+"\ntwo")
	}
	if want, got := r.Text(all.String()), streamed(t, r, strings.Split(all.String(), "")...); got != want {
		t.Errorf("single bytes of all texts (-want +got):\n%s", cmp.Diff(want, got))
	}
	for _, text := range texts {
		want := r.Text(text)
		for cut := 0; cut <= len(text); cut++ {
			if got := streamed(t, r, text[:cut], text[cut:]); got != want {
				t.Fatalf("cut at %d of %q:\n got %q\nwant %q", cut, text, got, want)
			}
		}
		if got := streamed(t, r, strings.Split(text, "")...); got != want {
			t.Fatalf("single bytes of %q:\n got %q\nwant %q", text, got, want)
		}
	}
}

func streamed(t *testing.T, r *redact.Redactor, pieces ...string) string {
	t.Helper()
	return streamedFrom(t, r, redact.Mark{}, pieces...)
}

func streamedFrom(t *testing.T, r *redact.Redactor, m redact.Mark, pieces ...string) string {
	t.Helper()
	var out bytes.Buffer
	s := r.Resume(m, func(text []byte, _ redact.Mark) error { out.Write(text); return nil })
	for _, p := range pieces {
		if n, err := s.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatalf("Write = %d, %v", n, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestKnownOnly(t *testing.T) {
	r := redact.New(redact.Options{KnownOnly: true, Word: "[redacted-host-credential]"})
	r.Learn("abcabcabd-0123")
	text := "x abcabcabcabd-0123\n password=visible abcabcabd-0123abcabcabd-0123 abcabcab"
	want := "x abc[redacted-host-credential]\n password=visible [redacted-host-credential][redacted-host-credential] abcabcab"
	if got := r.Text(text); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for cut := 0; cut <= len(text); cut++ {
		if got := streamed(t, r, text[:cut], text[cut:]); got != want {
			t.Fatalf("cut at %d: %q", cut, got)
		}
	}
	if got := streamed(t, r, strings.Split(text, "")...); got != want {
		t.Errorf("single bytes: %q", got)
	}
	// All that is decided is passed on at once.
	var out bytes.Buffer
	s := r.Stream(&out)
	for text, want := range map[string]string{"hello abcab": "hello "} {
		if _, err := s.Write([]byte(text)); err != nil || out.String() != want {
			t.Errorf("after %q: %q, %v", text, out.String(), err)
		}
	}
	if err := s.Close(); err != nil || out.String() != "hello abcab" {
		t.Errorf("after the end: %q, %v", out.String(), err)
	}
}

func TestLearn(t *testing.T) {
	r := redact.New(redact.Options{})
	if r.Learn("1234567") || r.Learn("") || r.Learn("a\nb\nc") {
		t.Error("a short value was taken")
	}
	const pem = "first-line-of-it\nsecond-line-of-it\n"
	if !r.Learn(pem) || !r.Learn("unique-value") {
		t.Error("a value was not taken")
	}
	if got := r.Text("a second-line-of-it b\nunique-value first-line-of-it"); got != "a [redacted] b\n[redacted] [redacted]" {
		t.Errorf("got %q", got)
	}
	quoted, _ := json.Marshal(pem)
	if got := r.Text(string(quoted)); strings.Contains(got, "line-of-it") {
		t.Errorf("got %q", got)
	}
	r.Forget(pem)
	if got := r.Text("second-line-of-it unique-value"); got != "second-line-of-it [redacted]" {
		t.Errorf("after Forget: %q", got)
	}
}

func TestJSON(t *testing.T) {
	r := sample(redact.Options{})
	inner := `{"token":"abc","n":1,"deep":"{\"password\":\"x\",\"a\":2}"}`
	nested, _ := json.Marshal(inner)
	for _, tc := range []struct{ name, in, want string }{
		{"members", ` { "a" : "b", "apiKey":"x", "n":1.50e3, "API-KEY" : "y" } `, ` { "a" : "b", "apiKey":"[redacted]", "n":1.50e3, "API-KEY" : "[redacted]" } `},
		{"every name", `{"access_token":"1","client_secret":"2","Set-Cookie":"3","x_authorization":"4","session.key":"5","signature":"6"}`,
			`{"access_token":"[redacted]","client_secret":"[redacted]","Set-Cookie":"[redacted]","x_authorization":"[redacted]","session.key":"[redacted]","signature":"[redacted]"}`},
		{"everything below", `{"credentials":{"user":"u","list":["a",{"b":"c"}],"n":1},"after":"x"}`, `{"credentials":{"user":"[redacted]","list":["[redacted]",{"b":"[redacted]"}],"n":1},"after":"x"}`},
		{"array", `{"cookie":["a","b"],"x":["c"]}`, `{"cookie":["[redacted]","[redacted]"],"x":["c"]}`},
		{"not strings", `{"token":12,"password":null,"secret":true,"x":"y"}`, `{"token":12,"password":null,"secret":true,"x":"y"}`},
		{"empty", `{"token":""}`, `{"token":""}`},
		{"value after a secret one", `{"token":"a","b":"c"}`, `{"token":"[redacted]","b":"c"}`},
		{"patterns in strings", `["x ` + skKey + `","Authorization: Basic a"]`, `["x [redacted]","Authorization: [redacted]"]`},
		{"token as a name", `{"` + skKey + `":"x"}`, `{"[redacted]":"x"}`},
		{"JSON in JSON in JSON", `{"body":` + string(nested) + `}`, `{"body":"{\"token\":\"[redacted]\",\"n\":1,\"deep\":\"{\\\"password\\\":\\\"[redacted]\\\",\\\"a\\\":2}\"}"}`},
		{"known, escaped", `{"x":"a Tr0ub4dor\u00263\u003c\"/x b"}`, `{"x":"a [redacted] b"}`},
		{"path", `{"cwd":"/home/joe/x"}`, `{"cwd":"<home>/x"}`},
		{"several documents", "{\"token\":\"a\"}\n{\"x\":\"b\"}\n", "{\"token\":\"[redacted]\"}\n{\"x\":\"b\"}\n"},
		{"top-level string", `"password=x"`, `"password=[redacted]"`},
		{"escapes stay", `{"a":"\u00e9\/\n"}`, `{"a":"\u00e9\/\n"}`},
		{"names twice", `{"token":"a","token":"b"}`, `{"token":"[redacted]","token":"[redacted]"}`},
		{"nothing", ``, ``},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := r.JSON([]byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
			again, err := r.JSON(got)
			if err != nil || !bytes.Equal(again, got) {
				t.Errorf("second pass: %s, %v", again, err)
			}
		})
	}
	for _, bad := range []string{`{"token":"abc`, `{token:1}`, `{"a":1,}`, `"\x"`} {
		if _, err := r.JSON([]byte(bad)); err == nil || strings.Contains(err.Error(), "abc") {
			t.Errorf("JSON(%s) = %v", bad, err)
		}
	}
}

// Proves station 17.D2, 17.D5 for texts that nobody thought of: cut in random places,
// killed and resumed at a random one.
func FuzzRedact(f *testing.F) {
	for i, tc := range cases {
		f.Add(tc.in, uint64(i))
		f.Add(tc.in+plain+tc.in, uint64(i)) // seams without white space
	}
	r := sample(redact.Options{})
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		want := r.Text(text)
		if strings.Contains(want, known) || strings.Contains(want, plain) {
			t.Fatalf("a known value is left in %q", want)
		}
		if found := redact.Tokens([]byte(want)); found != nil {
			t.Fatalf("%s is left in %q", found[0], want)
		}
		random := rand.New(rand.NewPCG(seed, 0))
		var pieces []string
		for rest := text; rest != ""; {
			n := min(len(rest), 1+random.IntN(1+random.IntN(20)))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := streamed(t, r, pieces...); got != want {
			t.Fatalf("cut into %q:\n got %q\nwant %q", pieces, got, want)
		}
		first, mark := half(t, r, redact.Mark{}, pieces[:random.IntN(len(pieces)+1)]...)
		if got := first + streamedFrom(t, r, mark, text[mark.Taken:]); got != want {
			t.Fatalf("%q resumed at %+v:\n got %q\nwant %q", text, mark, got, want)
		}
		if again := r.Text(want); again != want {
			t.Fatalf("%q is redacted to %q, then to %q", text, want, again)
		}
		if clean, err := r.JSON([]byte(text)); err == nil {
			if again, err := r.JSON(clean); err != nil || !bytes.Equal(again, clean) {
				t.Fatalf("%q becomes %q, then %q: %v", text, clean, again, err)
			}
		}
	})
}

// Proves station 17.D8, the half about quadratic cases: eight times the text
// would take 64 times as long; 24 leaves room for noise.
func TestText_Linear(t *testing.T) {
	if testing.Short() {
		t.Skip("long: the race detector takes the time that is measured")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := sample(redact.Options{})
	for _, unit := range []string{
		"eyJ-", "sk-", "AKIA-", "hf_", "://u:x/a", "?a=b", `"token":`, `\`, `"`, "token=", "token:", "bearer ", "--token ", "-----BEGIN ", "-----BEGIN X-----", "/home/jo",
		known[:len(known)-1], known, plain, plain + "sk-", plain + "AKIA", plain + "eyJabcdef", plain + "-----BEGIN", "%dbt_", `\npm_`, "x ", "'a", "%3D", "authorization", "a.b", `token"\`,
	} {
		took := func(n int) time.Duration {
			text := strings.Repeat(unit, n/len(unit)+1)
			begin := cpuTime(t)
			r.Text(text)
			return cpuTime(t) - begin
		}
		small, large := took(64<<10), took(512<<10)
		if large > 24*small+100*time.Millisecond {
			t.Errorf("%q: %v for 64 KiB, %v for 512 KiB", unit, small, large)
		}
	}
}

// cpuTime is what this thread has used; other load does not count.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// logText gives a Redactor that knows some secrets, and a mebibyte without any.
func logText() (*redact.Redactor, string) {
	r := sample(redact.Options{})
	for i := range 20 {
		r.Learn(fmt.Sprintf("some-known-secret-%d-value", i))
	}
	line := "2026-01-02T03:04:05.678Z INFO request handled method=GET path=/v1/things/42 status=200 duration=12.5ms agent=\"Mozilla/5.0 (X11; Linux)\"\n"
	return r, strings.Repeat(line, 1<<20/len(line))
}

// Proves station 17.D8, the half about speed: a second of this thread redacts 50 MB.
func TestText_Rate(t *testing.T) {
	if testing.Short() {
		t.Skip("long: the race detector takes the time that is measured")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, text := logText()
	best := 0.0
	for range 10 { // other load costs caches
		begin := cpuTime(t)
		r.Text(text)
		best = max(best, float64(len(text))/1e6/(cpuTime(t)-begin).Seconds())
	}
	if best < 50 {
		t.Errorf("%.0f MB/s", best)
	}
}

// The rate on ordinary log text.
func BenchmarkText(b *testing.B) {
	r, text := logText()
	b.SetBytes(int64(len(text)))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := cpuTime(b)
	for b.Loop() {
		r.Text(text)
	}
	b.ReportMetric(float64(b.N*len(text))/1e6/(cpuTime(b)-begin).Seconds(), "MB/s-cpu")
}

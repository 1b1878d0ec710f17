package egress_test

import (
	"bufio"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/egress"
)

// Proves station 17.E4
func TestNames(t *testing.T) {
	r := newRig(t, egress.Profile{Allow: []string{"*.D.test", "one.test."}}, nil)
	for name, want := range map[string]egress.Code{
		"d.test": egress.DNSFailed, "a.b.d.test": egress.DNSFailed, "A.D.TEST": egress.DNSFailed, "d.test.": egress.DNSFailed,
		"one.test": egress.DNSFailed, "ONE.test.": egress.DNSFailed,
		"xd.test": egress.NameDenied, "d.test.evil.test": egress.NameDenied, "a.one.test": egress.NameDenied, "test": egress.NameDenied,
		"d.test..": egress.BadTarget, ".d.test": egress.BadTarget, "*.d.test": egress.BadTarget, "xn--mnchen-3ya.d.test": egress.DNSFailed, "münchen.d.test": egress.BadTarget,
	} {
		before := total(r.proxy.Summary(), want)
		ask(r, name+":443")
		if total(r.proxy.Summary(), want) != before+1 {
			t.Errorf("%s: want %s", name, want)
		}
	}
}

func total(s egress.Summary, code egress.Code) (n int64) {
	for _, row := range s.Denied {
		if row.Code == code {
			n += row.Count
		}
	}
	return n
}

// Proves station 17.E9: such a profile is refused; a wider one does not help.
func TestModelDestinations(t *testing.T) {
	for _, name := range []string{
		"api.openai.com", "*.openai.com", "openai.com", "x.openai.com", "chatgpt.com", "www.chatgpt.com", "*.chatgpt.com", "foo.openai.azure.com", "*.azure.com",
		"api.anthropic.com", "*.anthropic.com", "anthropic.com", "claude.ai", "*.claude.ai", "generativelanguage.googleapis.com", "*.googleapis.com",
		"us-central1-aiplatform.googleapis.com", "aiplatform.googleapis.com", "bedrock.us-east-1.amazonaws.com", "bedrock-runtime.eu-west-1.amazonaws.com",
		"openrouter.ai", "*.openrouter.ai", "api.mistral.ai", "*.mistral.ai", "api.groq.com", "api.x.ai", "*.x.ai", "api.deepseek.com", "*.deepseek.com",
		"api.together.xyz", "api.fireworks.ai", "api.cohere.com", "models.dev", "opencode.ai", "ollama.com", "API.OpenAI.com.",
		"llm.corp.test", "*.corp.test", "eu.llm.corp.test",
	} {
		p := egress.Profile{Name: "p", Allow: []string{name}}
		if err := p.Check("llm.corp.test"); !fault.Is(err, fault.EgressProfileInvalid) {
			t.Errorf("allow %s: %v", name, err)
		}
	}
	r := newRig(t, egress.Profile{Allow: []string{"*.amazonaws.com"}}, nil)
	for name, want := range map[string]egress.Code{
		"bedrock-runtime.eu-west-1.amazonaws.com": egress.ModelDestination, "vpce-1.bedrock-runtime.eu-west-1.amazonaws.com": egress.ModelDestination,
		"bedrock.us-east-1.amazonaws.com.": egress.ModelDestination, "s3.amazonaws.com": egress.DNSFailed,
	} {
		before := total(r.proxy.Summary(), want)
		ask(r, name+":443")
		if total(r.proxy.Summary(), want) != before+1 {
			t.Errorf("%s: want %s", name, want)
		}
	}
	if len(r.lookups) != 1 {
		t.Errorf("looked up %v", r.lookups)
	}
}

func TestProfileFile(t *testing.T) {
	good := `{"profiles":[{"name":"web","allow":["*.d.test"],"ports":[443],"private":[{"cidr":"10.0.0.0/8","ports":[80],"reviewedBy":"ops","reviewedAt":"2026-01-31","reason":"mirror"}],"limits":{"tunnels":2}}],"models":["LLM.corp.test"]}`
	ps, err := egress.Parse([]byte(good))
	if err != nil || ps.Models[0] != "llm.corp.test" {
		t.Fatalf("%v, %v", ps, err)
	}
	if _, err := ps.Find("web"); err != nil {
		t.Error(err)
	}
	if _, err := ps.Find("other"); !fault.Is(err, fault.EgressProfileUnknown) {
		t.Error(err)
	}
	for name, text := range map[string]string{
		"unknown member":    `{"profiles":[{"name":"a","modelAccess":{}}]}`,
		"repeated member":   `{"profiles":[],"profiles":[]}`,
		"repeated name":     `{"profiles":[{"name":"a"},{"name":"a"}]}`,
		"reserved name":     `{"profiles":[{"name":"none"}]}`,
		"no name":           `{"profiles":[{"allow":["a.test"]}]}`,
		"star alone":        `{"profiles":[{"name":"a","allow":["*"]}]}`,
		"whole tld":         `{"profiles":[{"name":"a","allow":["*.com"]}]}`,
		"inner star":        `{"profiles":[{"name":"a","allow":["a.*.test"]}]}`,
		"star in a label":   `{"profiles":[{"name":"a","allow":["a*.d.test"]}]}`,
		"two stars":         `{"profiles":[{"name":"a","allow":["*.*.test"]}]}`,
		"not ascii":         `{"profiles":[{"name":"a","allow":["münchen.test"]}]}`,
		"with port":         `{"profiles":[{"name":"a","allow":["a.test:443"]}]}`,
		"address as name":   `{"profiles":[{"name":"a","allow":["127.0.0.1"]}]}`,
		"decimal address":   `{"profiles":[{"name":"a","allow":["2130706433"]}]}`,
		"inside":            `{"profiles":[{"name":"a","allow":["db.internal"]}]}`,
		"localhost":         `{"profiles":[{"name":"a","allow":["localhost"]}]}`,
		"negative limit":    `{"profiles":[{"name":"a","limits":{"bytesUp":-1}}]}`,
		"huge limit":        `{"profiles":[{"name":"a","limits":{"tunnels":100000}}]}`,
		"port out of range": `{"profiles":[{"name":"a","ports":[70000]}]}`,
		"own model list":    `{"profiles":[{"name":"a","allow":["llm.corp.test"]}],"models":["llm.corp.test"]}`,
		"bad model":         `{"profiles":[],"models":["*"]}`,
	} {
		if _, err := egress.Parse([]byte(text)); !fault.Is(err, fault.EgressProfileInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}

	path := filepath.Join(t.TempDir(), "egress.json")
	if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := egress.Load(path); err != nil {
		t.Error(err)
	}
	// Proves station 17.C4: of egress profiles.
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := egress.Load(path); !fault.Is(err, fault.EgressProfileInvalid) {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	if _, err := egress.Load(filepath.Dir(path)); !fault.Is(err, fault.EgressProfileInvalid) {
		t.Errorf("a directory: %v", err)
	}
}

var hostName = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*$`)

// FuzzRequestLine sends whole request lines to the proxy: whatever they say, only
// the allowed name's address at the allowed ports is dialled.
func FuzzRequestLine(f *testing.F) {
	for _, line := range []string{
		"CONNECT a.test:443 HTTP/1.1", "CONNECT A.TEST.:80 HTTP/1.0", "GET http://a.test/x?y HTTP/1.1", "GET http://a.test:80 HTTP/1.1", "GET / HTTP/1.1",
		"CONNECT user@a.test:443 HTTP/1.1", "CONNECT 2130706433:443 HTTP/1.1", "CONNECT [::1]:443 HTTP/1.1", "CONNECT [::ffff:10.0.0.1]:443 HTTP/1.1",
		"CONNECT /a.test:443 HTTP/1.1", "CONNECT a.test:443#@evil.test:443 HTTP/1.1", "GET http://evil.test\\@a.test/ HTTP/1.1", "GET http://a.test%2eevil.test/ HTTP/1.1",
		"POST http://a.test:0080/ HTTP/1.1", "OPTIONS * HTTP/1.1", "CONNECT  HTTP/1.1", "CONNECT a.test:443:443 HTTP/1.1", "GET http:a.test HTTP/1.1",
	} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if host, port, literal, ok := egress.Target(line); ok {
			if !literal && (!hostName.MatchString(host) || len(host) > 253) || port == 0 {
				t.Fatalf("%q: read as %q port %d", line, host, port)
			}
			if literal {
				if a, err := netip.ParseAddr(host); err != nil || a.Is4In6() {
					t.Fatalf("%q: read as %q", line, host)
				}
			}
		}
		q, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + "\r\nHost: x\r\n\r\n")))
		if err != nil {
			return
		}
		r := &rig{names: map[string][]netip.Addr{"a.test": {public}}}
		proxy, err := egress.New(egress.Options{Profile: egress.Profile{Name: "p", Allow: []string{"a.test"}}, Resolver: r, Dial: r.dial,
			Local: func() ([]netip.Addr, error) { return nil, nil }})
		if err != nil {
			t.Fatal(err)
		}
		w := &status{}
		proxy.Serve(w, q)
		for _, at := range r.dialled {
			if at.Addr() != public || at.Port() != 443 && at.Port() != 80 {
				t.Fatalf("%q: dialled %s", line, at)
			}
		}
		if w.code != http.StatusForbidden && w.code != http.StatusMethodNotAllowed && w.code != http.StatusBadGateway {
			t.Fatalf("%q: status %d", line, w.code)
		}
	})
}

// The example of the documentation is a file that is read.
func TestDocumentedProfiles(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "egress.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```json\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/egress.md has no example")
	}
	if _, err := egress.Parse([]byte(example)); err != nil {
		t.Error(err)
	}
	for _, code := range []egress.Code{
		egress.BadTarget, egress.IPLiteral, egress.PortDenied, egress.NameDenied, egress.ModelDestination, egress.DNSFailed,
		egress.AddressDenied, egress.Limit, egress.MethodRefused, egress.DialFailed, egress.Idle,
	} {
		if !strings.Contains(string(page), "`"+string(code)+"`") {
			t.Errorf("docs/egress.md does not explain %s", code)
		}
	}
}

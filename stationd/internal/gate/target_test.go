package gate_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/gate"
)

// good are targets and the one form of each.
var good = []struct{ raw, want string }{
	{"/", "/"},
	{"//", "/"},
	{"/v1", "/v1"},
	{"/v1/", "/v1/"},
	{"/v1//x", "/v1/x"},
	{"//v1///x//", "/v1/x/"},
	{"/./v1/./x", "/v1/x"},
	{"/v1/.", "/v1/"},
	{"/v1/%2e/x", "/v1/x"},
	{"/a/../v1", "/v1"},
	{"/v1/x/..", "/v1/"},
	{"/a/%2e%2e/v1", "/v1"},
	{"/a/.%2e/v1", "/v1"},
	{"/a/%2E./v1", "/v1"},
	{"/v1/...", "/v1/..."},
	{"/v1/..x", "/v1/..x"},
	{"/%76%31", "/v1"},
	{"/V1", "/V1"},
	{"/a%20b", "/a%20b"},
	{"/a+b:c@d=e&f$", "/a+b:c@d=e&f$"},
	{"/a,b", "/a%2Cb"},
	{"/%c3%a9", "/%C3%A9"},
	{"/a%3fb%23c", "/a%3Fb%23c"},
	{"/v1?", "/v1?"},
	{"/v1?x=1&y=%2F..%2f&z", "/v1?x=1&y=%2F..%2f&z"},
	{"/v1?a=%25%0a?/", "/v1?a=%25%0a?/"},
}

// bad are targets that are refused; most are spellings of a way out of a prefix.
var bad = []string{
	"", "*", "v1", "http://evil/v1", "https://127.0.0.1/v1", "evil:80", "evil/v1", "?x", "#",
	"/..", "/../v1", "/v1/../..", "/v1/../../etc", "/%2e%2e/v1", "/.%2e", "/%2e./x", "/a/..//../b", "/./../x",
	"/v1%2f..%2fx", "/v1%2F..", "/%2f", "/v1/..%2fx", "/v1%5c..%5cx", "/v1%5Cx", `/v1\..\x`, `\v1`, `/..\x`,
	"/v1%00", "/%00", "/v1%0d%0ax", "/v1%0A", "/%1f", "/%7f", "/v1\x7f", "/v1\x00", "/v1\t",
	"/%25", "/%252e%252e/x", "/%252f", "/v1%25252f",
	"/v1;x=1", "/v1;/../x", "/v1%3b", "/;",
	"/%c0%ae%c0%ae/x", "/%c0%af", "/%e0%80%ae", "/%f0%80%80%ae", "/%ff", "/%c3", "/%ed%a0%80", "/%c2%85",
	"/é", "/v1/\xc0\xae", "/v1#frag", "/v1/#/../x", "/%zz", "/%2", "/%", "/v1/%%32e", "/v1/%u002e",
	"/<", "/>", `/"`, "/^", "/{", "/}", "/|", "/`", "/a b",
	"/v1?a;b", "/v1?a#b", "/v1?a b", "/v1?%zz", "/v1?%2", `/v1?\`, "/v1?é", "/v1?<", "/v1?\x00",
	"/" + strings.Repeat("a", 4096),
	"/v1?" + strings.Repeat("a", 8193),
	strings.Repeat("/a", 129),
}

// Proves station 17.P3, 17.P7: dot segments in every spelling are resolved, and
// nothing climbs above the root.
func TestParseTarget(t *testing.T) {
	for _, tc := range good {
		t.Run(tc.raw, func(t *testing.T) {
			got, err := gate.ParseTarget(tc.raw, 0)
			if err != nil || got.String() != tc.want {
				t.Fatalf("got %q, %v, want %q", got, err, tc.want)
			}
			again, err := gate.ParseTarget(got.String(), 0)
			if err != nil || again.String() != got.String() {
				t.Errorf("the form is not fixed: %q, %v", again, err)
			}
		})
	}
}

// Proves station 17.P4: encoded separators, double encodings, overlong forms, raw
// bytes and broken escapes are refused.
func TestParseTarget_Refused(t *testing.T) {
	for _, raw := range bad {
		if got, err := gate.ParseTarget(raw, 0); !fault.Is(err, fault.TargetInvalid) {
			t.Errorf("%.60q gave %q, %v, want target_invalid", raw, got, err)
		} else if len(raw) > 4 && strings.Contains(err.Error(), raw) {
			t.Errorf("the error %q repeats the target", err)
		}
	}
}

// A bridge path keeps to its own floor: a daemon's path cannot climb into another
// attempt's.
func TestParseTarget_Floor(t *testing.T) {
	for _, tc := range []struct {
		raw string
		ok  bool
	}{
		{"/s/stn_one/a/1/v1/../x", true},
		{"/x/../s/stn_one/a/1/v1", true},
		{"/s/stn_one/a/1/..", false},
		{"/s/stn_one/a/1/x/../../2/v1", false},
		{"/s/stn_one/a/1/%2e%2e/2", false},
	} {
		if _, err := gate.ParseTarget(tc.raw, 4); (err == nil) != tc.ok {
			t.Errorf("%s: %v", tc.raw, err)
		}
	}
}

// Proves station 17.P5: a prefix matches whole segments, with their case.
func TestTarget_Within(t *testing.T) {
	for _, tc := range []struct {
		target, prefix string
		want           bool
	}{
		{"/v1", "/v1", true},
		{"/v1/", "/v1", true},
		{"/v1/x", "/v1", true},
		{"/v1?x=/v2", "/v1", true},
		{"/%76%31/x", "/v1", true},
		{"/v1", "/", true},
		{"/", "/", true},
		{"/v10", "/v1", false},
		{"/V1", "/v1", false},
		{"/v2/v1", "/v1", false},
		{"/", "/v1", false},
		{"/v1/../v2", "/v1", false},
		{"/v2?x=/v1", "/v1", false},
		{"/v1/a", "/v1/b", false},
		{"/v1", "", false},
		{"/v1", "/v1?x", false},
	} {
		target, err := gate.ParseTarget(tc.target, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := target.Within(tc.prefix); got != tc.want {
			t.Errorf("%s within %q: %v", tc.target, tc.prefix, got)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for raw, want := range map[string]string{"/": "/", "/v1": "/v1", "/v1/": "/v1", "//v1/../v2": "/v2"} {
		if got, err := gate.ParsePrefix(raw); err != nil || got != want {
			t.Errorf("%s gave %q, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"", "v1", "/v1?x", "/..", "/v1?"} {
		if got, err := gate.ParsePrefix(raw); err == nil {
			t.Errorf("%q gave %q", raw, got)
		}
	}
}

// Proves station 17.P6, 17.P13: whatever is accepted lies under its prefix for a
// parser that is not ours, and stays as it is when it is read again.
func FuzzParseTarget(f *testing.F) {
	for _, tc := range good {
		f.Add(tc.raw)
		f.Add("/v1" + tc.raw)
	}
	for _, raw := range bad {
		f.Add(raw)
		f.Add("/v1/" + raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := gate.ParseTarget(raw, 0)
		if err != nil {
			return
		}
		sent := got.String()
		again, err := gate.ParseTarget(sent, 0)
		if err != nil || again.String() != sent {
			t.Fatalf("%q became %q, and that %q, %v", raw, sent, again, err)
		}
		u, err := url.ParseRequestURI(sent)
		if err != nil {
			t.Fatalf("%q became %q: %v", raw, sent, err)
		}
		if !utf8.ValidString(u.Path) || strings.ContainsAny(u.Path, "\x00\r\n\\") {
			t.Fatalf("%q became the path %q", raw, u.Path)
		}
		for part := range strings.SplitSeq(strings.Trim(u.Path, "/"), "/") {
			if part == ".." || part == "." || part == "" && u.Path != "/" {
				t.Fatalf("%q became the path %q", raw, u.Path)
			}
		}
		if clean := (&url.URL{Path: u.Path}).JoinPath(); u.Path != "/" && strings.TrimSuffix(clean.Path, "/") != strings.TrimSuffix(u.Path, "/") {
			t.Fatalf("%q became %q, which cleans to %q", raw, u.Path, clean.Path)
		}
		under := u.Path == "/v1" || strings.HasPrefix(u.Path, "/v1/")
		if got.Within("/v1") != under {
			t.Fatalf("%q: within /v1 %v, but the daemon sees %q", raw, got.Within("/v1"), u.Path)
		}
	})
}

// Proves station 17.P6: the daemon gets the bytes that were checked.
func TestGate_TargetAsChecked(t *testing.T) {
	w := newWorld(t)
	for _, tc := range good {
		status, all := w.rawStatus("GET " + gate.BridgePath(theStation, 1) + tc.raw + " HTTP/1.1\r\n" + w.credentials() + "\r\n")
		if status != http.StatusOK {
			t.Errorf("%s: %s", tc.raw, all)
			continue
		}
		if saw := w.daemon.requests(); len(saw) != 1 || saw[0].RequestURI != tc.want {
			t.Errorf("%s: the daemon saw %v, want %s", tc.raw, saw, tc.want)
		}
	}
}

// Proves station 17.P4, 17.P7, 17.P8: refused targets never reach the daemon.
func TestGate_TargetRefused(t *testing.T) {
	w := newWorld(t)
	for _, raw := range bad {
		for _, target := range []string{raw, gate.BridgePath(theStation, 1) + raw, gate.BridgePath(theStation, 1) + "/v1/" + strings.TrimPrefix(raw, "/")} {
			parsed, err := gate.ParseTarget(target, 4)
			if err == nil {
				continue // it only looked bad alone
			}
			status, all := w.rawStatus("GET " + target + " HTTP/1.1\r\n" + w.credentials() + "\r\n")
			if status != http.StatusBadRequest {
				t.Errorf("%.60q (%q) gave %q", target, parsed, all)
			}
		}
	}
	w.untouched()
}

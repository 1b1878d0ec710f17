package profile_test

import (
	"bytes"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/profile"
	"drawbridge/shared/strictjson"
)

func FuzzParse(f *testing.F) {
	f.Add(profile.Starter())
	f.Add(edit(f))
	f.Add(edit(f, "controllerContext.scope", "route_bound_v1"))
	f.Add(edit(f, "id", "builtin-x"))
	f.Add([]byte(`{"id":"\ud800"}`))
	f.Add([]byte(strings.Repeat("[", 40)))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := profile.Parse(data)
		if err != nil {
			pe, ok := err.(*profile.ProfileError)
			if !ok || !fault.Known(pe.Class) || strings.ContainsAny(pe.Error(), "\n\x00") {
				t.Fatalf("error %T %q", err, err)
			}
			return
		}
		again, err := profile.Parse(append([]byte("\n"), bytes.TrimPrefix(data, []byte("\xEF\xBB\xBF"))...))
		if err != nil || again.Fingerprint() != p.Fingerprint() {
			t.Fatalf("white space changed the verdict: %v", err)
		}
		if _, err := p.Arguments(profile.Values{SessionID: "s", DeliveryID: "d", MessageID: "m", IdempotencyKey: "k"}); err != nil {
			t.Fatalf("an accepted template cannot be rendered: %v", err)
		}
		if p.Timeout() <= 0 || p.Timeout() > profile.MaxTimeout || p.MaxOutput() < 1 || p.MaxOutput() > profile.MaxOutput {
			t.Fatal("limits out of bounds")
		}
	})
}

func FuzzRange(f *testing.F) {
	for _, s := range []string{">=1.8.0 <2.0.0", "1.0.0-alpha.1+b", "v1.0.0", "^1", "1.0.0-9223372036854775808", ">=1.0.0  <2.0.0", "=1.0.0-0a"} {
		f.Add(s, "1.8.0-rc.1")
	}
	f.Fuzz(func(t *testing.T, text, version string) {
		p, err := profile.Parse(edit(t, "compatibility.range", text))
		if err != nil {
			return
		}
		if n := strings.Count(text, " "); n > 3 || !referenceRange.MatchString(p.Range()) {
			t.Fatalf("accepted %q", text)
		}
		_ = p.Compatible("my-agent", version)
	})
}

func FuzzPointer(f *testing.F) {
	for _, s := range []string{"/a", "/a~1b~0", "/~2", "a", "/", strings.Repeat("/", 17), "/\u00a0", "/\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, pointer string) {
		p, err := profile.Parse(edit(t, "callback.acknowledgement.disposition.jsonPointer", pointer))
		if err != nil {
			return
		}
		got := p.Acknowledgement().Disposition
		if strictjson.ValidPointer(got) != nil || strings.Count(got, "/") > 16 {
			t.Fatalf("accepted %q", got)
		}
		strictjson.Pointer(map[string]any{"a": []any{"b"}}, got)
	})
}

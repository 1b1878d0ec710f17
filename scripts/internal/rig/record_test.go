package rig

import (
	"encoding/json"
	"strings"
	"testing"
)

// Recorded documents stay JSON, keep their order, and are cut only inside long
// strings.
func TestShorten(t *testing.T) {
	long := strings.Repeat("ä", 40) + `\u00e4\n` + strings.Repeat("b", 40)
	for _, tc := range []struct{ name, in, want string }{
		{"short", `{"z":"a\"b","a":[1,true]}`, `{"z":"a\"b","a":[1,true]}`},
		{"two lines", "{\"a\":\"x\"}\n{\"b\":\"y\"}\n", "{\"a\":\"x\"}\n{\"b\":\"y\"}\n"},
		{"long", `{"t":"` + strings.Repeat("x", 30) + `"}`, `{"t":"` + strings.Repeat("x", 20) + `…<trimmed 10 bytes>"}`},
		{"never in a character", `{"t":"` + strings.Repeat("ä", 15) + `"}`, `{"t":"` + strings.Repeat("ä", 10) + `…<trimmed 10 bytes>"}`},
	} {
		if got := string(shorten([]byte(tc.in), 20)); got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
	for most := range 130 {
		if got := shorten([]byte(`{"t":"`+long+`"}`), most); !json.Valid(got) {
			t.Errorf("cut at %d is not JSON: %s", most, got)
		}
	}
}

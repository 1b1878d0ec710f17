package gate_test

import (
	"net/http"
	"strings"
	"testing"

	"drawbridge/stationd/internal/gate"
)

func TestNewTicket(t *testing.T) {
	secret, digest := gate.NewTicket()
	if token := secret.Reveal(); !strings.HasPrefix(token, "dbt_") || len(token) != 47 || gate.DigestOf(token) != digest {
		t.Errorf("ticket of %d characters, digest %x", len(token), digest)
	}
	other, _ := gate.NewTicket()
	if other.Reveal() == secret.Reveal() {
		t.Error("two tickets are equal")
	}
}

func TestTicketOf(t *testing.T) {
	secret, digest := gate.NewTicket()
	ticket := secret.Reveal()
	stranger, _ := gate.NewPrincipalSecret()
	for _, tc := range []struct {
		name   string
		values []string
		ok     bool
	}{
		{"one", []string{ticket}, true},
		{"none", nil, false},
		{"two", []string{ticket, ticket}, false},
		{"in a list", []string{ticket + ", " + ticket}, false},
		{"a space before", []string{" " + ticket}, false},
		{"a space behind", []string{ticket + " "}, false},
		{"with a scheme", []string{"Bearer " + ticket}, false},
		{"longer", []string{ticket + "A"}, false},
		{"shorter", []string{ticket[:46]}, false},
		{"another prefix", []string{"dbp_" + ticket[4:]}, false},
		{"upper prefix", []string{"DBT_" + ticket[4:]}, false},
		{"of another kind", []string{stranger.Reveal()}, false},
		{"padded", []string{ticket + "="}, false},
		{"other alphabet", []string{ticket[:46] + "+"}, false},
		{"empty", []string{""}, false},
		{"not canonical", []string{"dbt_" + strings.Repeat("A", 42) + "B"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := gate.TicketOf(http.Header{"Drawbridge-Ticket": tc.values})
			if ok != tc.ok || ok && got != digest {
				t.Errorf("got %x, %v, want %v", got, ok, tc.ok)
			}
		})
	}
}

func TestBearerOf(t *testing.T) {
	secret, digest := gate.NewPrincipalSecret()
	p := secret.Reveal()
	for value, ok := range map[string]bool{
		"Bearer " + p: true, "bearer " + p: true, "BEARER " + p: true,
		p: false, "Bearer  " + p: false, "Basic " + p: false, "Bearer": false, "Bearer " + p + " x": false, "Bearer\t" + p: false,
	} {
		got, is := gate.BearerOf(http.Header{"Authorization": {value}})
		if is != ok || ok && got != digest {
			t.Errorf("%q: %v, want %v", strings.ReplaceAll(value, p, "P"), is, ok)
		}
	}
	if _, ok := gate.BearerOf(http.Header{"Authorization": {"Bearer " + p, "Bearer " + p}}); ok {
		t.Error("two values are read")
	}
}

// One token has one spelling: whatever is accepted is what newToken makes.
func FuzzTicketOf(f *testing.F) {
	secret, _ := gate.NewTicket()
	for _, seed := range []string{
		secret.Reveal(), "dbt_" + strings.Repeat("A", 43), "dbt_" + strings.Repeat("A", 42) + "B", "dbt_", "", "dbp_" + strings.Repeat("A", 43),
		"dbt_" + strings.Repeat("A", 20) + "\n" + strings.Repeat("A", 22), "dbt_" + strings.Repeat("-", 43), "dbt_" + strings.Repeat("_", 42) + "8",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		digest, ok := gate.TicketOf(http.Header{"Drawbridge-Ticket": {value}})
		if !ok {
			return
		}
		if len(value) != 47 || value[:4] != "dbt_" || digest != gate.DigestOf(value) {
			t.Fatalf("%q was read", value)
		}
		last := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", value[46])
		if last < 0 || last&3 != 0 {
			t.Fatalf("%q is a second spelling", value)
		}
	})
}

func TestTicketInURL(t *testing.T) {
	const token = "dbt_0123456789abcdefghij"
	escaped := "%64%62%74_0123456789abcdefghij"
	for _, tc := range []struct {
		target, referer string
		want            bool
	}{
		{"/v1?x=1", "", false},
		{"/v1?tickets=1&ticketed=2&my_ticket=3&ticke=4", "", false},
		{"/v1/ticket", "http://x/ticket", false},
		{"/v1?ticket=1", "", true},
		{"/v1?x&TICKET", "", true},
		{"/v1?x=1&Bridge_Ticket=", "", true},
		{"/v1?bridge-ticket=1", "", true},
		{"/v1?station_ticket=1", "", true},
		{"/v1?Station-Ticket=1", "", true},
		{"/v1?drawbridge_ticket=1", "", true},
		{"/v1?DrawbridgeTicket=1", "", true},
		{"/v1?%74icket=1", "", true},
		{"/v1?%2574icket=1", "", true},
		{"/v1?t%69ck%65%74=1", "", true},
		{"/v1?x;ticket=1", "", true},
		{"/v1?x?ticket=1", "", true},
		{"/v1#?ticket=1", "", true},
		{"/v1?x=" + token, "", true},
		{"/v1/" + token, "", true},
		{"/" + strings.Replace(token, "dbt", "dbp", 1), "", true},
		{"/v1?x=" + escaped, "", true},
		{"/v1?x=%2564%2562%2574_0123456789abcdefghij", "", true},
		{"/v1?x=dbt_" + token, "", true},
		{"/v1?x=" + token[:23], "", false},
		{"/v1?x=dbt_012345678 9abcdefghij", "", false},
		{"http://evil/" + token, "", true},
		{"/v1", "http://127.0.0.1/x?y=" + token, true},
		{"/v1", "http://127.0.0.1/" + escaped, true},
		{"/v1?x=%zz%6", "", false},
	} {
		h := http.Header{}
		if tc.referer != "" {
			h.Set("Referer", tc.referer)
		}
		if got := gate.TicketInURL(tc.target, h); got != tc.want {
			t.Errorf("%s, referer %q: %v", tc.target, tc.referer, got)
		}
	}
}

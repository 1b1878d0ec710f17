package gate_test

import (
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/gate"
)

// Facts of a claim that passes, and the claim.
func fine(now time.Time) (gate.Facts, gate.Claim) {
	_, digest := gate.NewTicket()
	target, _ := gate.ParseTarget("/v1/x", 0)
	return gate.Facts{
			Principal: gate.Principal{ID: "prn_ada", Org: "local"}, Role: "manager",
			Ticket: gate.Ticket{
				ID: "tkt_1", Digest: digest, Principal: "prn_ada", Org: "local", Owner: "prn_own", Station: "stn_1", Attempt: 2, Lease: "lse_1",
				Prefix: "/v1", Methods: []string{"GET"}, MaxUses: 3, Uses: 2, ExpiresAt: now.Add(time.Second),
			},
			Attempt: gate.Attempt{Number: 2, Lease: "lse_1", State: "ready"}, Newest: 2, Org: "local", Owner: "prn_own",
		}, gate.Claim{
			Ticket: digest, Station: "stn_1", Attempt: 2, Method: "GET", Target: target,
		}
}

// Proves station 17.T2, 17.T3, 17.T4, 17.T5, 17.T6, 17.T8, 17.T9, 17.T11 for the
// decision itself.
func TestFacts_Admit(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tc := range []struct {
		name   string
		change func(*gate.Facts, *gate.Claim)
		want   fault.Code // "" passes
		still  fault.Code // of an open passage
	}{
		{"all fine", func(*gate.Facts, *gate.Claim) {}, "", ""},
		{"an owner", func(f *gate.Facts, _ *gate.Claim) { f.Role = "owner" }, "", ""},
		{"no bound of uses", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.MaxUses, f.Ticket.Uses = 0, 99 }, "", ""},
		{"all methods", func(f *gate.Facts, c *gate.Claim) { f.Ticket.Methods, c.Method = nil, "DELETE" }, "", ""},

		{"no principal", func(f *gate.Facts, _ *gate.Claim) { f.Principal = gate.Principal{} }, fault.Unauthorized, fault.Unauthorized},
		{"no ticket", func(f *gate.Facts, _ *gate.Claim) { f.Ticket = gate.Ticket{} }, fault.Unauthorized, fault.Unauthorized},
		{"a viewer", func(f *gate.Facts, _ *gate.Claim) { f.Role = "viewer" }, fault.Unauthorized, fault.Unauthorized},
		{"no role", func(f *gate.Facts, _ *gate.Claim) { f.Role = "" }, fault.Unauthorized, fault.Unauthorized},
		{"a role of another kind", func(f *gate.Facts, _ *gate.Claim) { f.Role = "Owner" }, fault.Unauthorized, fault.Unauthorized},
		{"somebody else's ticket", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.Principal = "prn_eve" }, fault.Unauthorized, fault.Unauthorized},
		{"another digest", func(_ *gate.Facts, c *gate.Claim) { c.Ticket[0]++ }, fault.Unauthorized, ""},
		{"another organisation", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.Org = "other" }, fault.Unauthorized, fault.Unauthorized},
		{"a station of another organisation", func(f *gate.Facts, _ *gate.Claim) { f.Org = "other" }, fault.Unauthorized, fault.Unauthorized},
		{"another owner", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.Owner = "prn_ada" }, fault.Unauthorized, fault.Unauthorized},
		{"another station", func(_ *gate.Facts, c *gate.Claim) { c.Station = "stn_2" }, fault.Unauthorized, ""},
		{"an older attempt in the path", func(_ *gate.Facts, c *gate.Claim) { c.Attempt = 1 }, fault.Unauthorized, ""},
		{"a newer attempt in the path", func(_ *gate.Facts, c *gate.Claim) { c.Attempt = 3 }, fault.Unauthorized, ""},
		{"another lease", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.Lease = "lse_2" }, fault.Unauthorized, fault.Unauthorized},
		{"an attempt that is not there", func(f *gate.Facts, _ *gate.Claim) { f.Attempt = gate.Attempt{} }, fault.Unauthorized, fault.Unauthorized},

		{"replaced", func(f *gate.Facts, _ *gate.Claim) { f.Newest = 3; f.Attempt.State = "terminal" }, fault.AttemptReplaced, fault.AttemptReplaced},
		{"replaced, the new attempt in the path", func(f *gate.Facts, c *gate.Claim) { f.Newest, c.Attempt = 3, 3 }, fault.AttemptReplaced, fault.AttemptReplaced},
		{"stopping is wanted", func(f *gate.Facts, _ *gate.Claim) { f.Attempt.Stopping, f.Ticket.Revoked = true, true }, fault.StationStopping, fault.StationStopping},
		{"stopping", func(f *gate.Facts, _ *gate.Claim) { f.Attempt.State = "stopping" }, fault.StationStopping, fault.StationStopping},
		{"ended", func(f *gate.Facts, _ *gate.Claim) { f.Attempt.State, f.Ticket.Revoked = "terminal", true }, fault.StationEnded, fault.StationEnded},
		{"revoked", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.Revoked = true }, fault.TicketRevoked, fault.TicketRevoked},
		{"at its end", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.ExpiresAt = now }, fault.TicketExpired, fault.TicketExpired},
		{"no uses left", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.Uses = 3 }, fault.TicketExpired, ""},
		{"launching", func(f *gate.Facts, _ *gate.Claim) { f.Attempt.State = "launching" }, fault.StationNotReady, ""},
		{"another prefix", func(f *gate.Facts, _ *gate.Claim) { f.Ticket.Prefix = "/v1/y" }, fault.PathOutsidePrefix, ""},
		{"another method", func(_ *gate.Facts, c *gate.Claim) { c.Method = "POST" }, fault.MethodDenied, ""},
		{"a viewer whose ticket is revoked learns nothing", func(f *gate.Facts, _ *gate.Claim) { f.Role, f.Ticket.Revoked = "viewer", true }, fault.Unauthorized, fault.Unauthorized},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, c := fine(now)
			tc.change(&f, &c)
			access, err := f.Admit(c, now)
			if got := fault.CodeOf(err); got != tc.want {
				t.Errorf("admitted: %q (%v), want %q", got, err, tc.want)
			}
			if err == nil && (access.TicketID != "tkt_1" || access.PrincipalID != "prn_ada" || access.Attempt != 2) {
				t.Errorf("access %+v", access)
			}
			if got := fault.CodeOf(f.Still(now)); got != tc.still {
				t.Errorf("still: %q, want %q", got, tc.still)
			}
		})
	}
}

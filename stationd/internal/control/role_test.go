package control_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/control"
)

// Roles: what each may do, and that a station without one does not exist.
func TestRoles(t *testing.T) {
	w := newWorld(t)
	w.manager.logs = func(context.Context, string, int64, bool, func(string, []byte) error) error { return nil }
	ctx := t.Context()
	calls := map[string]func(id string) error{
		"status":   func(id string) error { _, err := w.Status(ctx, id); return err },
		"evidence": func(id string) error { _, err := w.Client.Evidence(ctx, id, 0); return err },
		"verify":   func(id string) error { _, err := w.Verify(ctx, id); return err },
		"export":   func(id string) error { return w.Export(ctx, id, new(strings.Builder)) },
		"logs":     func(id string) error { return w.Client.Logs(ctx, id, 0, false, nil) },
		"members":  func(id string) error { _, err := w.Client.Members(ctx, id); return err },
		"ticket":   func(id string) error { _, err := w.Ticket(ctx, id, control.TicketRequest{Prefix: "/"}); return err },
		"replace":  func(id string) error { _, err := w.Replace(ctx, id); return err },
		"release":  func(id string) error { _, err := w.Release(ctx, w.leaseOf(id), control.ReleaseRequest{}); return err },
		"grant":    func(id string) error { _, err := w.Grant(ctx, id, w.me.ID, "owner"); return err },
		"take":     func(id string) error { _, err := w.Client.RevokeRole(ctx, id, w.someone()); return err },
		"stop":     func(id string) error { _, err := w.Client.Stop(ctx, id); return err },
	}
	sees := []string{"status", "evidence", "verify", "export"}
	operates := append([]string{"logs", "members", "ticket", "replace", "release", "stop"}, sees...)
	for role, may := range map[string][]string{"": nil, "viewer": sees, "manager": operates} {
		t.Run("role "+role, func(t *testing.T) {
			for name, call := range calls {
				id := w.theirs(role)
				want := fault.RoleDenied
				switch {
				case role == "":
					want = fault.NotFound
				case contains(may, name):
					want = ""
				}
				if err := call(id); fault.CodeOf(err) != want {
					t.Errorf("%s: got %v, want %q", name, err, want)
				}
			}
		})
	}
	id := w.theirs("viewer")
	if st, err := w.Status(ctx, id); err != nil || st.Detail != nil || st.Role != "viewer" {
		t.Errorf("a viewer sees %+v, %v", st.Detail, err)
	}
	if all, err := w.List(ctx); err != nil || len(all.Stations) == 0 {
		t.Errorf("got %+v, %v", all, err)
	}
	for name, call := range calls {
		id := w.begun()
		if err := call(id); err != nil {
			t.Errorf("an owner's %s: %v", name, err)
		}
	}
	// What is not there and what is not mine look alike.
	_, none := w.Status(ctx, "stn_aaaaaaaaaaaaaaaaaaaaaaaaaa")
	hidden := w.theirs("")
	_, foreign := w.Status(ctx, hidden)
	if strings.ReplaceAll(foreign.Error(), hidden, "stn_aaaaaaaaaaaaaaaaaaaaaaaaaa") != none.Error() {
		t.Errorf("%v, %v", none, foreign)
	}
}

func contains(all []string, one string) bool {
	for _, s := range all {
		if s == one {
			return true
		}
	}
	return false
}

func (w *world) leaseOf(id string) string {
	st, err := w.Store.StationStatus(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return st.Attempt.LeaseID
}

// someone is another principal.
func (w *world) someone() string {
	p, err := w.AddPrincipal(w.t.Context(), control.PrincipalRequest{Name: fmt.Sprintf("someone-%d", time.Now().UnixNano())})
	if err != nil {
		w.t.Fatal(err)
	}
	return p.PrincipalID
}

// Members and principals: a secret is shown once and kept as a hash; whoever is
// revoked loses roles and tickets.
func TestPrincipals(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	p, err := w.AddPrincipal(ctx, control.PrincipalRequest{Name: "client"})
	if err != nil || !strings.HasPrefix(p.Secret, "dbp_") || p.UID != nil || p.Org != store.LocalOrg {
		t.Fatalf("got %+v, %v", p, err)
	}
	_, err = w.AddPrincipal(ctx, control.PrincipalRequest{Name: "client"})
	wantCode(t, err, fault.PrincipalExists)
	_, err = w.AddPrincipal(ctx, control.PrincipalRequest{Name: "a b"})
	wantCode(t, err, fault.InvalidArguments)
	all, err := w.Client.Principals(ctx)
	if err != nil || len(all.Principals) != 2 || all.Principals[0].Secret != "" || *all.Principals[1].UID != int64(os.Geteuid()) {
		t.Errorf("got %+v, %v", all, err)
	}
	id := w.begun()
	_, err = w.Ticket(ctx, id, control.TicketRequest{Prefix: "/", Principal: p.PrincipalID})
	wantCode(t, err, fault.RoleDenied)
	members, err := w.Grant(ctx, id, p.PrincipalID, "manager")
	if err != nil || len(members.Members) != 2 {
		t.Errorf("got %+v, %v", members, err)
	}
	_, err = w.Grant(ctx, id, p.PrincipalID, "king")
	wantCode(t, err, fault.InvalidArguments)
	for change, err := range map[string]error{
		"grant":  errorOnly(w.Grant(ctx, id, "client", "manager")),
		"revoke": errorOnly(w.RevokeRole(ctx, id, "client")),
	} {
		f, ok := fault.As(err)
		if !ok || f.Code != fault.NotFound || !strings.Contains(f.Message, `no principal "client"`) || !strings.Contains(f.Hint, "stationd principal list") {
			t.Errorf("%s by name: got %+v", change, f)
		}
	}
	ticket, err := w.Ticket(ctx, id, control.TicketRequest{Prefix: "/", Principal: p.PrincipalID})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.RevokePrincipal(ctx, p.PrincipalID); err != nil {
		t.Fatal(err)
	}
	if row, err := w.Store.Ticket(ctx, ticket.TicketID); err != nil || row.RevokedAt == 0 {
		t.Errorf("the ticket of a revoked principal: %+v, %v", row, err)
	}
	_, err = w.RevokePrincipal(ctx, w.me.ID)
	wantCode(t, err, fault.InvalidArguments)
	for _, secret := range []string{p.Secret, ticket.Ticket} {
		if strings.Contains(w.log.String(), secret) {
			t.Error("the log holds a secret")
		}
	}
}

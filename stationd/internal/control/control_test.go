package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
)

// The life of a station over the API: start, status, ticket, stop, evidence.
func TestLife(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	started, err := w.Start(ctx, []byte(spec), "once")
	if err != nil {
		t.Fatal(err)
	}
	id := started.StationID
	path := "/s/" + id + "/a/1"
	if started.Attempt != 1 || started.Bridge == nil || started.Bridge.URL != "http://127.0.0.1:4711"+started.Bridge.Path || !strings.HasPrefix(started.Bridge.Path, path) {
		t.Errorf("got %+v", started.Bridge)
	}
	again, err := w.Start(ctx, []byte(spec), "once")
	if err != nil || again.StationID != id {
		t.Errorf("the same key: %+v, %v", again, err)
	}
	_, err = w.Start(ctx, []byte(`{"other":1}`), "once")
	wantCode(t, err, fault.IdempotencyConflict)

	all, err := w.List(ctx)
	if err != nil || len(all.Stations) != 1 || all.Stations[0].StationID != id || all.Stations[0].State != store.StationRunning {
		t.Errorf("got %+v, %v", all, err)
	}
	st, err := w.Status(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	lease := "acquiring"
	want := control.Facts{
		State: "running", DesiredState: "running", Attempt: 1, LeaseState: &lease, Supervisor: "none", Command: "none", Cleanup: "none",
	}
	if diff := cmp.Diff(want, st.Facts); diff != "" {
		t.Error(diff)
	}
	if st.Role != "owner" || st.Detail == nil || st.Detail.AttemptState != "preparing" || st.Detail.Provider != "local" || st.Detail.Bridge != nil {
		t.Errorf("got %+v, %+v", st, st.Detail)
	}

	ticket, err := w.Ticket(ctx, id, control.TicketRequest{Prefix: "/v1/../v2", TTL: "1m", Uses: 3, Methods: []string{"GET"}})
	if err != nil {
		t.Fatal(err)
	}
	row, err := w.Store.Ticket(ctx, ticket.TicketID)
	if err != nil || row.PrincipalID != w.me.ID || row.Prefix != "/v2" || row.MaxUses != 3 || row.ExpiresAt-row.IssuedAt != 60_000 {
		t.Errorf("got %+v, %v", row, err)
	}
	if !strings.HasPrefix(ticket.Ticket, "dbt_") || ticket.Prefix != "/v2" {
		t.Errorf("got %+v", ticket)
	}
	if gone, err := w.RevokeTicket(ctx, ticket.TicketID); err != nil || gone.RevokedAt == nil || gone.RevokedReason != "revoked" {
		t.Errorf("got %+v, %v", gone, err)
	}

	stopped, err := w.Client.Stop(ctx, id)
	if err != nil || stopped.StopReason == nil || *stopped.StopReason != store.StopOperator || stopped.State != store.AttemptPreparing {
		t.Errorf("got %+v, %v", stopped, err)
	}
	document := `{"a":"<&>","z":[1,2]}`
	w.end(id, document)
	w.released(id, true)
	if stopped, err = w.Client.Stop(ctx, id); err != nil || *stopped.StopReason != store.StopOperator || stopped.State != store.AttemptTerminal {
		t.Errorf("again: %+v, %v", stopped, err)
	}
	e, err := w.Client.Evidence(ctx, id, 0)
	if err != nil || len(e.Documents) != 1 || string(e.Documents[0].Document) != document || e.Documents[0].Attempt != 1 {
		t.Errorf("got %+v, %v", e, err)
	}
	v, err := w.Verify(ctx, id)
	if err != nil || v.Documents != 1 || v.Events == 0 || len(v.Flaws) != 0 || len(v.Head) != 64 {
		t.Errorf("got %+v, %v", v, err)
	}
	next, err := w.Replace(ctx, id)
	if err != nil || next.Attempt != 2 || next.StationID != id {
		t.Errorf("got %+v, %v", next, err)
	}
}

// Whoever asks for a wait gets an answer when it is over: the nine facts say how.
func TestAwait(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	for _, tc := range []struct {
		clean bool
		want  string
	}{{true, "done"}, {false, "failed"}} {
		id := w.begun()
		got := make(chan control.Status, 1)
		var err error
		go func() {
			var st control.Status
			st, err = w.Await(ctx, id, 1, control.WaitEnded)
			got <- st
		}()
		w.end(id, `{}`)
		select {
		case st := <-got:
			t.Errorf("answered before the lease was released: %+v", st)
		case <-time.After(50 * time.Millisecond): // a wait that is too short would only fail to notice
		}
		w.released(id, tc.clean)
		if st := <-got; err != nil || st.Cleanup != tc.want || st.Detail.AttemptState != "terminal" {
			t.Errorf("got %+v, %v", st, err)
		}
	}
	id := w.begun()
	w.end(id, `{}`)
	if st, err := w.Await(ctx, id, 1, control.WaitReady); err != nil || st.Detail.AttemptState != "terminal" {
		t.Errorf("an attempt that never was ready: %+v, %v", st, err)
	}
}

// A server that stops lets those go who wait.
func TestAwait_ServerStops(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	got := make(chan error, 1)
	go func() {
		_, err := w.Await(t.Context(), id, 1, control.WaitReady)
		got <- err
	}()
	testkit.Eventually(t, patience, func() bool { return w.connections() > 0 })
	begin := time.Now()
	w.stop()
	wantCode(t, <-got, fault.StationdUnavailable)
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := os.Lstat(w.socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
}

// connections counts the peers of the control socket, as the kernel lists them.
func (w *world) connections() int {
	data, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for line := range strings.SplitSeq(string(data), "\n") {
		f := strings.Fields(line)
		if len(f) == 8 && f[5] == "03" && strings.HasPrefix(f[7], w.socket()) {
			n++
		}
	}
	return n
}

// Proves station 17.C7: the control socket is closed to every other uid, by its mode
// and, where that lets one pass, by the principal that it is not.
func TestPeer_OtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	w := newWorld(t)
	st, err := os.Lstat(w.socket())
	if err != nil || st.Mode() != os.ModeSocket|0o600 {
		t.Errorf("got %v, %v", st.Mode(), err)
	}
	stranger := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533}}
	if err := os.Chmod(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := w.visit(stranger); got != string(fault.StationdUnavailable) {
		t.Errorf("by the mode: %q", got)
	}
	if err := os.Chmod(w.socket(), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := w.visit(stranger); got != string(fault.PeerRefused) {
		t.Errorf("by the principal: %q", got)
	}
	uid := int64(65533)
	p, err := w.AddPrincipal(t.Context(), control.PrincipalRequest{Name: "stranger", UID: &uid})
	if err != nil || p.Secret != "" || *p.UID != uid {
		t.Fatalf("got %+v, %v", p, err)
	}
	if got := w.visit(stranger); got != "" {
		t.Errorf("with a row: %q", got)
	}
	if _, err := w.RevokePrincipal(t.Context(), p.PrincipalID); err != nil {
		t.Fatal(err)
	}
	if got := w.visit(stranger); got != string(fault.PeerRefused) {
		t.Errorf("revoked: %q", got)
	}
}

// Proves station 17.L14 (control socket): a process of the same uid in another network
// namespace that reaches the socket is hung up on.
func TestPeer_OtherNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	w := newWorld(t)
	if got := w.visit(nil); got != "" {
		t.Errorf("a neighbour: %q", got)
	}
	if got := w.visit(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}); got != string(fault.StationdUnavailable) {
		t.Errorf("another network: %q", got)
	}
}

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

// A ticket is for the bridge's own prefix, or for one within it by whole segments; a
// station without a bridge has none.
func TestTicket_WithinTheBridge(t *testing.T) {
	w := newWorld(t)
	id := w.begunOf(`{"profile":"agent","bridge":{"pathPrefix":"/v1/a"}}`)
	for asked, want := range map[string]string{
		"": "/v1/a", "/v1/a": "/v1/a", "/v1/a/": "/v1/a", "/v1/a/b": "/v1/a/b", "/v1/x/../a/b": "/v1/a/b",
		"/": "", "/v1": "", "/v1/ab": "", "/V1/a": "", "/v1/a/../b": "", "/v1/a?x": "", "v1/a": "", "/v1%2fa": "",
	} {
		k, err := w.Ticket(t.Context(), id, control.TicketRequest{Prefix: asked})
		if want == "" {
			wantCode(t, err, fault.TicketScope)
		} else if err != nil || k.Prefix != want {
			t.Errorf("%q: got %q, %v", asked, k.Prefix, err)
		}
	}
	_, err := w.Ticket(t.Context(), w.begunOf(`{"profile":"station"}`), control.TicketRequest{})
	wantCode(t, err, fault.TicketScope)
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

// What the API does not take, and with which status.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	for _, tc := range []struct {
		method, target, body string
		status               int
		code                 fault.Code
	}{
		{"GET", "/", "", 404, fault.NotFound},
		{"GET", "/v1/stations/", "", 404, fault.NotFound},
		{"GET", "/v1//stations", "", 404, fault.NotFound},
		{"GET", "/v2/stations", "", 404, fault.NotFound},
		{"GET", "/s/" + id + "/a/1/", "", 404, fault.NotFound},
		{"PATCH", "/v1/stations", "", 405, fault.MethodNotAllowed},
		{"GET", "/v1/stations/" + id + "/stop", "", 405, fault.MethodNotAllowed},
		{"GET", "/v1/stations?x=1", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?wait=ready&wait=ended", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?wait=soon", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?attempt=0", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?%zz", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "/logs?follow=maybe", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "/evidence?export&verify", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "/evidence?attempt=7", "", 404, fault.NotFound},
		{"GET", "/v1/stations", "{}", 400, fault.InvalidArguments},
		{"POST", "/v1/stations/" + id + "/stop", "{}", 400, fault.InvalidArguments},
		{"POST", "/v1/stations/" + id + "/tickets", "", 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","prefix":"/"}`, 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","more":1}`, 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/"} x`, 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"v1"}`, 400, fault.TicketScope},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","ttl":"1s"}`, 400, fault.TicketScope},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","ttl":"-5m"}`, 400, fault.TicketScope},
		{"POST", "/v1/principals", `{"name":"x","secret":"y"}`, 400, fault.JSONInvalid},
		{"DELETE", "/v1/tickets/tkt_none", "", 404, fault.NotFound},
		{"POST", "/v1/leases/lse_none/release", "{}", 404, fault.NotFound},
		{"POST", "/v1/leases/" + w.leaseOf(id) + "/release", `{"force":true}`, 400, fault.ForceReason},
		{"POST", "/v1/leases/" + w.leaseOf(id) + "/release", `{"reason":"why"}`, 400, fault.InvalidArguments},
		{"POST", "/v1/stations", strings.Repeat("x", control.MaxBody+1), 413, fault.InputTooLarge},
	} {
		status, h, body := w.raw(tc.method, tc.target, tc.body)
		if status != tc.status || errorOf(t, body) != string(tc.code) {
			t.Errorf("%s %s %.40s: got %d %s, want %d %s", tc.method, tc.target, tc.body, status, body, tc.status, tc.code)
		}
		if h.Get("Cache-Control") != "no-store" || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: headers %v", tc.method, tc.target, h)
		}
	}
	if status, h, _ := w.raw("GET", "/v1/stations", ""); status != 200 || h.Get("Cache-Control") != "no-store" {
		t.Errorf("got %d, %v", status, h)
	}
	if len(w.manager.asked) != 0 {
		t.Errorf("a release reached the manager: %v", w.manager.asked)
	}
}

// An unexpected error says nothing of itself to a client, and no error a path; a
// stationd that does not act writes nothing.
func TestRefusals_Hidden(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	for _, tc := range []struct {
		err    error
		status int
		code   fault.Code
	}{
		{errors.New("select from secret_table"), 500, fault.Internal},
		{fault.New(fault.WorkspaceRefused, "copy /private/place/x: no repository").WithHint("look at /private/place"), 409, fault.WorkspaceRefused},
		{fault.New(fault.StoreBusy, "busy"), 503, fault.StoreBusy},
		{fault.New(fault.ModelAccess, "no"), 422, fault.ModelAccess},
		{fault.New(fault.SpecInvalid, "no"), 400, fault.SpecInvalid},
	} {
		w.manager.fail = tc.err
		status, _, body := w.raw("POST", "/v1/stations", spec)
		if status != tc.status || errorOf(t, body) != string(tc.code) || strings.Contains(body, "secret_table") || strings.Contains(body, "/private") {
			t.Errorf("%v: got %d %s", tc.err, status, body)
		}
	}
	w.manager.standby = true
	_, err := w.Ticket(t.Context(), id, control.TicketRequest{Prefix: "/"})
	wantCode(t, err, fault.LeaseHeld)
}

// The client's errors have the code of the server, and its hint.
func TestClient_Errors(t *testing.T) {
	w := newWorld(t)
	w.manager.fail = fault.New(fault.AttemptExists, "it runs").WithHint("stop it")
	_, err := w.Start(t.Context(), []byte(spec), "")
	f, ok := fault.As(err)
	if !ok || f.Code != fault.AttemptExists || f.Message != "it runs" || f.Hint != "stop it" || fault.ExitCode(err) != 1 {
		t.Errorf("got %+v", f)
	}
	w.stop()
	_, err = w.List(t.Context())
	wantCode(t, err, fault.StationdUnavailable)
	if fault.ExitCode(err) != 69 {
		t.Errorf("exit %d", fault.ExitCode(err))
	}
}

// The socket: what is dead or stands still is replaced, what answers is not, and what
// is no socket is left alone.
func TestListen(t *testing.T) {
	w := newWorld(t)
	server := func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return control.New(control.Options{RuntimeDir: w.dir, Store: w.Store, Bell: store.NewDoorbell(w.Store, nil), Manager: w.manager}).Run(ctx, cancel)
	}
	wantCode(t, server(), fault.ListenerUnavailable)
	w.stop()
	hung, err := net.Listen("unix", w.socket()) // takes connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	if err := server(); err != nil {
		t.Errorf("beside one that stands still: %v", err)
	}
	_ = os.Remove(w.socket())
	if err := os.WriteFile(w.socket(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, server(), fault.ListenerUnavailable)
	if st, err := os.Lstat(w.socket()); err != nil || !st.Mode().IsRegular() {
		t.Errorf("got %v, %v", st, err)
	}
}

// An export holds all that a check elsewhere needs, and its pieces are one document.
func TestExport(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	for range 3 {
		w.end(id, `{"n":1}`)
		if _, err := w.Replace(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	if err := w.Export(t.Context(), id, &out); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Schema    string
		Version   int
		StationID string
		Check     control.Check
		Documents []control.Document
		Events    []struct {
			Seq            int64
			Hash, PrevHash string
			Detail         json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != control.ExportSchema || got.StationID != id || len(got.Documents) != 3 || int64(len(got.Events)) != got.Check.Events || len(got.Check.Flaws) != 0 {
		t.Errorf("got %+v", got)
	}
	for i, e := range got.Events[1:] {
		if e.PrevHash != got.Events[i].Hash || e.Seq != got.Events[i].Seq+1 {
			t.Errorf("event %d does not follow", e.Seq)
		}
	}
	if last := got.Events[len(got.Events)-1]; last.Hash != got.Check.Head {
		t.Error("the head is not the last event")
	}
}

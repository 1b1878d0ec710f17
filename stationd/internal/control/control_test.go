package control_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/control"
	"drawbridge/stationd/internal/station"
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
		if st := <-got; err != nil || st.Cleanup != tc.want || st.Detail.AttemptState != "terminal" || (st.Detail.LeaseFailure == "provider_unreachable") == tc.clean {
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

// A status has the name of the spec, and of an attempt that was never ready why.
func TestStatus_Failure(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	if err := w.Store.AppendStationEvent(t.Context(), w.lease, id, 1, station.FailedEvent, map[string]any{
		"reason": "launch_failed", "code": "artifact_refused", "message": "fetch the harness: no", "hint": "do",
	}); err != nil {
		t.Fatal(err)
	}
	if st, err := w.Status(t.Context(), id); err != nil || st.Detail.Failure != nil {
		t.Errorf("of one that runs: %+v, %v", st.Detail, err)
	}
	if _, _, err := w.Store.RequestStop(t.Context(), w.lease, id, 1, store.StopLaunch, "stationd"); err != nil {
		t.Fatal(err)
	}
	st, err := w.Status(t.Context(), id)
	if want := (control.Failure{Code: "artifact_refused", Message: "fetch the harness: no", Hint: "do"}); err != nil || st.Detail.Failure == nil || *st.Detail.Failure != want {
		t.Errorf("got %+v, %v", st.Detail.Failure, err)
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

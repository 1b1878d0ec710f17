package store_test

import (
	"fmt"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// whole fails unless everything of the station is as it was written.
func (w *stationWorld) whole() store.StationCheck {
	w.t.Helper()
	v, err := w.VerifyStation(ctx, w.st.ID)
	w.ok(err)
	if len(v.Flaws) != 0 {
		w.t.Fatalf("flaws: %+v", v.Flaws)
	}
	return v
}

// Proves station 17.V10: one byte changed in any column of any event, or in a document,
// makes the check fail and name the place; so does a missing event or document.
func TestVerify_NamesThePlace(t *testing.T) {
	w := newStationWorld(t)
	w.release(w.end(w.ready(), store.StopOperator))
	count := w.whole().Events
	db := w.raw()
	must(t, db, `DROP TRIGGER station_events_fixed; DROP TRIGGER station_evidence_fixed;
CREATE TABLE kept_events AS SELECT * FROM station_events; CREATE TABLE kept_evidence AS SELECT * FROM station_evidence`)
	type damage struct{ change, place string }
	var all []damage
	for seq := int64(1); seq <= count; seq++ {
		for _, change := range []string{
			`ts = ts + 1`,
			`kind = kind || 'x'`,
			`attempt = coalesce(attempt, 0) + 1`,
			`detail_json = ' ' || detail_json`,
			`detail_json = '{"by":1}'`,
			`hash = CAST('a' || substr(hash, 2) AS BLOB)`,
			`prev_hash = CAST('b' || substr(prev_hash, 2) AS BLOB)`,
		} {
			all = append(all, damage{fmt.Sprintf(`UPDATE station_events SET %s WHERE seq = %d`, change, seq), fmt.Sprintf("event %d", seq)})
		}
	}
	all = append(all,
		damage{`UPDATE station_evidence SET document = replace(document, '1', '2')`, "evidence of attempt 1"},
		damage{`DELETE FROM station_evidence`, "evidence of attempt 1"},
		damage{fmt.Sprintf(`DELETE FROM station_events WHERE seq = %d`, count/2), fmt.Sprintf("event %d", count/2)})
	for _, d := range all {
		must(t, db, d.change)
		v, err := w.VerifyStation(ctx, w.st.ID)
		w.ok(err)
		if len(v.Flaws) == 0 || v.Flaws[0].Place != d.place {
			t.Errorf("%s: flaws %+v, want the first at %s", d.change, v.Flaws, d.place)
		}
		must(t, db, `DELETE FROM station_events; INSERT INTO station_events SELECT * FROM kept_events;
DELETE FROM station_evidence; INSERT INTO station_evidence SELECT * FROM kept_evidence`)
	}
	w.whole()
}

// Without damage done by hand, events and documents are written once.
func TestVerify_AppendOnly(t *testing.T) {
	w := newStationWorld(t)
	w.end(w.ready(), store.StopOperator)
	for _, change := range []string{`UPDATE station_events SET ts = 1`, `UPDATE station_evidence SET ts = 1`} {
		if _, err := w.raw().Exec(change); err == nil {
			t.Errorf("%s went through", change)
		}
	}
}

// Proves station 17.V7: a purge removes whole attempts, the oldest first and only
// those whose lease is released, and the chain still verifies.
func TestPurge_WholeAttempts(t *testing.T) {
	w := newStationWorld(t)
	var ended []store.StationAttempt
	for i := range 3 {
		a := w.ready()
		w.ticket(fmt.Sprint("dbt_", i), 0)
		w.ok(w.AppendStationEvent(ctx, w.main, w.st.ID, 0, "note", map[string]any{"n": int64(i)}))
		a = w.end(a, store.StopOperator)
		if i != 1 {
			w.release(a)
		}
		ended = append(ended, a)
	}
	if more, err := w.PurgeAttempt(ctx, w.main); more || err != nil {
		t.Fatalf("purged before its time: %v", err)
	}
	w.clk.step(store.StationKeep)
	purge := func() (n int) {
		for {
			more, err := w.PurgeAttempt(ctx, w.main)
			w.ok(err)
			w.whole()
			if !more {
				return n
			}
			n++
		}
	}
	before := w.whole().Chain.Count
	if n := purge(); n != 2 {
		t.Errorf("%d attempts were purged, want 2: the lease of one is not released", n)
	}
	left, err := w.StationAttempts(ctx, w.st.ID)
	if err != nil || len(left) != 1 || left[0].Number != 2 {
		t.Errorf("left %+v, %v", left, err)
	}
	w.release(ended[1])
	if n := purge(); n != 1 {
		t.Errorf("%d attempts were purged at last", n)
	}
	db := w.raw()
	for _, table := range []string{"station_attempts", "station_tickets", "station_evidence", "workspace_leases", "station_events WHERE attempt IS NOT NULL"} {
		var n int
		if err := db.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil || n != 0 {
			t.Errorf("%s: %d rows left, %v", table, n, err)
		}
	}
	v := w.whole()
	if v.Events != 1+3+3 || v.Events+v.Purged != v.Chain.Count || v.Chain.Count <= before {
		t.Errorf("checked %+v", v)
	}
	if a := w.begin(); a.Number != 4 {
		t.Errorf("the next attempt is %d", a.Number)
	}
	must(t, db, `DELETE FROM station_events WHERE kind = 'note'`)
	if v, err := w.VerifyStation(ctx, w.st.ID); err != nil || len(v.Flaws) == 0 {
		t.Errorf("events gone beside the purged ones: %+v, %v", v, err)
	}
}

// Beyond their bound events are counted, but a stop and an end are still written.
func TestEvents_Bound(t *testing.T) {
	w := newStationWorld(t)
	a := w.ready()
	must(t, w.raw(), fmt.Sprintf(`UPDATE station_attempts SET events = %d`, store.MaxAttemptEvents))
	w.ok(w.AppendStationEvent(ctx, w.main, w.st.ID, a.Number, "note", map[string]any{}))
	a = w.end(a, store.StopIdle)
	if a.Dropped != 1 || a.Events != store.MaxAttemptEvents+3 {
		t.Errorf("%d dropped of %d", a.Dropped, a.Events)
	}
	wantCode(t, w.AppendStationEvent(ctx, w.main, w.st.ID, 0, "ended", nil), fault.Internal)
	wantCode(t, w.AppendStationEvent(ctx, w.main, w.st.ID, 0, "note", map[string]any{"x": 0.5}), fault.Internal)
}

// What a stationd of this host has to look after at its start.
func TestStation_Unfinished(t *testing.T) {
	w := newStationWorld(t)
	first := w.end(w.ready(), store.StopOperator)
	live := w.launch()
	all, err := w.UnfinishedAttempts(ctx, host)
	w.ok(err)
	if len(all) != 2 || all[0].Attempt.Number != live.Number || all[1].Attempt.Number != first.Number || all[1].Lease.State != store.WorkspaceActive {
		t.Errorf("unfinished %+v", all)
	}
	if other, err := w.UnfinishedAttempts(ctx, "elsewhere"); err != nil || len(other) != 0 {
		t.Errorf("of another host: %+v, %v", other, err)
	}
}

// A lease that cannot be given back is kept, tried again, and ended by force only
// with a reason, which stands in the chain.
func TestWorkspace_CleanupFailed(t *testing.T) {
	w := newStationWorld(t)
	a := w.end(w.ready(), store.StopOperator)
	failed, err := w.WorkspaceCleanupFailed(ctx, w.main, a.LeaseID, []byte(`{"left":["sleep"]}`))
	if err != nil || failed.State != store.WorkspaceFailed || failed.ReleasedAt != 0 {
		t.Fatalf("%+v, %v", failed, err)
	}
	_, err = w.ForceRelease(ctx, w.main, a.LeaseID, w.owner.ID, "", nil)
	wantCode(t, err, fault.ForceReason)
	forced, err := w.ForceRelease(ctx, w.main, a.LeaseID, w.owner.ID, "the disk is gone", []byte(`{"result":"failed"}`))
	if err != nil || forced.State != store.WorkspaceReleased {
		t.Fatalf("%+v, %v", forced, err)
	}
	events, err := w.StationEvents(ctx, w.st.ID, 0, 1000)
	w.ok(err)
	last := events[len(events)-1]
	if want := fmt.Sprintf(`{"by":%q,"lease":%q,"reason":"the disk is gone"}`, w.owner.ID, a.LeaseID); last.Kind != "lease_forced" || string(last.Detail) != want {
		t.Errorf("last event %s %s", last.Kind, last.Detail)
	}
	_, err = w.BeginRelease(ctx, w.main, a.LeaseID)
	wantCode(t, err, fault.LeaseState)
	w.ok(w.Beat(ctx, w.main, w.st.ID, a.Number, store.Beats{Heartbeat: w.Now()}))
	if err := w.BeatWorkspace(ctx, w.main, a.LeaseID, w.Now()+time.Hour.Milliseconds()); !fault.Is(err, fault.LeaseState) {
		t.Errorf("a late beat: %v", err)
	}
}

// A key makes a second try give the station of the first; principals and roles.
func TestStation_KeyAndRoles(t *testing.T) {
	w := newStationWorld(t)
	n := store.NewStation{PrincipalID: w.owner.ID, Profile: "agent", Spec: []byte(`{"name":"y"}`), Key: "k"}
	one, made, err := w.CreateStation(ctx, w.main, n)
	w.ok(err)
	again, remade, err := w.CreateStation(ctx, w.main, n)
	if err != nil || !made || remade || again.ID != one.ID {
		t.Errorf("%s %t, %s %t, %v", one.ID, made, again.ID, remade, err)
	}
	n.Spec = []byte(`{"name":"z"}`)
	_, _, err = w.CreateStation(ctx, w.main, n)
	wantCode(t, err, fault.IdempotencyConflict)
	_, err = w.AddPrincipal(ctx, w.main, store.NewPrincipal{Org: "local", Name: "ann", PeerUID: 7})
	wantCode(t, err, fault.PrincipalExists)
	me, err := w.EnsurePeer(ctx, w.main, "me", 7)
	w.ok(err)
	if same, err := w.EnsurePeer(ctx, w.main, "other", 7); err != nil || same.ID != me.ID {
		t.Errorf("%+v, %v", same, err)
	}
	w.ok(w.GrantRole(ctx, w.main, one.ID, me.ID, store.RoleViewer))
	if role, err := w.Role(ctx, one.ID, me.ID); err != nil || role != store.RoleViewer {
		t.Errorf("role %q, %v", role, err)
	}
	if mine, err := w.Stations(ctx, me.ID); err != nil || len(mine) != 1 || mine[0].ID != one.ID {
		t.Errorf("%+v, %v", mine, err)
	}
	if all, err := w.Stations(ctx, ""); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
	_, err = w.RevokePrincipal(ctx, w.main, me.ID)
	w.ok(err)
	if role, err := w.Role(ctx, one.ID, me.ID); err != nil || role != "" {
		t.Errorf("role %q of a revoked principal, %v", role, err)
	}
	wantCode(t, w.GrantRole(ctx, w.main, one.ID, me.ID, store.RoleOwner), fault.RoleDenied)
}

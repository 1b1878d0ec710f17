package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func newKitRun(n string) store.NewKitRun {
	return store.NewKitRun{
		InvocationID: "i-" + n, KitID: "hello", Dest: "/d", KitHash: "sha256:1", RequestSHA256: "sha256:2",
		ControllerRoot: "/c", OwnerID: "owner-" + n, DeadlineAt: 9,
	}
}

// One run through its states, each move conditional on the last.
func TestKitRun_Life(t *testing.T) {
	w := newWorld(t)
	if err := w.BeginKitRun(ctx, newKitRun("1")); err != nil {
		t.Fatal(err)
	}
	now := w.clk.now().UnixMilli()
	want := store.KitRun{
		InvocationID: "i-1", KitID: "hello", Dest: "/d", KitHash: "sha256:1", RequestSHA256: "sha256:2", ControllerRoot: "/c",
		OwnerID: "owner-1", Holder: w.Holder(), State: "starting", ExitCode: -1, DeadlineAt: 9, StartedAt: now,
	}
	row, err := w.KitRun(ctx, "i-1")
	if diff := cmp.Diff(want, row); diff != "" || err != nil {
		t.Error(err, diff)
	}
	if err := w.KitRunCancelling(ctx, "i-1"); err != nil {
		t.Errorf("cancelling before there is a process: %v", err)
	}
	if err := w.KitRunRunning(ctx, "i-1", 77, "b.1"); err != nil {
		t.Fatal(err)
	}
	if err := w.KitRunRunning(ctx, "i-1", 78, "b.2"); !fault.Is(err, fault.LeaseLost) {
		t.Errorf("two processes: %v", err)
	}
	if err := w.KitRunCancelling(ctx, "i-1"); err != nil {
		t.Fatal(err)
	}
	open, err := w.OpenKitRuns(ctx)
	if err != nil || len(open) != 1 || open[0].State != "cancelling" || open[0].PID != 77 || open[0].Orphan {
		t.Fatalf("open %+v, %v", open, err)
	}
	if ok, err := w.EndKitRun(ctx, "i-1", "somebody else", store.KitRunEnd{State: store.KitRunLost}); ok || err != nil {
		t.Errorf("settled by whom it does not belong to: %t, %v", ok, err)
	}
	end := store.KitRunEnd{State: store.KitRunFinished, Status: "completed", ExitCode: 0, Removed: 2}
	if ok, err := w.EndKitRun(ctx, "i-1", w.Holder(), end); !ok || err != nil {
		t.Fatalf("end: %t, %v", ok, err)
	}
	if ok, err := w.EndKitRun(ctx, "i-1", w.Holder(), end); ok || err != nil {
		t.Errorf("ended twice: %t, %v", ok, err)
	}
	want.State, want.Status, want.ExitCode, want.Removed, want.EndedAt = "finished", "completed", 0, 2, now
	want.PID, want.PIDBirth, want.Revision = 77, "b.1", 3
	all, err := w.KitRuns(ctx)
	if err != nil || len(all) != 1 || cmp.Diff(want, all[0]) != "" {
		t.Errorf("all: %v %s", err, cmp.Diff([]store.KitRun{want}, all))
	}
	if open, err := w.OpenKitRuns(ctx); err != nil || len(open) != 0 {
		t.Errorf("open after the end: %+v, %v", open, err)
	}
}

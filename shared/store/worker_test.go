package store_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func newWorkerRun(n string) store.NewWorkerRun {
	return store.NewWorkerRun{InvocationID: "i-" + n, RunID: "run", OwnerID: "owner-" + n, Image: "sha256:1", ArtifactRoot: "/a", DeadlineAt: 9}
}

// One worker through its states, each move conditional on the last.
func TestWorker_Life(t *testing.T) {
	w := newWorld(t)
	row, err := w.AdmitWorker(ctx, newWorkerRun("1"))
	if err != nil {
		t.Fatal(err)
	}
	now := w.clk.now().UnixMilli()
	want := store.WorkerRun{InvocationID: "i-1", RunID: "run", OwnerID: "owner-1", Holder: w.Holder(), Image: "sha256:1", State: "admitted",
		ArtifactRoot: "/a", DeadlineAt: 9, CreatedAt: now, UpdatedAt: now}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Error(diff)
	}
	if _, err := w.WorkerRunning(ctx, "i-1"); !fault.Is(err, fault.LeaseLost) {
		t.Errorf("running before it was made: %v", err)
	}
	if row, err = w.WorkerCreated(ctx, "i-1", "container"); err != nil {
		t.Fatal(err)
	}
	if row.State != "created" || row.ContainerID != "container" || row.Revision != 1 {
		t.Errorf("created: %+v", row)
	}
	if _, err := w.WorkerCreated(ctx, "i-1", "another"); !fault.Is(err, fault.LeaseLost) {
		t.Errorf("made twice: %v", err)
	}
	if row, err = w.WorkerRunning(ctx, "i-1"); err != nil || row.State != "running" {
		t.Fatalf("running: %+v, %v", row, err)
	}
	if ok, err := w.WorkerEnded(ctx, row, store.WorkerUnverified, "sha256:r"); err != nil || !ok {
		t.Fatalf("unverified: %t, %v", ok, err)
	}
	if ok, err := w.WorkerEnded(ctx, row, store.WorkerRemoved, ""); err != nil || ok {
		t.Errorf("a row that moved is settled: %t, %v", ok, err)
	}
	if row, err = w.Worker(ctx, "i-1"); err != nil || row.State != "unverified" || row.ReceiptDigest != "sha256:r" {
		t.Fatalf("row %+v, %v", row, err)
	}
	if ok, err := w.WorkerEnded(ctx, row, store.WorkerRemoved, ""); err != nil || !ok { // by a sweep, which has no receipt
		t.Fatalf("removed: %t, %v", ok, err)
	}
	if row, err = w.Worker(ctx, "i-1"); err != nil || row.State != "removed" || row.ReceiptDigest != "sha256:r" {
		t.Errorf("row %+v, %v", row, err)
	}
	if ok, err := w.WorkerEnded(ctx, row, store.WorkerUnverified, ""); err != nil || ok {
		t.Errorf("a removed worker comes back: %t, %v", ok, err)
	}
	if _, err := w.WorkerEnded(ctx, row, "running", ""); err == nil {
		t.Error("ended as running")
	}
}

func TestWorker_Refused(t *testing.T) {
	w := newWorld(t)
	if _, err := w.AdmitWorker(ctx, newWorkerRun("1")); err != nil {
		t.Fatal(err)
	}
	_, err := w.AdmitWorker(ctx, newWorkerRun("1"))
	wantCode(t, err, fault.OutputExists)
	_, err = w.Worker(ctx, "absent")
	wantCode(t, err, fault.NotFound)
	other := w.open("kitrun/2/2/x")
	_, err = other.WorkerCreated(ctx, "i-1", "c") // the row of another process
	wantCode(t, err, fault.LeaseLost)
}

// Orphans are rows whose holder is proven dead, and those that were given up.
func TestWorker_Open(t *testing.T) {
	w := newWorld(t)
	other := w.open("kitrun/2/2/x")
	for _, s := range []struct {
		s *store.Store
		n string
	}{{w.Store, "mine"}, {other, "dead"}, {w.Store, "given-up"}, {w.Store, "over"}} {
		if _, err := s.s.AdmitWorker(ctx, newWorkerRun(s.n)); err != nil {
			t.Fatal(err)
		}
		w.clk.add(1)
	}
	for n, state := range map[string]string{"given-up": store.WorkerUnverified, "over": store.WorkerRemoved} {
		row, err := w.Worker(ctx, "i-"+n)
		if err != nil {
			t.Fatal(err)
		}
		if ok, err := w.WorkerEnded(ctx, row, state, ""); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	w.gone["kitrun/2/2/x"] = true
	rows, err := w.OpenWorkers(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, r := range rows {
		got[r.InvocationID] = r.Orphan
	}
	if diff := cmp.Diff(map[string]bool{"i-mine": false, "i-dead": true, "i-given-up": true}, got); diff != "" {
		t.Error(diff)
	}
	if all, err := w.WorkersOfRun(ctx, "run"); err != nil || len(all) != 4 {
		t.Errorf("%d workers of the run, %v", len(all), err)
	}
	if none, err := w.WorkersOfRun(ctx, "other"); err != nil || len(none) != 0 {
		t.Errorf("%d workers of another run, %v", len(none), err)
	}
}

// What is known of an image never changes.
func TestWorker_Image(t *testing.T) {
	w := newWorld(t)
	if _, ok, err := w.WorkerImage(ctx, "sha256:1"); ok || err != nil {
		t.Errorf("an unknown image: %t, %v", ok, err)
	}
	want := store.WorkerImage{Image: "sha256:1", HarnessVersion: "0.171.0", HarnessDigest: "sha256:2", ObservedAt: w.clk.now().UnixMilli()}
	for _, version := range []string{"0.171.0", "other"} {
		if err := w.SaveWorkerImage(ctx, store.WorkerImage{Image: "sha256:1", HarnessVersion: version, HarnessDigest: "sha256:2"}); err != nil {
			t.Fatal(err)
		}
	}
	got, ok, err := w.WorkerImage(ctx, "sha256:1")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

package worker_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

// container makes a container by hand, with labels, and starts it or not.
func (r *rig) container(labels map[string]string, state string) string {
	r.Helper()
	var made struct{ ID string }
	command := []string{"sleep", "300"}
	if state == "exited" {
		command = []string{"true"}
	}
	dockertest.Call(r, http.MethodPost, "/containers/create", map[string]any{"Image": r.opts.Image, "Entrypoint": command,
		"Labels": labels, "HostConfig": map[string]any{"NetworkMode": "none"}}, &made)
	if state != "created" {
		dockertest.Call(r, http.MethodPost, "/containers/"+made.ID+"/start", nil, nil)
	}
	if state == "exited" {
		testkit.Eventually(r, 30*time.Second, func() bool { return r.state(made.ID) == "exited" })
	}
	return made.ID
}

// state gives the state of a container, "" when there is none.
func (r *rig) state(id string) string {
	r.Helper()
	status, body := dockertest.Try(r, http.MethodGet, "/containers/"+id+"/json", nil)
	if status == http.StatusNotFound {
		return ""
	}
	var doc struct{ State struct{ Status string } }
	if err := json.Unmarshal(body, &doc); err != nil {
		r.Fatal(err)
	}
	return doc.State.Status
}

// Proves worker 17.19
func TestDocker_Cancel(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	store := r.deps.Store.ID()
	labels := func(run, owner string) map[string]string {
		return map[string]string{"kontour.worker.run": run, "kontour.worker.owner": owner, "drawbridge.store": store}
	}
	const ownerX, ownerY = "11111111-2222-3333-4444-555555555555", "11111111-2222-3333-4444-666666666666"
	runX, runY := r.opts.RunID, r.opts.RunID+"y" // the one begins like the other
	var ofX []string
	for _, state := range []string{"created", "running", "exited"} {
		ofX = append(ofX, r.container(labels(runX, ownerX), state))
	}
	ofY := r.container(labels(runY, ownerY), "running")

	for _, s := range []worker.Selector{{}, {Run: runX, Owner: ownerX}, {Run: "*"}, {Run: " "}, {Owner: "x"}, {Run: runX + "="}} {
		_, err := worker.Cancel(t.Context(), r.deps, s)
		wantCode(t, err, fault.Usage)
	}
	if n, err := worker.Cancel(t.Context(), r.deps, worker.Selector{Run: runX}); err != nil || n != len(ofX) {
		t.Fatalf("cancelled %d, %v", n, err)
	}
	for _, id := range ofX {
		if got := r.state(id); got != "" {
			t.Errorf("a container of the run is %s", got)
		}
	}
	if got := r.state(ofY); got != "running" {
		t.Errorf("the container of another run is %q", got)
	}
	if n, err := worker.Cancel(t.Context(), r.deps, worker.Selector{Owner: ownerY}); err != nil || n != 1 {
		t.Fatalf("cancelled %d, %v", n, err)
	}
	if got := r.state(ofY); got != "" {
		t.Errorf("the container of the owner is %s", got)
	}
	if n, err := worker.Cancel(t.Context(), r.deps, worker.Selector{Owner: ownerY}); err != nil || n != 0 {
		t.Errorf("nothing to cancel: %d, %v", n, err)
	}
}

// A sweep removes what carries this Store's label and has no living row, and
// touches nothing of other Stores.
func TestDocker_Sweep(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	other := newDocker(t)
	stray := r.container(map[string]string{"drawbridge.store": r.deps.Store.ID(), "drawbridge.invocation": "unknown"}, "running")
	foreign := r.container(map[string]string{"drawbridge.store": other.deps.Store.ID(), "drawbridge.invocation": "unknown"}, "created")
	swept, err := worker.Sweep(t.Context(), r.deps)
	if err != nil || swept != (worker.Swept{Containers: 1}) {
		t.Errorf("swept %+v, %v", swept, err)
	}
	if r.state(stray) != "" || r.state(foreign) != "created" {
		t.Errorf("ours is %q, the foreign one %q", r.state(stray), r.state(foreign))
	}
}

// A worker that runs is not swept away, neither by its own kitrun nor by another.
func TestDocker_SweepWhileRunning(t *testing.T) {
	t.Parallel()
	r := newDocker(t).words("text a.txt a")
	var swept []worker.Swept
	r.deps.Progress = func(e worker.Event) {
		if e.State == worker.StateCreated || e.Codex == "turn.started" {
			s, err := worker.Sweep(context.Background(), r.deps)
			if err != nil {
				t.Error(err)
			}
			swept = append(swept, s)
			all, err := worker.List(context.Background(), r.deps, r.opts.RunID)
			if err != nil || len(all) != 1 || all[0].Container == "" || all[0].Orphan {
				t.Errorf("list: %+v, %v", all, err)
			}
		}
	}
	if receipt := r.run(); !receipt.Completed {
		t.Errorf("got %+v", receipt.Terminal)
	}
	for _, s := range swept {
		if s != (worker.Swept{}) {
			t.Errorf("swept %+v", s)
		}
	}
}

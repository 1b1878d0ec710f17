package worker_test

import (
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
	"drawbridge/shared/workernet"
)

// privateNetwork gives the rig a network name of its own, removed at the end.
func (r *rig) privateNetwork() {
	r.deps.NetworkName = "drawbridge-test-" + uuid.NewString()[:8]
	r.Cleanup(func() {
		if status, said := dockertest.Try(r, http.MethodDelete, "/networks/"+r.deps.NetworkName, nil); status != http.StatusNoContent && status != http.StatusNotFound {
			r.Errorf("remove network: %d %s", status, said)
		}
	})
}

// A network of that name that leads somewhere is refused and left as it is.
//
// Proves worker 17.29
func TestDocker_ForeignNetwork(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	r.privateNetwork()
	r.opts.Network = worker.NetworkIsolated
	var made, before, after map[string]any
	dockertest.Call(t, http.MethodPost, "/networks/create", map[string]any{"Name": r.deps.NetworkName, "Driver": "bridge", "CheckDuplicate": true,
		"Options": map[string]string{workernet.ICCOption: "false"}, "Labels": map[string]string{workernet.Label: workernet.LabelValue}}, &made)
	dockertest.Call(t, http.MethodGet, "/networks/"+r.deps.NetworkName, nil, &before)
	r.refused("network_unqualified:internal")
	r.gone()
	dockertest.Call(t, http.MethodGet, "/networks/"+r.deps.NetworkName, nil, &after)
	if before["Id"] != after["Id"] || after["Internal"] != false {
		t.Errorf("the network changed: %v, then %v", before, after)
	}
}

// Several kitruns that come first make one network.
func TestDocker_NetworkOnce(t *testing.T) {
	t.Parallel()
	r := newDocker(t)
	r.privateNetwork()
	var all sync.WaitGroup
	ids := make(chan string, 4)
	for range cap(ids) {
		d := r.deps
		d.Store = r.openStore()
		all.Go(func() {
			n, err := worker.EnsureNetwork(t.Context(), d)
			if err != nil {
				t.Error(err)
			}
			ids <- n.ID
		})
	}
	all.Wait()
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first || id == "" {
			t.Errorf("networks %q and %q", first, id)
		}
	}
}

// The network socket needs a socket alone in a private directory, and the relay.
func TestRun_SocketUnqualified(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(r *rig, dir string)
		part   string
	}{
		{"no socket", func(r *rig, _ string) { r.opts.BrokerSocket = "" }, "--listen unix:PATH"},
		{"a file", func(r *rig, _ string) { r.opts.BrokerSocket = r.path("workspace/main.txt") }, "not a socket"},
		{"others may enter", func(r *rig, dir string) { chmod(r, dir, 0o755) }, "not private"},
		{"not alone", func(r *rig, dir string) {
			if err := os.WriteFile(dir+"/other", nil, 0o600); err != nil {
				r.Fatal(err)
			}
		}, "2 entries"},
		{"no relay", func(r *rig, _ string) { r.deps.Relay = "" }, "station-shim"},
		{"a relay that does not run", func(r *rig, _ string) { r.deps.Relay = r.path("workspace/main.txt") }, "executable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, f := newFake(t)
			dir := testkit.RuntimeDir(t)
			l, err := net.Listen("unix", dir+"/broker.sock")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			r.opts.Network, r.opts.BrokerSocket = worker.NetworkSocket, dir+"/broker.sock"
			r.deps.Relay = "/bin/sh"
			tc.change(r, dir)
			err = r.refused("network_unqualified")
			if hint := hintOf(err); !strings.Contains(err.Error()+hint, tc.part) {
				t.Errorf("got %v (%s), want %q in it", err, hint, tc.part)
			}
			f.nothingMade()
		})
	}
}

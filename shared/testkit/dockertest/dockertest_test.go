package dockertest_test

import (
	"net/http"
	"testing"

	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// The fake image is there by the id that was printed, and twice the same.
func TestFakeImage(t *testing.T) {
	id := dockertest.FakeImage(t)
	var image struct {
		ID     string
		Config struct{ Labels map[string]string }
	}
	dockertest.Call(t, http.MethodGet, "/images/"+id+"/json", nil, &image)
	if image.ID != id || image.Config.Labels["drawbridge.worker.codex"] != "fake" {
		t.Errorf("got image %q with labels %v, want %q", image.ID, image.Config.Labels, id)
	}
	if again := dockertest.FakeImage(t); again != id {
		t.Errorf("got %q the second time, want %q", again, id)
	}
}

// What a test labels is gone after it, running or not.
func TestSweep(t *testing.T) {
	const label = "drawbridge.test=dockertest-sweep"
	id := dockertest.FakeImage(t)
	var made struct{ ID string }
	t.Run("inner", func(t *testing.T) {
		dockertest.Sweep(t, label)
		dockertest.Call(t, http.MethodPost, "/containers/create", map[string]any{
			"Image": id, "Cmd": []string{"sleep", "60"}, "Labels": map[string]string{"drawbridge.test": "dockertest-sweep"},
			"HostConfig": map[string]any{"NetworkMode": "none"},
		}, &made)
		dockertest.Call(t, http.MethodPost, "/containers/"+made.ID+"/start", nil, nil)
	})
	if status, said := dockertest.Try(t, http.MethodGet, "/containers/"+made.ID+"/json", nil); status != http.StatusNotFound {
		t.Errorf("got status %d: %s, want that the container is gone", status, said)
	}
}

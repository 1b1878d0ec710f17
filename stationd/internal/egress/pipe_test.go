package egress_test

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/egress"
)

// unixRig listens where the shim's relay connects in life.
func unixRig(t *testing.T, limits egress.Limits) *rig {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(testkit.RuntimeDir(t), "egress.sock"))
	if err != nil {
		t.Fatal(err)
	}
	r := newRigOn(t, l, egress.Profile{Allow: []string{"a.test"}, Limits: limits}, nil)
	r.names["a.test"] = []netip.Addr{public}
	return r
}

// Proves station 17.E11: all bytes up to the limit arrive, as they were sent, and
// none after it.
func TestLimitsAreExact(t *testing.T) {
	const limit = 3<<20 + 1 // more than what a tunnel holds
	sent := make([]byte, limit+1000)
	_, _ = rand.Read(sent)
	check := func(t *testing.T, got []byte, counted int64) {
		t.Helper()
		if !bytes.Equal(got, sent[:limit]) || counted != limit {
			t.Errorf("%d bytes arrived and %d were counted, want the first %d", len(got), counted, limit)
		}
	}
	t.Run("down", func(t *testing.T) {
		r := unixRig(t, egress.Limits{BytesDown: limit})
		r.listen(func(c net.Conn) { _, _ = c.Write(sent) })
		status, c := r.connect("a.test:443")
		if status != http.StatusOK {
			t.Fatal(status)
		}
		got, _ := io.ReadAll(c)
		r.stop()
		check(t, got, r.proxy.Summary().BytesDown)
	})
	t.Run("up", func(t *testing.T) {
		r := unixRig(t, egress.Limits{BytesUp: limit})
		arrived := make(chan []byte, 1)
		r.listen(func(c net.Conn) {
			got, _ := io.ReadAll(c)
			arrived <- got
		})
		status, c := r.connect("a.test:443")
		if status != http.StatusOK {
			t.Fatal(status)
		}
		_, _ = c.Write(sent) // fails once the tunnel is cut
		got := <-arrived
		r.stop()
		check(t, got, r.proxy.Summary().BytesUp)
	})
}

// A tunnel with little traffic is not silent, and what is little does not wait.
func TestSlowTrafficKeepsATunnel(t *testing.T) {
	t.Parallel()
	const idle = 2 * time.Second
	r := unixRig(t, egress.Limits{IdleMS: idle.Milliseconds()})
	r.listen(func(c net.Conn) { _, _ = io.Copy(c, c) })
	status, c := r.connect("a.test:443")
	if status != http.StatusOK {
		t.Fatal(status)
	}
	tick := time.NewTicker(idle / 10)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < idle*3/2; <-tick.C {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
}

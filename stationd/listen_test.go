package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"drawbridge/shared/testkit"
)

// Proves station 17.P2: an address that others can reach is refused with status 2,
// whoever opens it.
func TestServe_ListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":8080", "192.0.2.1:80", "[fe80::1]:80", "localhost:0", "example.com:80", "127.0.0.1", "*:80"} {
		_, errs, status := w.stationd("serve", "-listen", address)
		if status != 2 || !strings.Contains(errs, "[listen_not_loopback]") {
			t.Errorf("%s: status %d, %s", address, status, errs)
		}
	}
	testkit.Need(t, "systemd-socket-activate")
	port := freePort(t)
	d := w.activated("0.0.0.0:"+port, "bridge")
	d.poke(port)
	d.exits(2)
	if _, err := os.Stat(w.path("store")); err == nil {
		t.Error("the Store was opened before the refusal")
	}
}

// Proves station 17.C6: the listener of a socket unit, named bridge, serves the first
// request.
func TestServe_Activated(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "systemd-socket-activate")
	w := newWorld(t)
	port := freePort(t)
	d := w.activated("127.0.0.1:"+port, "bridge")
	// The first connection is what starts it; its request waits until the gate serves.
	resp, err := http.Get("http://127.0.0.1:" + port + "/s/stn_none/a/1/")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 401 {
		t.Errorf("got %d", resp.StatusCode)
	}
	d.told("READY=1")
	started := w.start()
	if want := "http://127.0.0.1:" + port + "/s/" + started.StationID + "/a/1"; started.Bridge.URL != want {
		t.Errorf("got %s, want %s", started.Bridge.URL, want)
	}
	if status, _ := w.get(w.visitor(started.StationID), started.Bridge.URL+"/health"); status != 200 {
		t.Errorf("got %d", status)
	}
}

// A listener that is not named bridge, or beside -listen, is a mistake.
func TestServe_ActivatedWrongly(t *testing.T) {
	t.Parallel()
	testkit.Need(t, "systemd-socket-activate")
	w := newWorld(t)
	port := freePort(t)
	d := w.activated("127.0.0.1:"+port, "other")
	d.poke(port)
	d.exits(69)
	port = freePort(t)
	d = w.activated("127.0.0.1:"+port, "bridge", "-listen", "127.0.0.1:0")
	d.poke(port)
	d.exits(2)
}

// activated runs stationd behind systemd-socket-activate, which waits for a first
// connection.
func (w *world) activated(address, name string, args ...string) *child {
	w.t.Helper()
	pass := []string{"-l", address, "--fdname=" + name}
	for _, v := range []string{"HOME", "PATH", "STATIOND_STORE_DIR", "STATIOND_RUNTIME_DIR", "STATIOND_STATE_DIR", "NOTIFY_SOCKET"} {
		pass = append(pass, "-E", v)
	}
	pass = append(pass, w.path("bin", "stationd"), "serve", "-log-level", "debug")
	d := w.run(exec.Command("systemd-socket-activate", append(pass, args...)...), false, nil)
	testkit.Eventually(w.t, limit, func() bool { return strings.Contains(d.log.String(), "Listening on "+address) })
	return d
}

// poke connects once, so that the program is started.
func (d *child) poke(port string) {
	d.t.Helper()
	c, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		d.t.Fatal(err)
	}
	c.Close()
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
}

// Proves station 17.H6: no control route exists on TCP: each is what any other path
// is, with and without a ticket, and no answer sets a cookie or a CORS header.
func TestServe_NoControlOnTCP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	started := w.start()
	v := w.visitor(started.StationID)
	base := strings.TrimSuffix(started.Bridge.URL, started.Bridge.Path)
	for _, r := range [][2]string{
		{"POST", "/v1/stations"}, {"GET", "/v1/stations"}, {"GET", "/v1/stations/" + started.StationID}, {"POST", "/v1/stations/" + started.StationID + "/stop"},
		{"POST", "/v1/stations/" + started.StationID + "/attempts"}, {"GET", "/v1/stations/" + started.StationID + "/logs"},
		{"POST", "/v1/stations/" + started.StationID + "/tickets"}, {"DELETE", "/v1/tickets/tkt_a"}, {"PUT", "/v1/stations/" + started.StationID + "/members/prn_a"},
		{"GET", "/v1/principals"}, {"POST", "/v1/principals"}, {"DELETE", "/v1/principals/" + v.id}, {"GET", "/v1/stations/" + started.StationID + "/evidence"},
		{"POST", "/v1/leases/lse_a/release"},
	} {
		for _, who := range []visitor{{}, v} {
			status, h, body := w.request(r[0], base+r[1], who)
			other, _, otherBody := w.request(r[0], base+"/no/such/path", who)
			if status != other || body != otherBody || status < 400 {
				t.Errorf("%v: %d %s, and %d %s for a path that is not there", r, status, body, other, otherBody)
			}
			for name := range h {
				if name == "Set-Cookie" || strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%v: header %s", r, name)
				}
			}
		}
	}
	if st := w.status(started.StationID); st.State != "running" {
		t.Errorf("got %+v", st)
	}
}

// A gate on a unix socket knows its visitors by their uid.
func TestServe_UnixGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := w.path("gate.sock")
	w.serve("-listen", "unix:"+path)
	started := w.start()
	if started.Bridge.URL != "" || started.Bridge.Path != "/s/"+started.StationID+"/a/1" {
		t.Errorf("got %+v", started.Bridge)
	}
	ticket := strings.TrimSpace(w.must("ticket", started.StationID))
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	r, err := http.NewRequest("GET", "http://localhost"+started.Bridge.Path+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Drawbridge-Ticket", ticket)
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("got %d", resp.StatusCode)
	}
}

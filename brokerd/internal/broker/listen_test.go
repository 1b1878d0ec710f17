package broker_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"drawbridge/brokerd/internal/broker"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/shared/testkit"
)

func TestParseListen(t *testing.T) {
	for value, ok := range map[string]bool{
		"auto": true, "all": true, "all:80": true, "127.0.0.1": true, "127.0.0.1:80": true, "::1": true, "[::1]": true, "[::1]:80": true,
		"unix:/run/b.sock": true,
		"":                 false, "auto:80": false, "all:": false, "all:x": false, "all:65536": false, "allx": false, "all80": false,
		"localhost": false, "localhost:80": false, ":80": false, "127.0.0.1:": false, "127.0.0.1:-1": false, "fe80::1%eth0": false,
		"unix:": false, "unix:b.sock": false, "unix:/run/../b": false, "unix:/run/": false, "10.0.0.0/8": false,
	} {
		if _, err := broker.ParseListen(value); (err == nil) != ok || err != nil && !fault.Is(err, fault.Usage) {
			t.Errorf("%q: got %v, want accepted %t", value, err, ok)
		}
	}
}

func TestCheckHost(t *testing.T) {
	for value, ok := range map[string]bool{
		"host.docker.internal": true, "192.0.2.1": true, "2001:db8::1": true,
		"": false, "example.com": false, "localhost": false, "192.0.2.1:80": false, "host.docker.internal.": false, "fe80::1%x": false,
	} {
		if err := broker.CheckHost(value); (err == nil) != ok {
			t.Errorf("%q: got %v", value, err)
		}
	}
}

func TestCheckLoopback(t *testing.T) {
	for value, ok := range map[string]bool{
		"127.0.0.1:9": true, "[::1]:9": true, "127.9.9.9:0": true,
		"": false, ":9": false, "0.0.0.0:9": false, "192.0.2.1:9": false, "localhost:9": false, "[::]:9": false,
	} {
		if err := broker.CheckLoopback(value); (err == nil) != ok {
			t.Errorf("%q: got %v", value, err)
		}
	}
}

// engine is a container engine that answers as told.
type engine struct {
	info     string
	networks []any
	create   int // status of the answer to a new network
	made     []any
}

func (e *engine) listen(t *testing.T) (host string) {
	t.Helper()
	path := filepath.Join(testkit.RuntimeDir(t), "e.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1.41/info", func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(e.info)) })
	mux.HandleFunc("GET /v1.41/networks", func(w http.ResponseWriter, _ *http.Request) { json.NewEncoder(w).Encode(e.networks) })
	mux.HandleFunc("POST /v1.41/networks/create", func(w http.ResponseWriter, r *http.Request) {
		var n map[string]any
		json.NewDecoder(r.Body).Decode(&n)
		e.made = append(e.made, n)
		if e.create != 0 {
			w.WriteHeader(e.create)
			w.Write([]byte(`{"message":"Pool overlaps with other one on this address space"}`))
			return
		}
		n["IPAM"].(map[string]any)["Config"] = []any{map[string]any{"Subnet": "127.0.0.0/8", "Gateway": "127.0.0.1"}} // a gateway that this machine has
		e.networks = append(e.networks, n)
		w.Write([]byte(`{"Id":"n1"}`))
	})
	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: mux}}
	server.Start()
	t.Cleanup(server.Close)
	return "unix://" + path
}

func network(name, subnet, gateway string, change map[string]any) map[string]any {
	n := map[string]any{
		"Id": name, "Name": name, "Driver": "bridge", "Internal": true,
		"IPAM":    map[string]any{"Config": []any{map[string]any{"Subnet": subnet, "Gateway": gateway}}},
		"Options": map[string]string{"com.docker.network.bridge.enable_icc": "false"}, "Labels": map[string]string{"drawbridge.network": "workers"},
	}
	for k, v := range change {
		n[k] = v
	}
	return n
}

// Where auto listens, and why, by what the engine says (broker §3).
func TestDecide(t *testing.T) {
	native := `{"OSType":"linux","OperatingSystem":"Debian GNU/Linux 12"}`
	bridge := network("bridge", "127.0.0.0/8", "127.0.0.1", nil)
	for name, tc := range map[string]struct {
		engine *engine
		host   string
		addr   string
		reason string
	}{
		"remote":        {nil, "tcp://192.0.2.1:2375", "", "the container engine is not on a socket of this machine"},
		"none":          {nil, "unix:///nonexistent/docker.sock", "", "no container engine answers"},
		"desktop":       {&engine{info: `{"OSType":"linux","OperatingSystem":"Docker Desktop"}`}, "", "", "the container engine runs in a machine of its own"},
		"windows":       {&engine{info: `{"OSType":"windows","OperatingSystem":"Windows"}`}, "", "", "the container engine runs in a machine of its own"},
		"no JSON":       {&engine{info: `<html>`}, "", "", "no container engine answers"},
		"made":          {&engine{info: native, networks: []any{bridge}}, "", "127.0.0.1", "gateway of network n"},
		"there":         {&engine{info: native, networks: []any{bridge, network("n", "127.0.0.0/8", "127.0.0.1", nil)}}, "", "127.0.0.1", "gateway of network n"},
		"name in part":  {&engine{info: native, create: 500, networks: []any{bridge, network("nn", "127.0.0.0/8", "127.0.0.1", nil)}}, "", "127.0.0.1", "gateway of the default bridge"},
		"not internal":  {&engine{info: native, networks: []any{bridge, network("n", "127.0.0.0/8", "127.0.0.1", map[string]any{"Internal": false})}}, "", "127.0.0.1", "gateway of the default bridge"},
		"foreign":       {&engine{info: native, networks: []any{bridge, network("n", "127.0.0.0/8", "127.0.0.1", map[string]any{"Labels": nil})}}, "", "127.0.0.1", "gateway of the default bridge"},
		"twice":         {&engine{info: native, networks: []any{bridge, network("n", "127.0.0.0/8", "127.0.0.1", nil), network("n", "127.0.0.0/8", "127.0.0.1", nil)}}, "", "127.0.0.1", "gateway of the default bridge"},
		"not ours":      {&engine{info: native, networks: []any{bridge, network("n", "192.0.2.0/24", "192.0.2.99", nil)}}, "", "127.0.0.1", "gateway of the default bridge"},
		"not named":     {&engine{info: native, create: 500, networks: []any{network("bridge", "127.0.0.0/8", "", nil)}}, "", "127.0.0.1", "gateway of the default bridge"},
		"nothing local": {&engine{info: native, create: 500, networks: []any{network("bridge", "240.0.0.0/24", "240.0.0.1", nil)}}, "", "", "no gateway of the container engine is an address of this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := store.Open(t.Context(), store.Options{Dir: testkit.StoreDir(t), Program: "test"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			host := tc.host
			if tc.engine != nil {
				host = tc.engine.listen(t)
			}
			addr, reason := broker.Decide(t.Context(), s, host, "n")
			if addr != tc.addr || reason != tc.reason {
				t.Errorf("got %q, %q, want %q, %q", addr, reason, tc.addr, tc.reason)
			}
			leases, err := s.Leases(t.Context(), store.WorkerNetworkLease())
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range leases {
				if l.Live {
					t.Error("the lease is still held")
				}
			}
			if name != "made" {
				return
			}
			made, err := json.Marshal(tc.engine.made)
			if err != nil || len(tc.engine.made) != 1 || !strings.Contains(string(made), `"Internal":true`) || !strings.Contains(string(made), `"com.docker.network.bridge.enable_icc":"false"`) {
				t.Errorf("made %s, %v", made, err)
			}
		})
	}
}

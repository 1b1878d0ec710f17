package worker_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/dockertest"
	"drawbridge/shared/testkit/nettest"
)

// The stand-ins, each in a network namespace of the test's own.
const (
	publicAddr   = "203.0.113.1:80"
	metadataAddr = "169.254.169.254:80"
	hostAddr     = "203.0.113.254" // an address of the host that is not the gateway
	publicName   = "planks.example.org"
	resolved     = "203.0.113.7"
)

// What a container finds when it tries an address.
const (
	isOpen        = "open"
	isRefused     = "refused"
	isTimeout     = "timeout"
	isUnreachable = "unreachable"
	isFailed      = "failed"
)

// otherPort is where the second worker listens.
const otherPort = "9000"

// tableWait bounds what the test waits for.
const tableWait = 30 * time.Second

// world is what the cells of the table are tried against.
type world struct {
	*testing.T
	resolvers    [2]*nettest.Server // the configured one at an address of the host, and one on its loopback
	service      string             // port of a host service on all addresses
	workersName  string
	workersAddr  string // gateway of the workers' network
	workersPort  string // of the broker there
	bridgeAddr   string // gateway of the default bridge
	bridgePort   string // of the broker there
	brokerSocket string
}

// Every cell of the table of worker §6, by real workers and real sockets: what a
// container reaches in each network, the broker apart from everything else.
//
// Proves worker 17.27 and worker 17.28
func TestNetworkTable(t *testing.T) {
	if nettest.Isolate(t) {
		return
	}
	w := newWorld(t)
	const noRoute = isUnreachable

	t.Run("bridge", func(t *testing.T) {
		w := w.in(t)
		other, stop := w.other(worker.NetworkBridge)
		defer stop()
		w.cells(worker.NetworkBridge, w.bridgePort, map[string]string{
			"connect host.docker.internal:" + w.bridgePort:   isOpen,
			"connect " + publicAddr:                          isOpen,
			"connect " + metadataAddr:                        isOpen,
			"connect host.docker.internal:" + w.service:      isOpen,
			"connect " + hostAddr + ":" + w.bridgePort:       isRefused,
			"connect " + other + ":" + otherPort:             isOpen,
			"lookup " + publicName:                           resolved,
			"connect " + w.workersAddr + ":" + w.workersPort: isOpen, // as every address of the host
		})
		if w.resolvers[0].Hits() == 0 {
			t.Error("the name server was never asked: its silence elsewhere would prove nothing")
		}
	})

	isolated := func(w *world, other, services string) {
		before := w.asked()
		elsewhere := isRefused
		if services == isTimeout {
			elsewhere = isTimeout // dropped before anything could refuse
		}
		w.cells(worker.NetworkIsolated, w.workersPort, map[string]string{
			"connect host.docker.internal:" + w.workersPort: isOpen,
			"connect " + publicAddr:                         isTimeout,
			"connect " + metadataAddr:                       isTimeout,
			"connect host.docker.internal:" + w.service:     services,
			"connect " + hostAddr + ":" + w.service:         services,
			"connect " + hostAddr + ":" + w.workersPort:     elsewhere,
			"connect " + w.bridgeAddr + ":" + w.workersPort: elsewhere,
			"connect " + other + ":" + otherPort:            isTimeout,
			"lookup " + publicName:                          isFailed,
		})
		if got := w.asked(); got != before {
			w.Errorf("the name servers were asked %d times", got-before)
		}
	}
	t.Run("isolated", func(t *testing.T) {
		w := w.in(t)
		other, stop := w.other(worker.NetworkIsolated)
		defer stop()
		isolated(w, other, isOpen)
	})
	t.Run("isolated with host rules", func(t *testing.T) {
		w := w.in(t)
		// Before the rules, which let no answer through to the host's own look at it.
		other, stop := w.other(worker.NetworkIsolated)
		defer stop()
		before := w.firewall()
		w.rules("apply")
		isolated(w, other, isTimeout)
		once := w.firewall()
		w.rules("apply")
		if twice := w.firewall(); twice != once {
			t.Errorf("a second apply changed the rules:\n%s\nafter the first:\n%s", twice, once)
		}
		w.rules("remove")
		if after := w.firewall(); after != before {
			t.Errorf("the firewall after remove:\n%s\nbefore apply:\n%s", after, before)
		}
	})

	t.Run("socket", func(t *testing.T) {
		w := w.in(t)
		before := w.asked()
		got := w.cells(worker.NetworkSocket, "8787", map[string]string{
			"connect host.docker.internal:8787":              isOpen, // the relay
			"lookup host.docker.internal":                    "127.0.0.1",
			"interfaces":                                     "lo 127.0.0.1/8",
			"connect " + publicAddr:                          noRoute,
			"connect " + metadataAddr:                        noRoute,
			"connect " + hostAddr + ":" + w.service:          noRoute,
			"connect " + hostAddr + ":" + w.workersPort:      noRoute,
			"connect " + w.workersAddr + ":" + w.workersPort: noRoute,
			"lookup " + publicName:                           isFailed,
			"respond how many planks?":                       "200 twelve",
		})
		if services := got.Observed.NetworkHostServices; services != "none" {
			t.Errorf("the receipt says of the host's services %q, want none", services)
		}
		if got := w.asked(); got != before {
			t.Errorf("the name servers were asked %d times", got-before)
		}
	})

	t.Run("resolver", w.unset)

	t.Run("none", func(t *testing.T) {
		w := w.in(t)
		w.cells(worker.NetworkNone, w.workersPort, map[string]string{
			"connect host.docker.internal:" + w.workersPort: isRefused, // its own lo
			"connect " + publicAddr:                         noRoute,
			"connect " + metadataAddr:                       noRoute,
			"connect " + hostAddr + ":" + w.service:         noRoute,
			"lookup " + publicName:                          isFailed,
		})
	})
}

// newWorld makes the stand-ins, the engine, and the broker's three listeners.
func newWorld(t *testing.T) *world {
	t.Helper()
	var here *nettest.World
	outside := nettest.NewWorld(t, "pub", hostAddr+"/24", "203.0.113.1/24")
	metadata := nettest.NewWorld(t, "meta", "169.254.169.1/24", "169.254.169.254/24")
	for _, s := range []*nettest.Server{outside.TCP(t, publicAddr), metadata.TCP(t, metadataAddr)} {
		nettest.Dial(t, s.Addr)
	}
	w := &world{T: t, workersName: "drawbridge-workers"}
	w.resolvers[0] = here.Names(t, hostAddr+":53", net.ParseIP(resolved))
	w.resolvers[1] = here.Names(t, "127.0.0.1:53", net.ParseIP(resolved))
	nettest.Resolver(t, hostAddr)
	w.service = port(here.TCP(t, "0.0.0.0:0"))
	nettest.Engine(t)

	r := newDocker(t)
	network, err := worker.EnsureNetwork(t.Context(), r.deps)
	if err != nil {
		t.Fatal(err)
	}
	w.workersAddr = network.Gateway.String()
	w.workersPort = port(here.TCP(t, w.workersAddr+":0"))
	w.bridgeAddr = deviceAddr(t, "docker0")
	w.bridgePort = port(here.TCP(t, w.bridgeAddr+":0"))
	w.brokerSocket = model(t)
	return w
}

// deviceAddr is the IPv4 address of an interface.
func deviceAddr(t *testing.T, name string) string {
	t.Helper()
	device, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := device.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addrs {
		if ip, _, err := net.ParseCIDR(addr.String()); err == nil && ip.To4() != nil {
			return ip.String()
		}
	}
	t.Fatalf("%s has no IPv4 address: %v", name, addrs)
	return ""
}

func port(s *nettest.Server) string {
	_, port, _ := net.SplitHostPort(s.Addr)
	return port
}

// model answers every request at a socket in a private directory.
func model(t *testing.T) string {
	t.Helper()
	socket := filepath.Join(testkit.RuntimeDir(t), "broker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/responses" {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, "twelve")
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { _ = server.Close(); serving.Wait() })
	return socket
}

// in is the world of a subtest.
func (w *world) in(t *testing.T) *world {
	c := *w
	c.T = t
	return &c
}

// asked is how often a name server was asked.
func (w *world) asked() int64 { return w.resolvers[0].Hits() + w.resolvers[1].Hits() }

// rig is a run in the network, with the broker at port.
func (w *world) rig(network, port string) *rig {
	r := newDocker(w.T)
	r.opts.Network = network
	r.opts.ProviderProxy.BaseURL = "http://host.docker.internal:" + port
	if network == worker.NetworkSocket {
		r.opts.BrokerSocket = w.brokerSocket
		r.deps.Relay = dockertest.Relay(w.T)
	}
	return r
}

// cells runs one worker that tries every word, and compares what it found.
func (w *world) cells(network, port string, want map[string]string) worker.Receipt {
	w.Helper()
	var words []string
	wait := map[string]string{}
	for _, word := range slices.Sorted(maps.Keys(want)) {
		if strings.HasPrefix(word, "connect ") {
			// Silence takes its time; any other answer may come late on a busy machine.
			if wait[word] = " 20s"; want[word] == isTimeout {
				wait[word] = " 1s"
			}
		}
		words = append(words, word+wait[word])
	}
	receipt := w.rig(network, port).words(words...).run()
	if receipt.Observed.NetworkMode != network {
		w.Errorf("the receipt says network %q, want %q", receipt.Observed.NetworkMode, network)
	}
	got := reports(w.T, receipt)
	for word := range want {
		if got := got[word+wait[word]]; got != want[word] {
			w.Errorf("%s: %s: got %q, want %q", network, word, got, want[word])
		}
	}
	return receipt
}

// other is a second worker that listens, and what ends it.
func (w *world) other(network string) (addr string, stop func()) {
	w.Helper()
	port := w.workersPort
	if network == worker.NetworkBridge {
		port = w.bridgePort
	}
	r := w.rig(network, port).words("listen 0.0.0.0:"+otherPort, "hang")
	ctx, cancel := context.WithCancel(w.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := worker.Run(ctx, r.opts, r.deps)
		ended <- err
	}()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			w.Errorf("the other worker: %v", err)
		}
	}
	filter := url.QueryEscape(`{"label":["kontour.worker.run=` + r.opts.RunID + `"]}`)
	testkit.EventuallyNil(w.T, tableWait, func() error {
		var found []struct {
			NetworkSettings struct {
				Networks map[string]struct{ IPAddress string }
			}
		}
		dockertest.Call(w.T, http.MethodGet, "/containers/json?filters="+filter, nil, &found)
		for _, c := range found {
			for _, n := range c.NetworkSettings.Networks {
				addr = n.IPAddress
			}
		}
		if addr == "" {
			return fmt.Errorf("the other worker has no address: %v", found)
		}
		// The host reaches every container: it listens.
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(addr, otherPort), time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return addr, stop
}

// rules runs the operator's script.
func (w *world) rules(verb string) {
	w.Helper()
	args := []string{verb, "-network", w.workersName, "-port", w.workersPort}
	script := filepath.Join(testkit.Root(), "scripts", "worker-firewall")
	if out, err := exec.Command(script, args...).CombinedOutput(); err != nil {
		w.Fatalf("worker-firewall %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// firewall is what the host lets in.
func (w *world) firewall() string {
	w.Helper()
	out, err := exec.Command("iptables", "-S", "INPUT").CombinedOutput()
	if err != nil {
		w.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// unset tries containers that are no workers: a name server at an address of the
// host is asked from an internal network, too, when a container names no server of
// its own. That is the reason for the setting, and the proof that the silence of the
// table means something.
func (w *world) unset(t *testing.T) {
	names, image := w.resolvers[0], dockertest.FakeImage(t)
	label := map[string]string{"drawbridge.test": "resolver-" + fmt.Sprint(os.Getpid())}
	dockertest.Sweep(t, "drawbridge.test="+label["drawbridge.test"])
	dockertest.Call(t, http.MethodPost, "/networks/create", map[string]any{
		"Name": "resolver", "Driver": "bridge", "Internal": true, "Labels": label,
	}, nil)
	for _, tc := range []struct {
		name  string
		dns   []string
		asked bool
	}{
		{"none", nil, true},
		{"loopback", []string{"127.0.0.1"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := names.Hits()
			var made struct{ ID string }
			dockertest.Call(t, http.MethodPost, "/containers/create", map[string]any{
				"Image": image, "Cmd": []string{"codex", "exec", "-"}, "Env": []string{"FAKE_CODEX=lookup " + publicName}, "Labels": label,
				"HostConfig": map[string]any{"NetworkMode": "resolver", "Dns": tc.dns},
			}, &made)
			dockertest.Call(t, http.MethodPost, "/containers/"+made.ID+"/start", nil, nil)
			var ended struct{ StatusCode int }
			dockertest.Call(t, http.MethodPost, "/containers/"+made.ID+"/wait", nil, &ended)
			if ended.StatusCode != 0 {
				t.Errorf("the container ended with %d", ended.StatusCode)
			}
			if got := names.Hits() > before; got != tc.asked {
				t.Errorf("the name server was asked: %v, want %v", got, tc.asked)
			}
		})
	}
}

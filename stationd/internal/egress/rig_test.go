package egress_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/egress"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

// patience bounds what a test waits for.
const patience = 10 * time.Second

// public stands for an address somewhere; it is never dialled, the rig's dialer
// leads to the test's own server.
var public = netip.MustParseAddr("93.184.216.34")

// rig is a proxy with a world of its own.
type rig struct {
	t     *testing.T
	proxy *egress.Proxy
	net   string // where it listens
	at    string
	stop  func() // ends Run, and waits for it

	mu      sync.Mutex
	names   map[string][]netip.Addr
	lookups []string
	dialled []netip.AddrPort
	world   string // where all dials lead
}

// LookupNetIP answers from names.
func (r *rig) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := strings.TrimSuffix(host, ".")
	r.lookups = append(r.lookups, name)
	if found := r.names[name]; found != nil {
		return found, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (r *rig) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	r.mu.Lock()
	r.dialled = append(r.dialled, to)
	world := r.world
	r.mu.Unlock()
	if world == "" {
		return nil, fmt.Errorf("nobody is at %s", to)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", world)
}

// newRig starts a proxy; change may alter its options.
func newRig(t *testing.T, profile egress.Profile, change func(*egress.Options)) *rig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newRigOn(t, l, profile, change)
}

// newRigOn starts a proxy that listens at l.
func newRigOn(t *testing.T, l net.Listener, profile egress.Profile, change func(*egress.Options)) *rig {
	t.Helper()
	r := &rig{t: t, names: map[string][]netip.Addr{}}
	if profile.Name == "" {
		profile.Name = "test"
	}
	opts := egress.Options{
		Profile: profile, Enforcement: egress.Netns, Resolver: r, Dial: r.dial,
		Local: func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("93.184.216.99")}, nil },
	}
	if change != nil {
		change(&opts)
	}
	proxy, err := egress.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Run(ctx, l) }()
	r.proxy, r.net, r.at = proxy, l.Addr().Network(), l.Addr().String()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// serve makes handler the world.
func (r *rig) serve(handler http.HandlerFunc) *httptest.Server {
	server := httptest.NewServer(handler)
	r.t.Cleanup(server.Close)
	r.lead(server.Listener.Addr().String())
	return server
}

// listen makes a TCP service the world; each connection is handled once.
func (r *rig) listen(handle func(net.Conn)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { defer c.Close(); handle(c) })
		}
	})
	r.t.Cleanup(func() { r.stop(); l.Close(); work.Wait() })
	r.lead(l.Addr().String())
}

func (r *rig) lead(world string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.world = world
}

// connect asks for a tunnel and gives the status, and the connection when it is open.
func (r *rig) connect(target string) (int, net.Conn) {
	r.t.Helper()
	c, err := net.Dial(r.net, r.at)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n", target)
	reader := bufio.NewReader(c)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		r.t.Fatalf("connect %s: %v", target, err)
	}
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		if response.StatusCode == http.StatusForbidden && string(body) != "denied by the egress profile\n" {
			r.t.Errorf("connect %s: body %q", target, body)
		}
		c.Close()
		return response.StatusCode, nil
	}
	return response.StatusCode, &conn{c, reader}
}

// conn reads on behind what was buffered.
type conn struct {
	net.Conn
	io.Reader
}

func (c *conn) Read(b []byte) (int, error) { return c.Reader.Read(b) }

// client is an HTTP client behind the proxy.
func (r *rig) client() *http.Client {
	transport := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: r.at})}
	r.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: patience}
}

// denied gives "host:port code×count" of the record.
func denied(s egress.Summary) []string { return rows(s.Denied) }

func rows(in []egress.Row) []string {
	out := []string{}
	for _, r := range in {
		out = append(out, fmt.Sprintf("%s:%d %s×%d", r.Host, r.Port, r.Code, r.Count))
	}
	return out
}

// eventually polls.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func private(cidr string, ports ...uint16) egress.Private {
	return egress.Private{CIDR: cidr, Ports: ports, ReviewedBy: "ops", ReviewedAt: "2026-01-31", Reason: "test"}
}

package relay_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/relay"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

const wait = 10 * time.Second

// far is a socket; each connection is given to serve.
func far(t *testing.T, serve func(*net.UnixConn)) string {
	t.Helper()
	socket := filepath.Join(testkit.RuntimeDir(t), "far.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			serving.Go(func() { defer conn.Close(); serve(conn) })
		}
	})
	t.Cleanup(func() { l.Close(); serving.Wait() })
	return socket
}

// started is a relay to socket and the function that stops it.
func started(t *testing.T, socket string) (addr string, stop func()) {
	t.Helper()
	r, err := relay.Listen("127.0.0.1:0", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(wait):
			t.Error("Run did not return")
		}
	})
	t.Cleanup(stop)
	return r.Addr().String(), stop
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, wait)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

func TestListen_Refuses(t *testing.T) {
	for name, tc := range map[string]struct{ address, socket string }{
		"another address": {"0.0.0.0:0", "/run/x.sock"},
		"a public one":    {"203.0.113.1:80", "/run/x.sock"},
		"a name":          {"localhost:80", "/run/x.sock"},
		"no port":         {"127.0.0.1", "/run/x.sock"},
		"a large port":    {"127.0.0.1:65536", "/run/x.sock"},
		"a zone":          {"[::1%lo]:80", "/run/x.sock"},
		"nothing":         {"", "/run/x.sock"},
		"relative socket": {"127.0.0.1:0", "x.sock"},
		"no socket":       {"127.0.0.1:0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := relay.Listen(tc.address, tc.socket); err == nil {
				t.Errorf("got a relay on %v, want an error", r.Addr())
			}
		})
	}
}

// The end of the request is passed on while the answer is still to come.
func TestRun_HalfClose(t *testing.T) {
	socket := far(t, func(c *net.UnixConn) {
		all, err := io.ReadAll(c)
		if err == nil {
			_, _ = c.Write(append([]byte("got "), all...))
		}
	})
	addr, _ := started(t, socket)
	conn := dial(t, addr)
	if _, err := io.WriteString(conn, "twelve planks"); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if want := "got twelve planks"; err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// Bytes are opaque, many connections at once, more than are carried at a time.
func TestRun_Many(t *testing.T) {
	socket := far(t, func(c *net.UnixConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() })
	addr, _ := started(t, socket)
	var clients sync.WaitGroup
	for range 300 {
		clients.Go(func() {
			conn, err := net.DialTimeout("tcp", addr, wait)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			want := make([]byte, 100_000)
			_, _ = rand.Read(want)
			var sending sync.WaitGroup
			sending.Go(func() { _, _ = conn.Write(want); _ = conn.(*net.TCPConn).CloseWrite() })
			got, err := io.ReadAll(conn)
			sending.Wait()
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("got %d bytes, %v, want the %d that were sent", len(got), err, len(want))
			}
		})
	}
	clients.Wait()
}

// A broker that is gone looks like a connection that ends, and a new one at the
// same place is found again.
func TestRun_SocketGone(t *testing.T) {
	socket := filepath.Join(testkit.RuntimeDir(t), "none.sock")
	addr, _ := started(t, socket)
	if got, err := io.ReadAll(dial(t, addr)); len(got) > 0 {
		t.Errorf("got %q, %v, want the end", got, err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var serving sync.WaitGroup
	defer serving.Wait()
	serving.Go(func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.WriteString(c, "here")
			_ = c.Close()
		}
	})
	if got, err := io.ReadAll(dial(t, addr)); string(got) != "here" {
		t.Errorf("got %q, %v, want what the new listener says", got, err)
	}
}

// An end without ceremony on the far side ends the near side.
func TestRun_Reset(t *testing.T) {
	socket := far(t, func(c *net.UnixConn) {
		_, _ = c.Read(make([]byte, 1)) // and closes with the rest unread
	})
	addr, _ := started(t, socket)
	conn := dial(t, addr)
	if _, err := conn.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, conn); n > 0 {
		t.Errorf("got %d bytes, %v, want none", n, err)
	}
}

// A client that is gone altogether frees its place, also when the daemon takes no
// notice of that.
func TestRun_ClientGone(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done, heard := make(chan struct{}), make(chan struct{})
	var deaf sync.WaitGroup
	t.Cleanup(func() { close(done); l.Close(); deaf.Wait() })
	deaf.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			deaf.Go(func() {
				defer c.Close()
				_, _ = c.Read(make([]byte, 1))
				select {
				case heard <- struct{}{}:
				case <-done:
				}
				<-done
			})
		}
	})
	in, err := net.Listen("unix", filepath.Join(testkit.RuntimeDir(t), "in.sock"))
	if err != nil {
		t.Fatal(err)
	}
	r := relay.New(in, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	}, func(net.Conn) bool { return true })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	for i := range relay.MaxConnections + 1 {
		c, err := net.Dial("unix", in.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "x")
		select {
		case <-heard:
			c.Close()
		case <-time.After(wait):
			c.Close()
			t.Fatalf("connection %d is not carried", i)
		}
	}
}

// Stopping ends what is carried, and the port is closed.
func TestRun_Stop(t *testing.T) {
	begun := make(chan struct{}, 1)
	socket := far(t, func(c *net.UnixConn) { begun <- struct{}{}; _, _ = io.Copy(io.Discard, c) })
	addr, stop := started(t, socket)
	conn := dial(t, addr)
	<-begun
	stop()
	if n, err := conn.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("read %d bytes, %v, want that the connection has ended", n, err)
	}
	if late, err := net.DialTimeout("tcp", addr, wait); err == nil {
		late.Close()
		t.Error("a connection was accepted after the stop")
	}
}

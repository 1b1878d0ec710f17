package egress_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"drawbridge/stationd/internal/egress"
)

// BenchmarkTunnel receives through a tunnel what BenchmarkDirect receives without.
func BenchmarkTunnel(b *testing.B) {
	server := source(b)
	r := &rig{names: map[string][]netip.Addr{"a.test": {public}}, world: server}
	proxy, err := egress.New(egress.Options{Profile: egress.Profile{Name: "p", Allow: []string{"a.test"}, Limits: egress.Limits{BytesDown: 1 << 50, BytesUp: 1 << 50}}, Resolver: r, Dial: r.dial})
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(b.TempDir(), "egress.sock")) // as the shim's relay comes
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- proxy.Run(ctx, l) }()
	defer func() { cancel(); <-ended }()
	receive(b, "unix", l.Addr().String(), "CONNECT a.test:443 HTTP/1.1\r\nHost: x\r\n\r\n", len("HTTP/1.1 200 Connection established\r\n\r\n"))
}

func BenchmarkDirect(b *testing.B) { receive(b, "tcp", source(b), "", 0) }

const piece = 1 << 20

// source sends without end.
func source(b *testing.B) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for data := make([]byte, 64<<10); ; {
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	}()
	b.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String()
}

func receive(b *testing.B, network, at, first string, skip int) {
	c, err := net.Dial(network, at)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, first); err != nil {
		b.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, c, int64(skip)); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(piece)
	buffer := make([]byte, 64<<10)
	for b.Loop() {
		if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(c, piece), buffer); err != nil {
			b.Fatal(err)
		}
	}
}

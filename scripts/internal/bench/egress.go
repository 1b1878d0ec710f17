package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"drawbridge/scripts/internal/stationrig"
)

const (
	wayBytes  = 256 << 20 // of one tunnel
	wayRounds = 15
	wayLeast  = 0.5
	wayName   = "loopback"
)

// egress compares the bytes a second of one tunnel out of a station, through the relay
// in its network namespace and the filter proxy in stationd, with a bare connection
// over loopback. The same program reads on both sides. The profile opens this one
// address, as an administrator would after a review.
func egress(ctx context.Context, s *stand) (out []Figure, err error) {
	source, err := newSource()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, source.close()) }()
	st, err := s.newStation(stationrig.Options{
		Args: []string{"-egress-profiles", "egress.json"},
		Files: map[string]string{"egress.json": fmt.Sprintf(`{"profiles":[{"name":%q,"allow":[],"ports":[%d],"private":[{"cidr":"127.0.0.1/32","ports":[%[2]d],`+
			`"reviewedBy":"bench","reviewedAt":"2026-01-01","reason":"the measurement's own source"}],"limits":{"bytesDown":%d}}]}`, wayName, source.port(), int64(1)<<40)},
	})
	if err != nil {
		return nil, err
	}
	defer st.Stop()
	bare, err := st.bare(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, bare.end()) }()
	spec := st.spec()
	spec["egressProfile"] = wayName
	open := st.Start(spec)
	client := open.Client("bench")
	through := asker{open.URL, map[string]string{"Authorization": "Bearer " + client.Secret, "Drawbridge-Ticket": client.Ticket}, newClient()}
	straight := asker{bare.base, nil, newClient()}
	defer through.client.CloseIdleConnections()
	defer straight.client.CloseIdleConnections()
	var ours, base samples
	rate := func(a asker, proxy string, into *samples) func() error {
		return func() error {
			mib, err := a.drained(ctx, "/drain?address="+source.Addr().String()+proxy)
			*into = append(*into, mib)
			return err
		}
	}
	if _, _, err := alternate(wayRounds, 1, rate(through, "&proxy=127.0.0.1:3128", &ours), rate(straight, "", &base)); err != nil {
		return nil, err
	}
	open.End()
	return []Figure{newFigure("egress_tunnel", "MiB/s", wayRounds, ours[1:].median(), base[1:].median()).ratioLeast(wayLeast)}, nil
}

// drained lets the harness read from an address and gives the MiB a second that it saw.
func (a asker) drained(ctx context.Context, target string) (float64, error) {
	resp, err := a.ask(ctx, target)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var got struct {
		OK    bool
		Error string
		Value struct{ Bytes, NS float64 }
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return 0, fmt.Errorf("read the harness's answer: %w", err)
	}
	if !got.OK || got.Value.Bytes != wayBytes {
		return 0, fmt.Errorf("the harness read %.0f bytes: %s", got.Value.Bytes, got.Error)
	}
	return got.Value.Bytes / (1 << 20) / (got.Value.NS / 1e9), nil
}

// source sends as many bytes as it can to whoever connects.
type source struct {
	net.Listener
	work sync.WaitGroup
}

func newSource() (*source, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &source{Listener: l}
	s.work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.work.Go(func() {
				defer c.Close()
				_, _ = io.CopyN(c, zeros{}, wayBytes) // the reader counts
			})
		}
	})
	return s, nil
}

func (s *source) port() int { return s.Addr().(*net.TCPAddr).Port }

func (s *source) close() error {
	err := s.Listener.Close()
	s.work.Wait()
	return err
}

// zeros reads as nothing but zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

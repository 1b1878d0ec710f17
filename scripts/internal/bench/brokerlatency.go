package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	latencyRounds = 1500
	latencyWarm   = 300 // also brings the Store's log to the length that it keeps
)

// latency compares a request through the broker with the same request straight to the
// provider, to the end of the answer: what is added to the median and to the tail. The
// baseline is what the standard library's reverse proxy adds that makes one row durable
// before it passes a request on; the bound is on what the broker takes beyond that, since
// one more hop and one durable row alone cost more than the bound. What they are made of
// is logged: the disk alone, and the proxy alone.
func (b *brokerStand) latency(ctx context.Context) ([]Figure, error) {
	g, err := b.grant(ctx, latencyRounds+latencyWarm)
	if err != nil {
		return nil, err
	}
	proxy, err := b.s.peer(roleProxy, b.provider.url)
	if err != nil {
		return nil, err
	}
	defer proxy.end()
	floor, err := b.s.peer(roleProxy, b.provider.url, b.s.below("broker", "spent.db"))
	if err != nil {
		return nil, err
	}
	defer floor.end()
	disk, err := newPlatter(b.s.below("broker"))
	if err != nil {
		return nil, err
	}
	defer disk.close()
	body := brokerRequest(brokerBody)
	way := func(url string) func() error {
		return func() error {
			_, err := drain(b.ask(ctx, url, g.capability, "", body))
			return err
		}
	}
	pid := []int{b.cmd.Process.Pid}
	before, err := times(pid)
	if err != nil {
		return nil, err
	}
	took, err := inTurn(latencyRounds, latencyWarm, way(g.base), way(b.provider.url), way(floor.url), way(proxy.url), disk.write)
	if err != nil {
		return nil, err
	}
	after, err := times(pid)
	if err != nil {
		return nil, err
	}
	for i, name := range []string{"through the broker", "straight", "through a proxy that commits", "through a proxy", "the disk alone"} {
		b.s.opts.Log("request %s: %.2f ms in the median, %.2f ms in the fastest tenth, %.2f ms in the 99th percentile",
			name, took[i].median(), took[i].quantile(0.1), took[i].quantile(0.99))
	}
	b.s.opts.Log("brokerd spends %.2f ms of processor time on a request", milliseconds(after-before)/(latencyRounds+latencyWarm))
	added := func(i int, q float64) float64 { return took[i].quantile(q) - took[1].quantile(q) }
	return []Figure{
		newFigure("broker_added", "ms", latencyRounds, added(0, 0.5), added(2, 0.5)).addedMost(0.5),
		newFigure("broker_added_p99", "ms", latencyRounds, added(0, 0.99), added(2, 0.99)).addedMost(3),
	}, nil
}

// platter is a file like the Store's log at the length that it keeps.
type platter struct {
	f    *os.File
	next int64
}

const (
	platterSize = 4 << 20
	walFrame    = 4096 + 24 // a page and its head
	walFrames   = 5         // of a reservation
)

func newPlatter(dir string) (*platter, error) {
	f, err := os.Create(filepath.Join(dir, "platter"))
	if err == nil {
		_, err = f.Write(make([]byte, platterSize))
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		return nil, fmt.Errorf("measure the disk: %w", err)
	}
	return &platter{f: f}, nil
}

// write makes as many bytes durable as a reservation writes.
func (p *platter) write() error {
	_, err := p.f.WriteAt(make([]byte, walFrame*walFrames), p.next)
	p.next = (p.next + walFrame*walFrames) % (platterSize - walFrame*walFrames)
	if err := errors.Join(err, unix.Fdatasync(int(p.f.Fd()))); err != nil {
		return fmt.Errorf("measure the disk: %w", err)
	}
	return nil
}

func (p *platter) close() { _ = p.f.Close() }

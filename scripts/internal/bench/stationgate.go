package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	gateRounds  = 2000
	gateWarm    = 200
	gateMost    = 1 // ms more than straight to the daemon
	gateMostP99 = 5

	eventCount = 500
	eventEvery = 10 * time.Millisecond
	eventMost  = 5 // ms from the daemon's write, 99th percentile

	crowdMost   = 250 // ms, the latest event of all
	crowdMemory = 100 // MiB of stationd more than at rest
)

// gate compares requests and streams through the gate with the same ones straight to a
// daemon that runs outside.
func (st *stationStand) gate(ctx context.Context) ([]Figure, error) {
	bare, err := st.bare(ctx)
	if err != nil {
		return nil, err
	}
	open := st.Start(st.spec())
	client := open.Client("bench")
	through := asker{open.URL, map[string]string{"Authorization": "Bearer " + client.Secret, "Drawbridge-Ticket": client.Ticket}, newClient()}
	straight := asker{bare.base, nil, newClient()}
	figures, err := st.passing(ctx, through, straight)
	for _, a := range []asker{through, straight} {
		a.client.CloseIdleConnections()
	}
	open.End()
	return figures, errors.Join(err, bare.end())
}

func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: crowd, DisableCompression: true}}
}

// asker is one way to a daemon.
type asker struct {
	base   string
	header map[string]string
	client *http.Client
}

func (a asker) ask(ctx context.Context, target string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base+target, nil)
	if err != nil {
		return nil, err
	}
	for name, value := range a.header {
		req.Header.Set(name, value)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		resp.Body.Close()
		return nil, fmt.Errorf("the answer is %s: %s", resp.Status, body)
	}
	return resp, nil
}

func (st *stationStand) passing(ctx context.Context, through, straight asker) ([]Figure, error) {
	request := func(a asker) func() error {
		return func() error {
			_, err := drain(a.ask(ctx, "/health"))
			return err
		}
	}
	ours, base, err := alternate(gateRounds, gateWarm, request(through), request(straight))
	if err != nil {
		return nil, err
	}
	out := []Figure{
		newFigure("station_gate", "ms", gateRounds, ours.median(), base.median()).addedMost(gateMost),
		newFigure("station_gate_p99", "ms", gateRounds, ours.quantile(0.99), base.quantile(0.99)).addedMost(gateMostP99),
	}
	one := func(a asker) (samples, error) {
		late, _, err := st.follow(ctx, a, 1, eventCount, eventEvery)
		return late, err
	}
	if base, err = one(straight); err != nil {
		return nil, err
	}
	if ours, err = one(through); err != nil {
		return nil, err
	}
	out = append(out, newFigure("station_event_p99", "ms", eventCount, ours.quantile(0.99), base.quantile(0.99)).oursMost(eventMost))

	rested, err := resident(st.PID())
	if err != nil {
		return nil, err
	}
	if base, _, err = st.follow(ctx, straight, crowd, crowdEvents, crowdEvery); err != nil {
		return nil, err
	}
	straight.client.CloseIdleConnections()
	ours, most, err := st.follow(ctx, through, crowd, crowdEvents, crowdEvery)
	if err != nil {
		return nil, err
	}
	return append(out,
		newFigure("station_500_stall", "ms", len(ours), ours.quantile(1), base.quantile(1)).oursMost(crowdMost),
		newFigure("station_500_memory", "MiB", 1, most-rested, rested).oursMost(crowdMemory),
	), nil
}

// follow opens streams and gives how late each event was after all of them were open,
// and the most memory that stationd had meanwhile.
func (st *stationStand) follow(ctx context.Context, a asker, streams, count int, every time.Duration) (late samples, most float64, err error) {
	var mu sync.Mutex
	var opened time.Time // the last of the streams
	type arrival struct{ sent, late time.Duration }
	var all []arrival
	begin := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for range streams {
		g.Go(func() error {
			resp, err := a.ask(ctx, fmt.Sprintf("/events?stamp=1&count=%d&every=%s", count, every))
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			mu.Lock()
			opened = time.Now()
			mu.Unlock()
			own := make([]arrival, 0, count)
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
				text, ok := strings.CutPrefix(lines.Text(), "data: ")
				if !ok {
					continue
				}
				now := time.Now()
				ns, err := strconv.ParseInt(text, 10, 64)
				if err != nil {
					return fmt.Errorf("an event holds %q", text)
				}
				sent := time.Unix(0, ns)
				own = append(own, arrival{sent.Sub(begin), now.Sub(sent)})
			}
			if len(own) != count {
				return fmt.Errorf("a stream had %d events of %d", len(own), count)
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
			return nil
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }()
	for {
		mib, err := resident(st.PID())
		if err != nil {
			return nil, 0, errors.Join(err, <-ended)
		}
		most = max(most, mib)
		select {
		case err := <-ended:
			for _, e := range all {
				if e.sent >= opened.Sub(begin) || streams == 1 { // before, the streams are not at one time
					late = append(late, milliseconds(e.late))
				}
			}
			if err == nil && len(late) < streams {
				err = fmt.Errorf("only %d events came while all streams were open", len(late))
			}
			return late, most, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	brokerModel = "bench-model"
	brokerBody  = 40_000 // bytes of a request, about what Codex sends

	flowRounds = 5
	flowBytes  = 96 << 20 // of one response

	crowd       = 500 // streams at one time
	crowdGrants = 32  // since each may have 16 requests in flight
	crowdEvery  = 200 * time.Millisecond
	crowdEvents = 40
)

// broker measures the real brokerd, with its Store, between a client, which is this
// process, and a scripted provider in a process of its own: what it adds to a request,
// how fast it passes a stream on, and what many streams at one time cost.
func broker(ctx context.Context, s *stand) (out []Figure, err error) {
	b, err := s.newBroker(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, measure := range []func(context.Context) ([]Figure, error){b.crowd, b.latency, b.flow} {
		figures, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		out = append(out, figures...)
	}
	return out, nil
}

// brokerStand is a brokerd and what stands before and behind it.
type brokerStand struct {
	s        *stand
	store    string
	auth     string // credential file
	provider *peer
	cmd      *exec.Cmd
	client   *http.Client
}

func (s *stand) newBroker(ctx context.Context) (*brokerStand, error) {
	b := &brokerStand{
		s: s, store: s.below("broker", "store"), auth: s.below("broker", "auth.json"),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: crowd, DisableCompression: true}},
	}
	if err := os.MkdirAll(b.store, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.auth, []byte(`{"OPENAI_API_KEY":"test-bench-credential-0123456789"}`), 0o600); err != nil {
		return nil, err
	}
	var err error
	if b.provider, err = s.peer(roleProvider); err != nil {
		return nil, err
	}
	b.cmd = exec.Command(filepath.Join(s.opts.Bin, "brokerd"), "serve", "-store-dir", b.store, "-listen", "127.0.0.1", "-test-upstream", b.provider.url,
		"-max-connections", strconv.Itoa(2*crowd), "-log-level", "warn")
	b.cmd.Env = s.brokerEnv()
	b.cmd.Stderr = os.Stderr
	if err := b.cmd.Start(); err != nil {
		b.provider.end()
		return nil, err
	}
	err = until(ctx, patience, "brokerd takes up a grant", func() (bool, error) {
		_, err := b.grant(ctx, 1)
		return err == nil, nil // it may not have begun
	})
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// brokerEnv is what brokerd gets of the environment.
func (s *stand) brokerEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.rig.Home()}
}

func (b *brokerStand) close() error {
	err := b.cmd.Process.Signal(syscall.SIGTERM)
	if err == nil {
		err = b.cmd.Wait()
	}
	b.client.CloseIdleConnections()
	b.provider.end()
	return err
}

// lent is what a worker gets.
type lent struct{ base, capability string }

// grant takes out a grant as an operator does.
func (b *brokerStand) grant(ctx context.Context, requests int) (lent, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(b.s.opts.Bin, "brokerd"), "grant", "-store-dir", b.store, "-auth-file", b.auth, "-model", brokerModel,
		"-max-requests", strconv.Itoa(requests))
	cmd.Env = b.s.brokerEnv()
	text, err := cmd.Output()
	if err != nil {
		return lent{}, err
	}
	var g struct {
		Base       string `json:"base_url"`
		Capability string `json:"capability"`
	}
	if err := json.Unmarshal(text, &g); err != nil {
		return lent{}, fmt.Errorf("read what brokerd lends: %w", err)
	}
	u, err := url.Parse(g.Base)
	if err != nil {
		return lent{}, err
	}
	return lent{"http://" + net.JoinHostPort("127.0.0.1", u.Port()), g.Capability}, nil
}

// ask sends a request to a base URL and gives the answer, which is 200.
func (b *brokerStand) ask(ctx context.Context, base, capability, script string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/responses", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+capability)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Version", script) // a header that is passed on
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("the answer is %s (%s)", resp.Status, resp.Header.Get("X-Drawbridge-Refusal"))
	}
	return resp, nil
}

// drain reads an answer to its end.
func drain(resp *http.Response, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return io.Copy(io.Discard, resp.Body)
}

// request makes a body of about n bytes.
func brokerRequest(n int) []byte {
	var b strings.Builder
	b.WriteString(`{"model":"` + brokerModel + `","stream":true,"input":[`)
	for i := 0; b.Len() < n; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"type":"message","role":"user","content":[{"type":"input_text","text":"` + strings.Repeat("some words of an instruction\\n", 12) + `"}]}`)
	}
	return []byte(b.String() + `]}`)
}

// flow compares the bytes a second of one fast stream with those of the standard
// library's reverse proxy in a process of its own.
func (b *brokerStand) flow(ctx context.Context) ([]Figure, error) {
	g, err := b.grant(ctx, 2*flowRounds+2)
	if err != nil {
		return nil, err
	}
	proxy, err := b.s.peer(roleProxy, b.provider.url)
	if err != nil {
		return nil, err
	}
	defer proxy.end()
	var ours, base samples
	rate := func(url string, into *samples) func() error {
		return func() error {
			begin := time.Now()
			n, err := drain(b.ask(ctx, url, g.capability, "flow", []byte(`{"model":"`+brokerModel+`"}`)))
			if err == nil && n < flowBytes {
				err = fmt.Errorf("%d bytes came", n)
			}
			*into = append(*into, float64(n)/(1<<20)/time.Since(begin).Seconds())
			return err
		}
	}
	pids := [2]int{b.cmd.Process.Pid, proxy.pid}
	var used [2]time.Duration // processor time: what a busy machine does not change much
	for i, p := range pids {
		if used[i], err = times([]int{p}); err != nil {
			return nil, err
		}
	}
	if _, _, err = alternate(flowRounds, 1, rate(g.base, &ours), rate(proxy.url, &base)); err != nil {
		return nil, err
	}
	for i, p := range pids {
		after, err := times([]int{p})
		if err != nil {
			return nil, err
		}
		used[i] = after - used[i]
	}
	b.s.opts.Log("stream: %.2f s of processor time in brokerd, %.2f s in the reverse proxy, for %d MiB", used[0].Seconds(), used[1].Seconds(), (flowRounds+1)*(flowBytes>>20))
	return []Figure{newFigure("broker_stream", "MiB/s", flowRounds, ours[1:].median(), base[1:].median()).ratioLeast(0.8)}, nil
}

// crowd keeps many streams open at one time, on each of which an event comes now and
// then, and compares how late the latest event is with the same streams without the
// broker.
func (b *brokerStand) crowd(ctx context.Context) ([]Figure, error) {
	var grants []lent
	for range crowdGrants {
		g, err := b.grant(ctx, crowd)
		if err != nil {
			return nil, err
		}
		grants = append(grants, g)
	}
	rested, err := resident(b.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	base, _, err := b.streams(ctx, func(int) lent { return lent{b.provider.url, "none"} })
	if err != nil {
		return nil, err
	}
	b.client.CloseIdleConnections()
	ours, most, err := b.streams(ctx, func(i int) lent { return grants[i%crowdGrants] })
	if err != nil {
		return nil, err
	}
	b.client.CloseIdleConnections()
	return []Figure{
		newFigure("broker_500_stall", "ms", len(ours), ours.quantile(1), base.quantile(1)).oursMost(250),
		newFigure("broker_500_memory", "MiB", 1, most-rested, rested).oursMost(80),
	}, nil
}

// streams opens the streams and gives how late each event was, and the most memory that
// brokerd had meanwhile.
func (b *brokerStand) streams(ctx context.Context, to func(i int) lent) (late samples, most float64, err error) {
	body := brokerRequest(brokerBody)
	var mu sync.Mutex
	var events []tick
	var opened time.Time // the last of the streams
	g, ctx := errgroup.WithContext(ctx)
	for i := range crowd {
		g.Go(func() error {
			l := to(i)
			resp, err := b.ask(ctx, l.base, l.capability, "crowd", body)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			mu.Lock()
			opened = time.Now()
			mu.Unlock()
			own, err := ticks(resp.Body)
			if err == nil && len(own) != crowdEvents {
				err = fmt.Errorf("a stream had %d events", len(own))
			}
			mu.Lock()
			defer mu.Unlock()
			events = append(events, own...)
			return err
		})
	}
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }()
	for {
		mib, err := resident(b.cmd.Process.Pid)
		if err != nil {
			return nil, 0, errors.Join(err, <-ended)
		}
		most = max(most, mib)
		select {
		case err := <-ended:
			for _, e := range events {
				if e.sent.After(opened) { // before, the streams are not at one time
					late = append(late, e.late)
				}
			}
			if err == nil && len(late) < crowd {
				err = fmt.Errorf("only %d events came while all streams were open", len(late))
			}
			return late, most, err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

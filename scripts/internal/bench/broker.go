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
	"net/http/httptest"
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
	"golang.org/x/sys/unix"
)

const (
	brokerModel = "bench-model"
	brokerBody  = 40_000 // bytes of a request, about what Codex sends

	latencyRounds = 1500
	latencyWarm   = 300 // also brings the Store's log to the length that it keeps

	flowRounds = 5
	flowBytes  = 96 << 20 // of one response

	crowd       = 500 // streams at one time
	crowdGrants = 32  // since each may have 16 requests in flight
	crowdEvery  = 200 * time.Millisecond
	crowdEvents = 40
)

// broker measures the real brokerd, with its Store, between a client and a scripted
// provider, which are both in this process: what it adds to a request, how fast it
// passes a stream on, and what many streams at one time cost.
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
	provider *httptest.Server
	cmd      *exec.Cmd
	base     string // URL of the brokerd
	client   *http.Client
}

func (s *stand) newBroker(ctx context.Context) (*brokerStand, error) {
	b := &brokerStand{
		s: s, store: s.below("broker", "store"), auth: s.below("broker", "auth.json"), provider: httptest.NewServer(http.HandlerFunc(provide)),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: crowd, DisableCompression: true}},
	}
	if err := os.MkdirAll(b.store, 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.auth, []byte(`{"OPENAI_API_KEY":"test-bench-credential-0123456789"}`), 0o600); err != nil {
		return nil, err
	}
	b.cmd = exec.Command(filepath.Join(s.opts.Bin, "brokerd"), "serve", "-store-dir", b.store, "-listen", "127.0.0.1", "-test-upstream", b.provider.URL,
		"-max-connections", strconv.Itoa(2*crowd), "-log-level", "warn")
	b.cmd.Env = s.brokerEnv()
	b.cmd.Stderr = os.Stderr
	if err := b.cmd.Start(); err != nil {
		return nil, err
	}
	return b, until(ctx, patience, "brokerd takes up a grant", func() (bool, error) {
		g, err := b.grant(ctx, 1)
		if err != nil {
			return false, nil // it may not have begun
		}
		b.base = g.base
		return true, nil
	})
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
	b.provider.Close()
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

// completedEvent ends every answer.
const completedEvent = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"bench\",\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n"

// provide answers as the script in the header version says: at once, with as much as
// there is, or with an event now and then that holds the time.
func provide(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	rc := http.NewResponseController(w)
	say := func(p []byte) bool {
		_, err := w.Write(p)
		return err == nil && rc.Flush() == nil
	}
	switch r.Header.Get("Version") {
	case "flow":
		event := "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"item_id\":\"msg_0123456789\",\"output_index\":0,\"content_index\":0,\"delta\":\"some words that a model says, one piece after another\"}\n\n"
		piece := []byte(strings.Repeat(event, 40))
		for n := 0; n < flowBytes; n += len(piece) {
			if !say(piece) {
				return
			}
		}
	case "crowd":
		tick := time.NewTicker(crowdEvery)
		defer tick.Stop()
		for range crowdEvents {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
			if !say(fmt.Appendf(nil, "data: {\"type\":\"tick\",\"at\":\"%d\"}\n\n", time.Now().UnixNano())) {
				return
			}
		}
	}
	say([]byte(completedEvent))
}

// latency compares a request through the broker with the same request to the provider,
// to the end of the answer. Beside it stands what the disk takes for the durable write
// that every reservation is.
func (b *brokerStand) latency(ctx context.Context) ([]Figure, error) {
	g, err := b.grant(ctx, latencyRounds+latencyWarm)
	if err != nil {
		return nil, err
	}
	disk, err := newPlatter(b.s.below("broker"))
	if err != nil {
		return nil, err
	}
	defer disk.close()
	body := brokerRequest(brokerBody)
	var syncs samples
	before, err := times([]int{b.cmd.Process.Pid})
	if err != nil {
		return nil, err
	}
	ours, base, err := alternate(latencyRounds, latencyWarm,
		func() error {
			_, err := drain(b.ask(ctx, g.base, g.capability, "", body))
			return err
		},
		func() error {
			_, err := drain(b.ask(ctx, b.provider.URL, g.capability, "", body))
			took, syncErr := disk.write()
			syncs = append(syncs, took)
			return errors.Join(err, syncErr)
		})
	if err != nil {
		return nil, err
	}
	after, err := times([]int{b.cmd.Process.Pid})
	if err != nil {
		return nil, err
	}
	for i := range base { // the look at the disk is not part of the request
		base[i] -= syncs[latencyWarm+i]
	}
	syncs = syncs[latencyWarm:]
	b.s.opts.Log("request: through the broker %.2f ms, direct %.2f ms, disk %.2f ms in the fastest tenth; %.2f ms of processor time in brokerd",
		ours.quantile(0.1), base.quantile(0.1), syncs.quantile(0.1), milliseconds(after-before)/(latencyRounds+latencyWarm))
	median, tail := ours.median()-base.median(), ours.quantile(0.99)-base.quantile(0.99)
	return []Figure{
		newFigure("broker_added", "ms", latencyRounds, median, syncs.median()).oursMost(0.5),
		newFigure("broker_added_p99", "ms", latencyRounds, tail, syncs.quantile(0.99)).oursMost(3),
	}, nil
}

// platter is a file like the Store's log at the length that it keeps.
type platter struct {
	f    *os.File
	next int64
}

const (
	platterSize = 4 << 20
	walFrame    = 4096 + 24 // a page and its head; a reservation writes some
	walFrames   = 6
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

// write makes some bytes durable, and gives the milliseconds that took.
func (p *platter) write() (float64, error) {
	begin := time.Now()
	_, err := p.f.WriteAt(make([]byte, walFrame*walFrames), p.next)
	if err == nil {
		err = unix.Fdatasync(int(p.f.Fd()))
	}
	p.next = (p.next + walFrame*walFrames) % (platterSize - walFrame*walFrames)
	if err != nil {
		return 0, fmt.Errorf("measure the disk: %w", err)
	}
	return milliseconds(time.Since(begin)), nil
}

func (p *platter) close() { _ = p.f.Close() }

// flow compares the bytes a second of one fast stream with those of the standard
// library's reverse proxy in a process of its own.
func (b *brokerStand) flow(ctx context.Context) ([]Figure, error) {
	g, err := b.grant(ctx, 2*flowRounds+2)
	if err != nil {
		return nil, err
	}
	proxy, pid, end, err := b.reverseProxy()
	if err != nil {
		return nil, err
	}
	defer end()
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
	pids := [2]int{b.cmd.Process.Pid, pid}
	var used [2]time.Duration // processor time: what a busy machine does not change much
	for i, p := range pids {
		if used[i], err = times([]int{p}); err != nil {
			return nil, err
		}
	}
	if _, _, err = alternate(flowRounds, 1, rate(g.base, &ours), rate(proxy, &base)); err != nil {
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

// reverseProxy starts the baseline of flow.
func (b *brokerStand) reverseProxy() (base string, pid int, end func(), err error) {
	cmd := exec.Command(b.s.opts.Self, "role", roleProxy, b.provider.URL)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return "", 0, nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", 0, nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", 0, nil, err
	}
	end = func() { _, _ = stdin.Close(), cmd.Wait() }
	if _, err := fmt.Fscanln(stdout, &base); err != nil {
		end()
		return "", 0, nil, fmt.Errorf("start the reverse proxy: %w", err)
	}
	return base, cmd.Process.Pid, end, nil
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
	base, _, err := b.streams(ctx, func(int) lent { return lent{b.provider.URL, "none"} })
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

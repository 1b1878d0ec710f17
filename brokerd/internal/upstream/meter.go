package upstream

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Meter counts what the metrics page shows (broker §15). No label holds anything
// that comes from a worker.
type Meter struct {
	mu          sync.Mutex
	outcomes    map[string]int64
	refusals    map[Refusal]int64
	bytes       map[string]int64 // in: from workers, out: to them
	tokens      map[string]int64
	inflight    int64
	redactions  int64
	upstream    histogram
	reservation histogram
}

// bounds of the histograms, in seconds.
var (
	upstreamBounds    = []float64{0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000}
	reservationBounds = []float64{0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 10}
)

type histogram struct {
	counts []int64 // by bound, the last without one
	sum    float64
}

func (h *histogram) add(bounds []float64, v float64) {
	if h.counts == nil {
		h.counts = make([]int64, len(bounds)+1)
	}
	i, _ := slices.BinarySearch(bounds, v)
	h.counts[i]++
	h.sum += v
}

// NewMeter makes a Meter.
func NewMeter() *Meter {
	return &Meter{outcomes: map[string]int64{}, refusals: map[Refusal]int64{}, bytes: map[string]int64{}, tokens: map[string]int64{}}
}

func (m *Meter) refused(r Refusal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refusals[r]++
}

func (m *Meter) reserved(took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reservation.add(reservationBounds, took.Seconds())
}

// serving changes the number of requests in flight.
func (m *Meter) serving(by int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inflight += by
}

// ended counts a forwarded request.
func (m *Meter) ended(e Evidence, sent int64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outcomes[e.Outcome]++
	m.bytes["in"] += e.RequestBytes
	m.bytes["out"] += sent
	m.redactions += e.Redactions
	m.upstream.add(upstreamBounds, took.Seconds())
	if u := e.ResponseUsage; u != nil {
		m.tokens["input"] += u.InputTokens
		m.tokens["output"] += u.OutputTokens
		if u.CachedInputTokens != nil {
			m.tokens["cached_input"] += *u.CachedInputTokens
		}
	}
}

// WriteText writes the counters in the text form of Prometheus; the grants by state
// are the caller's to add.
func (m *Meter) WriteText(w io.Writer) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := page{}
	p.labelled("requests_total", "outcome", m.outcomes)
	refusals := map[string]int64{}
	for r, n := range m.refusals {
		refusals[string(r)] = n
	}
	p.labelled("refusals_total", "code", refusals)
	p.plain("inflight", "gauge", m.inflight)
	p.histogram("upstream_seconds", upstreamBounds, m.upstream)
	p.labelled("bytes_total", "dir", m.bytes)
	p.labelled("tokens_total", "kind", m.tokens)
	p.plain("redactions_total", "counter", m.redactions)
	p.histogram("reservation_seconds", reservationBounds, m.reservation)
	_, err := w.Write(p.Bytes())
	return err
}

// page writes metrics.
type page struct{ bytes.Buffer }

const metricPrefix = "drawbridge_broker_"

func (p *page) head(name, kind string) { fmt.Fprintf(p, "# TYPE %s%s %s\n", metricPrefix, name, kind) }

func (p *page) plain(name, kind string, n int64) {
	p.head(name, kind)
	fmt.Fprintf(p, "%s%s %d\n", metricPrefix, name, n)
}

func (p *page) labelled(name, label string, values map[string]int64) {
	p.head(name, "counter")
	var keys []string
	for k := range values {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(p, "%s%s{%s=%q} %d\n", metricPrefix, name, label, k, values[k])
	}
}

func (p *page) histogram(name string, bounds []float64, h histogram) {
	p.head(name, "histogram")
	total := int64(0)
	for i := range len(bounds) + 1 {
		bound := "+Inf"
		if i < len(bounds) {
			bound = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		if h.counts != nil {
			total += h.counts[i]
		}
		fmt.Fprintf(p, "%s%s_bucket{le=%q} %d\n", metricPrefix, name, bound, total)
	}
	fmt.Fprintf(p, "%s%s_sum %g\n%s%s_count %d\n", metricPrefix, name, h.sum, metricPrefix, name, total)
}

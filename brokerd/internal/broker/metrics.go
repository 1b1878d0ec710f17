package broker

import (
	"fmt"
	"net"
	"net/http"
	"time"

	"drawbridge/shared/store"
)

// Bounds of the metrics page.
const (
	metricsWait   = 5 * time.Second
	metricsHeader = 8 << 10
)

// states in the order of the metrics page.
var states = []string{store.GrantRequested, store.GrantActive, store.GrantClosing}

// metricsServer is the page with its listener, which is open already.
type metricsServer struct {
	listener net.Listener
	*http.Server
}

func (m *metricsServer) serve() error { return m.Serve(m.listener) }

// end closes the page, whether it was served or not; there may be none.
func (m *metricsServer) end() {
	if m == nil {
		return
	}
	_ = m.Close()
	_ = m.listener.Close()
}

// metrics gives the server of the metrics page; nil when none is asked for.
func (b *Broker) metrics() (*metricsServer, error) {
	if b.opt.Metrics == "" {
		return nil, nil
	}
	l, err := loopbackListener(b.opt.Metrics)
	if err != nil {
		return nil, err
	}
	b.log.Info("metrics", "address", l.Addr().String())
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", b.writeMetrics)
	return &metricsServer{l, &http.Server{
		Handler: mux, ReadHeaderTimeout: metricsWait, ReadTimeout: metricsWait, WriteTimeout: 2 * metricsWait, MaxHeaderBytes: metricsHeader,
	}}, nil
}

func (b *Broker) writeMetrics(w http.ResponseWriter, r *http.Request) {
	grants, err := b.opt.Store.OpenGrants(r.Context())
	if err != nil {
		http.Error(w, "the Store cannot be read", http.StatusServiceUnavailable)
		return
	}
	count := map[string]int{}
	for _, g := range grants {
		count[g.State]++
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	if err := b.meter.WriteText(w); err != nil {
		return
	}
	fmt.Fprint(w, "# HELP drawbridge_broker_grants Grants that are not at their end.\n# TYPE drawbridge_broker_grants gauge\n")
	for _, s := range states {
		fmt.Fprintf(w, "drawbridge_broker_grants{state=%q} %d\n", s, count[s])
	}
}

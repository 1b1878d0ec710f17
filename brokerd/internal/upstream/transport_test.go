package upstream_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"drawbridge/brokerd/internal/upstream"
)

// A provider with TLS: HTTP/2 where it can, and only with a certificate that is trusted.
func TestTransport_TLS(t *testing.T) {
	protocols := make(chan string, 1)
	secure := func(version uint16) *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != bound || r.Header.Get("Authorization") != "Bearer "+secret {
				t.Errorf("the provider got %q with %q, %v", body, r.Header, err)
			}
			protocols <- r.Proto
			sse(w, event(1, 2, 3))
		}))
		s.EnableHTTP2 = true
		s.TLS = &tls.Config{MaxVersion: version}
		s.Config.ErrorLog = nil
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	good, old := secure(tls.VersionTLS13), secure(tls.VersionTLS11)
	roots := x509.NewCertPool()
	roots.AddCert(good.Certificate())
	for _, tc := range []struct {
		name   string
		server *httptest.Server
		roots  *x509.CertPool
		ok     bool
	}{
		{"trusted", good, roots, true}, {"not trusted", good, nil, false}, {"old TLS", old, roots, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			transport := upstream.NewTransport(upstream.TransportOptions{Roots: tc.roots})
			defer transport.CloseIdleConnections()
			w := newWorld(t, func(o *upstream.Options, _ *upstream.Grant) { o.Transport, o.TestOrigin = transport, tc.server.URL })
			a := w.post("/responses", bound)
			if !tc.ok {
				w.refused(a, upstream.Unreachable)
				return
			}
			if protocol := <-protocols; a.status != 200 || a.body != event(1, 2, 3) || protocol != "HTTP/2.0" {
				t.Errorf("%+v over %s", a, protocol)
			}
			if e := w.row(); e.Outcome != upstream.Completed || e.ResponseUsage == nil {
				t.Errorf("row %s", e.JSON())
			}
		})
	}
}

// A proxy that was asked for is used.
func TestTransport_Proxy(t *testing.T) {
	asked := make(chan string, 1)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.RequestURI
		sse(w, event(1, 1, 1))
	}))
	defer proxy.Close()
	u, err := url.Parse(proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := upstream.NewTransport(upstream.TransportOptions{Proxy: u})
	defer transport.CloseIdleConnections()
	w := newWorld(t, func(o *upstream.Options, _ *upstream.Grant) { o.Transport = transport })
	if a := w.post("/responses", bound); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if target := <-asked; target != w.provider.URL+"/responses" {
		t.Errorf("the proxy was asked for %s", target)
	}
}

// A connection to the provider that died while nobody used it costs no request, and what
// was sent on it is not sent twice.
func TestTransport_DeadConnection(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		if a := w.post("/responses", bound); a.status != 200 && a.status != 502 {
			t.Errorf("%+v", a)
		}
		w.provider.CloseClientConnections()
	}
	if sent, rows := len(w.requests()), len(w.rows()); sent > rows {
		t.Errorf("%d requests reached the provider for %d reservations", sent, rows)
	}
}

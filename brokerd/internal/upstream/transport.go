package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/fault"
)

// Times of the exchange with the provider (broker §7).
const (
	dialWait   = 10 * time.Second
	tlsWait    = 10 * time.Second
	headerWait = 120 * time.Second
	idleWait   = 300 * time.Second  // between two pieces of a response
	totalWait  = 3600 * time.Second // a whole exchange
	keepIdle   = 90 * time.Second   // a connection without a request
)

// TransportOptions of NewTransport; the zero value uses no proxy and the roots of
// the system.
type TransportOptions struct {
	Proxy *url.URL       // -upstream-proxy
	Roots *x509.CertPool // -ca-file
}

// NewTransport gives the transport to the provider (broker §7). The environment's
// proxy settings have no effect, and an answer is never unpacked: what is compressed
// could hide the credential. It follows no redirect; that is for http.Client.
func NewTransport(o TransportOptions) *http.Transport {
	t := &http.Transport{
		DialContext:            (&net.Dialer{Timeout: dialWait, KeepAlive: 30 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
		TLSHandshakeTimeout:    tlsWait,
		ResponseHeaderTimeout:  headerWait,
		IdleConnTimeout:        keepIdle,
		MaxIdleConnsPerHost:    MaxConnections,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
	}
	if o.Proxy != nil {
		t.Proxy = http.ProxyURL(o.Proxy)
	}
	return t
}

// requestHeaders are passed on when a worker sends them once: what the reference
// passes on, and what Codex sends besides (broker §7).
var requestHeaders = []string{
	"Accept", "Openai-Beta", "Originator", "Session_id", "Version", "X-Codex-Turn-State",
	"Session-Id", "Thread-Id", "X-Client-Request-Id", "X-Codex-Beta-Features", "X-Codex-Window-Id",
}

// responseHeaders are passed back.
var responseHeaders = []string{"Content-Type", "X-Request-Id", "Openai-Processing-Ms", "X-Codex-Turn-State", "Retry-After"}

// neverPassed are request headers that no option can add: what says who asks, what
// belongs to one connection, and what the broker writes itself.
var neverPassed = []string{
	"Authorization", "Chatgpt-Account-Id", "Host", "Cookie", "Openai-Organization", "Openai-Project", "X-Api-Key",
	"Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Forwarded", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding",
	"Upgrade", "User-Agent",
	// With one of these net/http asks again by itself, behind the back of the budget.
	"Idempotency-Key", "X-Idempotency-Key",
}

var neverPrefixes = []string{"Proxy-", "X-Forwarded-"}

// CheckHeader refuses a name of -allow-request-header that may never be passed on.
func CheckHeader(name string) error {
	refuse := func(why string) error {
		return fault.New(fault.InvalidArguments, "read -allow-request-header: %s", why).WithHint("broker §7 lists the headers that a worker may send")
	}
	if name == "" || len(name) > 64 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
		return refuse("it is no name of a header")
	}
	key := http.CanonicalHeaderKey(name)
	if slices.Contains(neverPassed, key) || slices.ContainsFunc(neverPrefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
		return refuse(key + " is never passed on")
	}
	return nil
}

// printable reports whether a header value is fit to be passed on.
func printable(v string) bool {
	for i := range len(v) {
		if v[i] < ' ' || v[i] > '~' {
			return false
		}
	}
	return len(v) <= MaxHeader
}

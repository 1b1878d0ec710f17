package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// runProxy is the standard library's reverse proxy to base, until stdin ends. It passes
// on every piece at once, as the broker does.
func runProxy(base string) error {
	to, err := url.Parse(base)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
		Transport:     &http.Transport{DisableCompression: true},
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = l.Close()
	}()
	if _, err := fmt.Fprintf(os.Stdout, "http://%s\n", l.Addr()); err != nil {
		return err
	}
	// The body is read first, as the broker must: the transport looks behind the end of a
	// body that it has sent, and takes one that the server closed meanwhile, because the
	// answer had begun, for a failure.
	whole := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	})
	_ = http.Serve(l, whole) // ends with its listener
	return nil
}

// A tick is an event that holds the time at which it was sent.
type tick struct {
	sent time.Time
	late float64 // milliseconds until it was here
}

// ticks reads a stream of them.
func ticks(body io.Reader) (out []tick, err error) {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		_, text, ok := strings.Cut(lines.Text(), `"at":"`)
		if !ok {
			continue
		}
		text, _, _ = strings.Cut(text, `"`)
		at, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read an event: %w", err)
		}
		sent := time.Unix(0, at)
		out = append(out, tick{sent, milliseconds(time.Since(sent))})
	}
	return out, lines.Err()
}

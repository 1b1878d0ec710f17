package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// runProxy is the standard library's reverse proxy to base, until stdin ends. It passes
// on every piece at once, as the broker does. With the path of a database it makes a row
// durable before it passes a request on: that, and nothing else, the broker cannot do
// without.
func runProxy(base, database string) error {
	to, err := url.Parse(base)
	if err != nil {
		return err
	}
	spend := func() error { return nil }
	if database != "" {
		db, err := openRaw(database)
		if err != nil {
			return err
		}
		defer db.Close()
		if _, err := db.Exec("CREATE TABLE spent (id INTEGER PRIMARY KEY, evidence TEXT NOT NULL)"); err != nil {
			return err
		}
		insert, err := db.Prepare("INSERT INTO spent(evidence) VALUES (?1)")
		if err != nil {
			return err
		}
		evidence := strings.Repeat("x", spentBytes)
		spend = func() error { _, err := insert.Exec(evidence); return err }
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		FlushInterval: -1,
		Transport:     &http.Transport{DisableCompression: true},
	}
	// The body is read first, as the broker must: the transport looks behind the end of a
	// body that it has sent, and takes one that the server closed meanwhile, because the
	// answer had begun, for a failure.
	return servePeer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if err := spend(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
}

// spentBytes is about what the broker writes of a request before it sends it.
const spentBytes = 900

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

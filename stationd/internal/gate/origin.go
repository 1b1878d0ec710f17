package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"drawbridge/shared/fault"
)

// labelChars is how much of the digest the host label of an attempt has.
const labelChars = 32

// HostLabel is the host name of one attempt's bridge, an origin that no other
// attempt's content has (station §11.2).
func HostLabel(station string, attempt int) string {
	sum := sha256.Sum256([]byte(station + "/" + strconv.Itoa(attempt)))
	return hex.EncodeToString(sum[:])[:labelChars] + ".localhost"
}

// checkOrigin refuses a Host that is not the gate's, and a browser's request
// that does not come from, and go to, the attempt's own origin. port is "" on a
// unix socket.
func checkOrigin(r *http.Request, station string, attempt int, port string) error {
	own := withPort(HostLabel(station, attempt), port)
	host := strings.ToLower(r.Host)
	if !browser(r.Header) {
		if host == own || plainHost(host, port) {
			return nil
		}
		return fault.New(fault.HostRefused, "read the Host: it is not the gate's")
	}
	if host != own {
		return fault.New(fault.HostRefused, "read the Host: a browser has to use the host name of the attempt")
	}
	origins := r.Header.Values("Origin")
	if len(origins) > 1 || len(origins) == 1 && origins[0] != "http://"+own {
		return fault.New(fault.OriginRefused, "read the Origin: it is not the attempt's own")
	}
	return nil
}

// plainHost reports whether a client that is no browser may use this Host.
func plainHost(host, port string) bool {
	for _, name := range []string{"127.0.0.1", "[::1]", "localhost"} {
		if host == withPort(name, port) {
			return true
		}
	}
	return false
}

func withPort(host, port string) string {
	if port == "" || port == "80" {
		return host
	}
	return host + ":" + port
}

// browser reports whether a request is marked as a browser's.
func browser(h http.Header) bool {
	for name := range h {
		if name == "Origin" || name == "Cookie" || strings.HasPrefix(name, "Sec-Fetch-") {
			return true
		}
	}
	return false
}

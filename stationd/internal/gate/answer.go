package gate

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"drawbridge/shared/fault"
)

// statuses are the HTTP statuses of refusals (station §10.4, §11).
var statuses = map[fault.Code]int{
	fault.TargetInvalid: http.StatusBadRequest,
	fault.TicketInURL:   http.StatusBadRequest,
	fault.HeaderRefused: http.StatusBadRequest,

	fault.Unauthorized:    http.StatusUnauthorized,
	fault.TicketExpired:   http.StatusUnauthorized,
	fault.TicketRevoked:   http.StatusUnauthorized,
	fault.AttemptReplaced: http.StatusUnauthorized,

	fault.PathOutsidePrefix: http.StatusForbidden,
	fault.MethodDenied:      http.StatusForbidden,
	fault.OriginRefused:     http.StatusForbidden,

	fault.MethodNotAllowed: http.StatusMethodNotAllowed,
	fault.StationEnded:     http.StatusGone,
	fault.LengthRequired:   http.StatusLengthRequired,
	fault.BodyTooLarge:     http.StatusRequestEntityTooLarge,
	fault.HostRefused:      http.StatusMisdirectedRequest,

	fault.TooManyFailures: http.StatusTooManyRequests,
	fault.TooManyRequests: http.StatusTooManyRequests,
	fault.TooManyStreams:  http.StatusTooManyRequests,

	fault.UpgradeUnsupported: http.StatusNotImplemented,
	fault.ProtocolRefused:    http.StatusHTTPVersionNotSupported,

	fault.DaemonUnreachable: http.StatusBadGateway,
	fault.DaemonAuthFailed:  http.StatusBadGateway,
	fault.DaemonAnswer:      http.StatusBadGateway,
	fault.RedirectOutside:   http.StatusBadGateway,
	fault.AnswerTooLarge:    http.StatusBadGateway,

	fault.StationNotReady: http.StatusServiceUnavailable,
	fault.StationStopping: http.StatusServiceUnavailable,
	fault.GateUnavailable: http.StatusServiceUnavailable,

	fault.BodyTimeout:   http.StatusGatewayTimeout,
	fault.DaemonTimeout: http.StatusGatewayTimeout,
}

// decorate sets the headers that every answer has (station §11.2). A nil
// Content-Type keeps net/http from guessing one.
func decorate(h http.Header) {
	h["Content-Type"] = nil
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Content-Security-Policy", "sandbox")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// refusal is an answer of the gate's own.
type refusal struct {
	code   fault.Code
	status int           // 0 means the code's
	close  bool          // the connection is not used again
	wait   time.Duration // told in Retry-After, when not 0
}

// write answers with the code and nothing else.
func (f refusal) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	clear(h)
	decorate(h)
	body := `{"error":"` + string(f.code) + `"}`
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if f.wait > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(f.wait.Seconds()))))
	}
	if f.close || r.ContentLength != 0 {
		h.Set("Connection", "close") // else net/http waits for the body first
	}
	status := f.status
	if status == 0 {
		status = statuses[f.code]
	}
	if status == 0 {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(body)) // whoever left does not need it
	}
}

package upstream

import (
	"context"
	"log/slog"
	"net/http"
)

// Options of a Handler. Ledger, Journal and Credentials are required.
type Options struct {
	Ledger      Ledger
	Journal     *Journal
	Credentials Credentials
	Transport   http.RoundTripper // NewTransport; nil means its defaults

	TestOrigin     string   // of ParseTestOrigin; "" is live
	AllowHeaders   []string // request headers passed on besides the built-in ones (CheckHeader)
	DenyMembers    []string // members of a body that refuse it
	MaxConnections int      // of Server; 0 means MaxConnections

	Log   *slog.Logger
	Now   Now
	Meter *Meter // nil counts for itself
}

// Handler answers the requests of workers.
type Handler struct{ opt Options }

// NewHandler makes a Handler.
func NewHandler(opt Options) (*Handler, error) { return &Handler{opt: opt}, nil }

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {}

// Close ends what a grant has in flight and the connections that carried it, and
// waits for the handlers until ctx ends. The grant's row must no longer be active.
// left is how many handlers still run. Their rows are settled as aborted_by_close;
// Journal.Flush makes that durable.
func (h *Handler) Close(ctx context.Context, grantID string) (left int) { return 0 }

// Serving reports how many requests of a grant are in flight.
func (h *Handler) Serving(grantID string) int { return 0 }

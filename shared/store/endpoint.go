package store

import (
	"context"
	"strings"
)

// Endpoint is where a brokerd listens.
type Endpoint struct {
	ID            string
	Holder        string
	BindAddress   string // IP, or unix:/path
	BindReason    string
	Port          int64 // 0: a socket file
	BaseURL       string
	TransportMode string // live, mocked-test-only
	StartedAt     int64
	EndedAt       int64 // 0: live, or its brokerd died
}

// Kind is EndpointTCP or EndpointUnix.
func (e Endpoint) Kind() string {
	if strings.HasPrefix(e.BindAddress, "unix:") {
		return EndpointUnix
	}
	return EndpointTCP
}

// NewEndpoint is a listener that is bound already.
type NewEndpoint struct {
	BindAddress   string
	BindReason    string
	Port          int64
	BaseURL       string
	TransportMode string
}

const endpointCols = `endpoint_id, holder, bind_address, bind_reason, port, base_url, transport_mode, started_at, coalesce(ended_at, 0)`

func scanEndpoint(r scanner) (e Endpoint, err error) {
	err = r.Scan(&e.ID, &e.Holder, &e.BindAddress, &e.BindReason, &e.Port, &e.BaseURL, &e.TransportMode, &e.StartedAt, &e.EndedAt)
	return e, err
}

var (
	endpointsLive = define(`
SELECT ` + endpointCols + `
FROM broker_endpoints
WHERE ended_at IS NULL
ORDER BY started_at`)

	endpointsEnd = define(`
UPDATE broker_endpoints
SET ended_at = max(started_at, :now)
WHERE ended_at IS NULL`)

	endpointInsert = define(`
INSERT INTO broker_endpoints(endpoint_id, holder, bind_address, bind_reason, port, base_url, transport_mode, started_at)
VALUES (:endpoint, :holder, :address, :reason, :port, :url, :mode, :now)`)

	grantsFollow = define(`
UPDATE broker_grants
SET endpoint_id = :endpoint, revision = revision + 1
WHERE (state = 'requested' OR state = 'active' OR state = 'closing') AND endpoint_id = :old`)
)

// Endpoints lists the endpoints that no brokerd has ended: those of the living
// one, or what one that died left behind.
func (s *Store) Endpoints(ctx context.Context) ([]Endpoint, error) {
	all, err := list(pool{ctx, s.rdb}, scanEndpoint, endpointsLive)
	return all, storeError("list endpoints", err)
}

// OpenEndpoints writes where the brokerd with this lease listens, and ends what an
// earlier one left. Grants of an old endpoint that has the same kind, base URL and
// transport mode as a new one go on there; what is left behind, the brokerd closes.
func (s *Store) OpenEndpoints(ctx context.Context, l *Lease, fresh []NewEndpoint) (made []Endpoint, err error) {
	err = s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		old, err := list(t, scanEndpoint, endpointsLive)
		if err != nil {
			return err
		}
		if _, err := t.exec(endpointsEnd, "now", t.now); err != nil {
			return err
		}
		for _, n := range fresh {
			e := Endpoint{ID: "be_" + t.newID(), Holder: t.holder, BindAddress: n.BindAddress, BindReason: n.BindReason, Port: n.Port,
				BaseURL: n.BaseURL, TransportMode: n.TransportMode, StartedAt: t.now}
			if _, err := t.exec(endpointInsert, "endpoint", e.ID, "holder", e.Holder, "address", e.BindAddress, "reason", e.BindReason,
				"port", e.Port, "url", e.BaseURL, "mode", e.TransportMode, "now", t.now); err != nil {
				return err
			}
			made = append(made, e)
			for _, o := range old {
				if o.Kind() != e.Kind() || o.BaseURL != e.BaseURL || o.TransportMode != e.TransportMode ||
					e.Kind() == EndpointUnix && o.BindAddress != e.BindAddress {
					continue
				}
				if _, err := t.exec(grantsFollow, "endpoint", e.ID, "old", o.ID); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return made, err
}

// EndEndpoints says that nobody listens any more.
func (s *Store) EndEndpoints(ctx context.Context, l *Lease) error {
	return s.transact(ctx, func(t *tx) error {
		if err := t.guard(l); err != nil {
			return err
		}
		_, err := t.exec(endpointsEnd, "now", t.now)
		return err
	})
}

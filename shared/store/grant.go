package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"time"

	"drawbridge/shared/fault"
)

// States of a grant (broker §4). Only active authorises, and only while nobody
// asked to close it and its time is not over: see Authorises.
const (
	GrantRequested = "requested"
	GrantRefused   = "refused"
	GrantActive    = "active"
	GrantClosing   = "closing"
	GrantClosed    = "closed"
	GrantExpired   = "expired"
	GrantRevoked   = "revoked"
)

// Reasons of a close that make a state of their own.
const (
	CloseExpired = "expired"
	CloseRevoked = "revoked"
)

// Endpoint kinds that a grant may ask for.
const (
	EndpointTCP  = "tcp"
	EndpointUnix = "unix"
)

// Bounds of a grant.
const (
	MaxGrantRequests     = 10_000
	DefaultGrantRequests = 128
	GrantLifeLeast       = time.Second
	GrantLife            = 2 * time.Hour // when none is asked for
	GrantLifeMost        = 24 * time.Hour
	maxModel             = 256
	maxLabel             = 128
	maxPath              = 4096

	GrantWait = 5 * time.Second // until a creator gives up on a requested grant
	CloseWait = 7 * time.Second // until a close from another process is not confirmed
	grantPoll = 5 * time.Millisecond
)

// GrantRequest is what a creator asks for. It is stored as it was asked.
type GrantRequest struct {
	Model           string `json:"model"`
	ReasoningEffort string `json:"reasoning_effort,omitempty"` // "": any
	UpstreamOrigin  string `json:"upstream_origin,omitempty"`  // "": the one of the credential's kind
	Endpoint        string `json:"endpoint,omitempty"`         // EndpointTCP ("") or EndpointUnix
	MaxRequests     int64  `json:"max_requests"`               // 0: DefaultGrantRequests
	MaxTotalTokens  int64  `json:"max_total_tokens,omitempty"` // 0: no ceiling
	StrictUsage     bool   `json:"strict_usage,omitempty"`     // the first response without usage closes the grant

	// A registered-run budget (broker §10): several sessions of one run.
	RequestBindingDigest string `json:"request_binding_digest,omitempty"` // sha256:<hex>; "": a budget of its own
	LedgerFile           string `json:"ledger_file,omitempty"`            // absolute path of the anchor
	Initialize           bool   `json:"initialize,omitempty"`             // this is the first session
}

// NewGrant is a grant to be requested.
type NewGrant struct {
	CapabilitySHA256 [sha256.Size]byte
	Request          GrantRequest
	Creator          *Lease // the grant ends with its holder; nil: an operator's, which ends by time or word
	CredentialRef    string // absolute path of the credential file; brokerd reads it
	BasePath         string // "" or "/v1"
	RemoteCIDR       string // "": any peer
	RunID, OwnerID   string // labels of the evidence
	Life             time.Duration
}

// Grant is one row, with what its endpoint and budget add to it.
type Grant struct {
	ID               string
	CapabilitySHA256 [sha256.Size]byte
	Request          GrantRequest
	Creator          string // name of a lease; "" for an operator
	CredentialRef    string
	CredentialKind   string // api_key, access_token; "" until active
	RefusalCode      string // of a refused grant, a fault code
	BasePath         string
	RemoteCIDR       string
	RunID, OwnerID   string
	State            string
	CloseRequestedAt int64 // 0: nobody asked
	CloseReason      string
	Received         int64 // of this session
	Forwarded        int64
	Refused          int64
	CreatedAt        int64
	ExpiresAt        int64
	ClosedAt         int64 // 0: not ended
	Revision         int64

	BudgetID       string
	Origin         string // decided; "" until active
	MaxRequests    int64  // of the budget
	TotalForwarded int64  // of all sessions of the budget
	MeasuredInput  int64
	MeasuredOutput int64
	Unmeasured     int64 // responses that came without usage

	EndpointID    string
	BaseURL       string // what the worker is told, base path included; "" until active
	BindAddress   string
	TransportMode string
}

// Open reports whether the grant is not at its end.
func (g Grant) Open() bool {
	return g.State == GrantRequested || g.State == GrantActive || g.State == GrantClosing
}

// Authorises reports whether a request may use the grant at this time: a wish to
// close and the end of its life work at once, before anybody acts on them.
func (g Grant) Authorises(now int64) bool {
	return authorises(g.State, g.CloseRequestedAt, g.ExpiresAt, now)
}

// Standing is what may change of a grant while it serves.
type Standing struct {
	GrantID          string
	CapabilitySHA256 [sha256.Size]byte
	State            string
	CloseRequestedAt int64
	ExpiresAt        int64
}

// Authorises is that of the Grant.
func (st Standing) Authorises(now int64) bool {
	return authorises(st.State, st.CloseRequestedAt, st.ExpiresAt, now)
}

func authorises(state string, closeRequestedAt, expiresAt, now int64) bool {
	return state == GrantActive && closeRequestedAt == 0 && expiresAt > now
}

// BrokerdLease names the one brokerd that serves the grants of the Store.
func BrokerdLease() string { return "brokerd/main" }

// BudgetLease names the right to be the live session of a registered-run budget.
func BudgetLease(requestBindingDigest string) string {
	return "broker-budget/" + requestBindingDigest
}

// WorkerNetworkLease names the right to make the workers' network.
func WorkerNetworkLease() string { return "worker-network" }

// blob is bytes that are no JSON.
type blob []byte

const grantCols = `g.grant_id, g.capability_sha256, g.request, g.creator, g.credential_ref, coalesce(g.credential_kind, ''),
  coalesce(g.refusal_code, ''), g.base_path, coalesce(g.remote_cidr, ''), coalesce(g.run_id, ''), coalesce(g.owner_id, ''), g.state,
  coalesce(g.close_requested_at, 0), coalesce(g.close_reason, ''), g.received, g.forwarded, g.refused, g.created_at, g.expires_at,
  coalesce(g.closed_at, 0), g.revision,
  coalesce(g.budget_id, ''), coalesce(b.upstream_origin, ''), coalesce(b.max_requests, 0), coalesce(b.reserved, 0),
  coalesce(b.measured_input, 0), coalesce(b.measured_output, 0), coalesce(b.unmeasured_responses, 0),
  coalesce(g.endpoint_id, ''), coalesce(e.base_url || g.base_path, ''), coalesce(e.bind_address, ''), coalesce(e.transport_mode, '')`

const grantFrom = `
FROM broker_grants g
LEFT JOIN broker_budgets b ON b.budget_id = g.budget_id
LEFT JOIN broker_endpoints e ON e.endpoint_id = g.endpoint_id`

func scanGrant(r scanner) (g Grant, err error) {
	var hash, request []byte
	err = r.Scan(&g.ID, &hash, &request, &g.Creator, &g.CredentialRef, &g.CredentialKind,
		&g.RefusalCode, &g.BasePath, &g.RemoteCIDR, &g.RunID, &g.OwnerID, &g.State,
		&g.CloseRequestedAt, &g.CloseReason, &g.Received, &g.Forwarded, &g.Refused, &g.CreatedAt, &g.ExpiresAt,
		&g.ClosedAt, &g.Revision,
		&g.BudgetID, &g.Origin, &g.MaxRequests, &g.TotalForwarded, &g.MeasuredInput, &g.MeasuredOutput, &g.Unmeasured,
		&g.EndpointID, &g.BaseURL, &g.BindAddress, &g.TransportMode)
	if err != nil {
		return g, err
	}
	copy(g.CapabilitySHA256[:], hash)
	if json.Unmarshal(request, &g.Request) != nil {
		g.Request = GrantRequest{} // of a program that is not ours: it names no model, so that no brokerd serves it
	}
	return g, nil
}

var (
	grantInsert = define(`
INSERT INTO broker_grants(grant_id, capability_sha256, request, creator, credential_ref, base_path, remote_cidr, run_id, owner_id,
  state, created_at, expires_at)
VALUES (:grant, :hash, :request, :creator, :credential, :base_path, :cidr, :run, :owner, 'requested', :now, :now + :life)`)

	grantByID = define(`
SELECT ` + grantCols + grantFrom + `
WHERE g.grant_id = :grant`)

	// Asked for every request: few columns and no joins are a tenth of the whole row.
	grantStanding = define(`
SELECT grant_id, capability_sha256, state, coalesce(close_requested_at, 0), expires_at
FROM broker_grants
WHERE capability_sha256 = :hash`)

	grantsOpen = define(`
SELECT ` + grantCols + grantFrom + `
WHERE (g.state = 'requested' OR g.state = 'active' OR g.state = 'closing')
ORDER BY g.created_at`)

	grantsWaiting = define(`
SELECT EXISTS (
  SELECT 1
  FROM broker_grants
  WHERE (state = 'requested' OR state = 'active' OR state = 'closing')
    AND (state <> 'active' OR close_requested_at IS NOT NULL OR expires_at <= :now))`)

	grantsOfRun = define(`
SELECT ` + grantCols + grantFrom + `
WHERE g.run_id = :run
ORDER BY g.created_at`)

	grantAskClose = define(`
UPDATE broker_grants
SET close_requested_at = :now, close_reason = coalesce(close_reason, :reason), revision = revision + 1
WHERE grant_id = :grant AND close_requested_at IS NULL AND (state = 'requested' OR state = 'active')`)
)

// CreateGrant asks for a grant: a row in state requested, which the brokerd of the
// Store takes up or refuses. model_required, invalid_arguments, lease_lost.
func (s *Store) CreateGrant(ctx context.Context, n NewGrant) (g Grant, err error) {
	if n, err = n.complete(); err != nil {
		return g, err
	}
	request, err := json.Marshal(n.Request)
	if err != nil {
		return g, fault.New(fault.Internal, "ask for a grant: %w", err)
	}
	err = s.transact(ctx, func(t *tx) error {
		creator := ""
		if n.Creator != nil {
			if err := t.guard(n.Creator); err != nil {
				return err
			}
			creator = n.Creator.Name
		}
		id := "bg_" + strings.ReplaceAll(t.newID(), "-", "")
		if _, err := t.exec(grantInsert, "grant", id, "hash", blob(n.CapabilitySHA256[:]), "request", request, "creator", creator,
			"credential", n.CredentialRef, "base_path", n.BasePath, "cidr", orNull(n.RemoteCIDR), "run", orNull(n.RunID),
			"owner", orNull(n.OwnerID), "now", t.now, "life", n.Life.Milliseconds()); err != nil {
			return err
		}
		g, err = t.grant(id)
		return err
	})
	return g, err
}

// complete fills in defaults and refuses what no brokerd could take up.
func (n NewGrant) complete() (NewGrant, error) {
	r := &n.Request
	if r.MaxRequests == 0 {
		r.MaxRequests = DefaultGrantRequests
	}
	if n.Life == 0 {
		n.Life = GrantLife
	}
	refuse := func(format string, args ...any) (NewGrant, error) {
		return n, fault.New(fault.InvalidArguments, "ask for a grant: "+format, args...)
	}
	switch {
	case r.Model == "":
		return n, fault.New(fault.ModelRequired, "ask for a grant: it names no model").WithHint("a grant is bound to exactly one model")
	case len(r.Model) > maxModel:
		return refuse("the model's name has %d bytes, at most are %d", len(r.Model), maxModel)
	case n.CapabilitySHA256 == [sha256.Size]byte{}:
		return refuse("the hash of its capability is missing")
	case !validEffort(r.ReasoningEffort):
		return refuse("reasoning effort %.40q is none of minimal, low, medium, high, xhigh", r.ReasoningEffort)
	case r.MaxRequests < 1 || r.MaxRequests > MaxGrantRequests:
		return refuse("%d requests; a grant has 1 to %d", r.MaxRequests, MaxGrantRequests)
	case r.MaxTotalTokens < 0:
		return refuse("a ceiling of %d tokens", r.MaxTotalTokens)
	case r.Endpoint != "" && r.Endpoint != EndpointTCP && r.Endpoint != EndpointUnix:
		return refuse("endpoint %.40q is neither %s nor %s", r.Endpoint, EndpointTCP, EndpointUnix)
	case n.Life < GrantLifeLeast || n.Life > GrantLifeMost:
		return refuse("a life of %s; a grant lives %s to %s", n.Life, GrantLifeLeast, GrantLifeMost)
	case n.BasePath != "" && n.BasePath != "/v1":
		return refuse("base path %.40q is neither empty nor /v1", n.BasePath)
	case !strings.HasPrefix(n.CredentialRef, "/"):
		return refuse("the path of the credential file is not absolute")
	case max(len(n.CredentialRef), len(r.LedgerFile)) > maxPath:
		return refuse("a path is longer than %d bytes", maxPath)
	case max(len(n.RunID), len(n.OwnerID), len(n.RemoteCIDR), len(r.UpstreamOrigin)) > maxLabel:
		return refuse("a label is longer than %d bytes", maxLabel)
	case r.RequestBindingDigest != "" && !validDigest(r.RequestBindingDigest):
		return refuse("request_binding_digest is not sha256: and 64 lower hex digits")
	case (r.RequestBindingDigest != "") != (r.LedgerFile != "") || r.RequestBindingDigest == "" && r.Initialize:
		return refuse("a registered-run budget has request_binding_digest and ledger_file together")
	case r.LedgerFile != "" && !strings.HasPrefix(r.LedgerFile, "/"):
		return refuse("the path of the ledger file is not absolute")
	}
	return n, nil
}

func validEffort(e string) bool {
	switch e {
	case "", "minimal", "low", "medium", "high", "xhigh":
		return true
	}
	return false
}

func validDigest(d string) bool {
	hexes, ok := strings.CutPrefix(d, "sha256:")
	return ok && len(hexes) == 2*sha256.Size && strings.Trim(hexes, "0123456789abcdef") == ""
}

// Grant gives one grant, or not_found.
func (s *Store) Grant(ctx context.Context, id string) (Grant, error) {
	return only(pool{ctx, s.rdb}, scanGrant, "grant", id, grantByID, "grant", id)
}

// GrantStanding finds a grant by the hash of its capability and says how it stands
// now; ok is false when there is none.
func (s *Store) GrantStanding(ctx context.Context, hash [sha256.Size]byte) (st Standing, ok bool, err error) {
	st, ok, err = first(pool{ctx, s.rdb}, func(r scanner) (st Standing, err error) {
		var sum []byte
		err = r.Scan(&st.GrantID, &sum, &st.State, &st.CloseRequestedAt, &st.ExpiresAt)
		copy(st.CapabilitySHA256[:], sum)
		return st, err
	}, grantStanding, "hash", blob(hash[:]))
	return st, ok, storeError("look up a capability", err)
}

// OpenGrants lists the grants that are not at their end, the oldest first.
func (s *Store) OpenGrants(ctx context.Context) ([]Grant, error) {
	all, err := list(pool{ctx, s.rdb}, scanGrant, grantsOpen)
	return all, storeError("list grants", err)
}

// GrantsWaiting reports whether a grant waits for the brokerd: to be taken up, to be
// closed, or at the end of its life. It costs next to nothing.
func (s *Store) GrantsWaiting(ctx context.Context) (bool, error) {
	n, _, err := first(pool{ctx, s.rdb}, scanInt, grantsWaiting, "now", s.Now())
	return n != 0, storeError("look for grants", err)
}

// GrantsOfRun lists the grants with this run label, the oldest first.
func (s *Store) GrantsOfRun(ctx context.Context, runID string) ([]Grant, error) {
	all, err := list(pool{ctx, s.rdb}, scanGrant, grantsOfRun, "run", runID)
	return all, storeError("list grants", err)
}

// RequestClose asks for the end of a grant. From this commit on the capability
// opens nothing; the brokerd ends what runs and closes the grant. A second wish,
// and one for a grant at its end, change nothing: the first reason stays.
func (s *Store) RequestClose(ctx context.Context, id, reason string) (g Grant, err error) {
	err = s.transact(ctx, func(t *tx) error {
		n, err := t.exec(grantAskClose, "grant", id, "reason", reason, "now", t.now)
		if err != nil {
			return err
		}
		t.silent = n == 0
		g, err = t.grant(id)
		return err
	})
	return g, err
}

// AwaitGrant waits until the brokerd has taken up or refused a grant: the active
// grant, its refusal as a fault with the code of broker §12, grant_closed, or,
// after wait, broker_unavailable with the grant still requested.
func (s *Store) AwaitGrant(ctx context.Context, id string, wait time.Duration) (Grant, error) {
	g, err := s.awaitGrant(ctx, id, wait, func(g Grant) bool { return g.State != GrantRequested })
	switch {
	case err != nil:
		return g, err
	case g.State == GrantRequested:
		return g, fault.New(fault.BrokerUnavailable, "take out grant %s: no brokerd took it up in %s", id, wait).
			WithHint("start brokerd serve on this Store").With("grant_id", id)
	case g.State == GrantRefused:
		return g, s.refusal(ctx, g)
	case g.State != GrantActive:
		return g, fault.New(fault.GrantClosed, "take out grant %s: it is %s (%s)", id, g.State, g.CloseReason).With("grant_id", id)
	}
	return g, nil
}

// AwaitClosed waits until a grant is at its end. broker_close_unconfirmed after
// wait: the capability opens nothing, but what ran may still run.
func (s *Store) AwaitClosed(ctx context.Context, id string, wait time.Duration) (Grant, error) {
	g, err := s.awaitGrant(ctx, id, wait, func(g Grant) bool { return !g.Open() })
	if err == nil && g.Open() {
		err = fault.New(fault.BrokerCloseUnconfirmed, "close grant %s: brokerd has not confirmed it in %s", id, wait).
			WithHint("the grant opens nothing any more; brokerd status shows who serves").With("grant_id", id)
	}
	return g, err
}

// awaitGrant reads until done or until wait has passed. It does not listen to the
// doorbell: who waits here seldom has one running.
func (s *Store) awaitGrant(ctx context.Context, id string, wait time.Duration, done func(Grant) bool) (Grant, error) {
	deadline := time.Now().Add(wait)
	for {
		g, err := s.Grant(ctx, id)
		if err != nil || done(g) || !time.Now().Before(deadline) {
			return g, err
		}
		select {
		case <-time.After(grantPoll):
		case <-ctx.Done():
			return g, context.Cause(ctx)
		}
	}
}

func (t *tx) grant(id string) (Grant, error) {
	return only(t, scanGrant, "grant", id, grantByID, "grant", id)
}

package upstream

import "encoding/json"

// Outcomes of a forwarded request (broker §9). The last two are the Ledger's.
const (
	Reserved       = "reserved"
	Completed      = "completed"
	UpstreamStatus = "upstream_status" // status ≥ 400
	UpstreamError  = "upstream_error"
	ClientGone     = "client_gone"
	AbortedByClose = "aborted_by_close"
	Interrupted    = "interrupted" // found reserved at the next start
)

// What a row says about who answered.
const (
	basisLive  = "host-observed-request-to-allowlisted-openai-endpoint"
	basisMock  = "host-observed-request-to-test-endpoint"
	unverified = "unverified"
)

// Usage are the tokens that a provider reported; unavailable is a nil *Usage,
// never zero.
type Usage struct {
	InputTokens       int64  `json:"input_tokens"`
	OutputTokens      int64  `json:"output_tokens"`
	CachedInputTokens *int64 `json:"cached_input_tokens"`
}

// Evidence is the row of one forwarded request. Its members, their order and
// names are those of the export (broker §9). Times are Unix milliseconds. The digests of
// the texts are null until the row is settled; what was sent is pinned from the first by
// the digests of the request.
type Evidence struct {
	Seq                       int64    `json:"seq"`
	GrantID                   string   `json:"grant_id"`
	RunID                     *string  `json:"run_id"`
	OwnerID                   *string  `json:"owner_id"`
	Operation                 string   `json:"operation"`
	Model                     string   `json:"model"`
	ReasoningEffort           *string  `json:"reasoning_effort"`
	InputTextDigests          []string `json:"input_text_digests"`
	InputTextDigestsTruncated bool     `json:"input_text_digests_truncated,omitempty"`
	RequestDigest             string   `json:"request_digest"`
	ForwardedRequestDigest    string   `json:"forwarded_request_digest"`
	RequestBytes              int64    `json:"request_bytes"`
	UpstreamOrigin            string   `json:"upstream_origin"`
	Status                    *int     `json:"status"`
	Outcome                   string   `json:"outcome"`
	ProviderIdentityBasis     string   `json:"provider_identity_basis"`
	ServerModelIdentity       string   `json:"server_model_identity"`
	TransportMode             string   `json:"transport_mode"`
	ResponseUsage             *Usage   `json:"response_usage"`
	ReportedModel             *string  `json:"reported_model"`
	StartedAt                 int64    `json:"started_at"`
	FirstByteAt               *int64   `json:"first_byte_at"`
	EndedAt                   *int64   `json:"ended_at"`
	ResponseBytes             int64    `json:"response_bytes"`
	ResponseTruncated         bool     `json:"response_truncated,omitempty"`
	Redactions                int64    `json:"redactions"`
}

// JSON gives the row as it is stored.
func (e Evidence) JSON() []byte {
	data, err := json.Marshal(e)
	if err != nil { // texts and numbers only
		panic("upstream: " + err.Error())
	}
	return data
}

// Unmeasured reports whether the provider answered and did not say what it cost.
func (e Evidence) Unmeasured() bool {
	return e.ResponseUsage == nil && e.Status != nil && *e.Status < 400
}

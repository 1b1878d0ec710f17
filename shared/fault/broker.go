package fault

// Codes of the broker (broker.md §12).
const (
	CredentialUnavailable Code = "credential_unavailable"
	CredentialPermissions Code = "credential_permissions"
	CredentialExpired     Code = "credential_expired"
	OriginNotAllowed      Code = "origin_not_allowed"
	ModelRequired         Code = "model_required"
	ListenerUnavailable   Code = "listener_unavailable"
	GrantClosed           Code = "grant_closed"

	BudgetMissing   Code = "budget_missing"
	BudgetExists    Code = "budget_exists"
	BudgetOwned     Code = "budget_owned"
	BudgetMismatch  Code = "budget_binding_mismatch"
	BudgetIntegrity Code = "budget_integrity"
	BudgetExhausted Code = "budget_exhausted"

	BrokerUnavailable      Code = "broker_unavailable"
	BrokerCloseUnconfirmed Code = "broker_close_unconfirmed"
)

func init() {
	register(1, CredentialUnavailable, "The credential file is missing, empty, too large, or holds neither an API key nor an access token that fits a header.")
	register(1, CredentialPermissions, "The credential file is a link, no regular file, of another owner, or open to others; it was not read.")
	register(1, CredentialExpired, "The access token is past its end, or less than a minute before it.")
	register(1, OriginNotAllowed, "The upstream is none of the two that brokerd knows, or does not belong to this kind of credential.")
	register(1, ModelRequired, "A grant is bound to one model, and none was named.")
	register(69, ListenerUnavailable, "brokerd or stationd cannot listen where it was told to, or brokerd has no listener of the kind that the grant asks for.")
	register(1, GrantClosed, "The grant is at its end: closed, expired or revoked.")
	register(1, BudgetMissing, "The budget of a registered run does not exist, and this session does not initialise it.")
	register(1, BudgetExists, "The budget of a registered run, or its ledger file, exists already and is not initialised a second time.")
	register(75, BudgetOwned, "Another live session uses the budget.")
	register(1, BudgetMismatch, "Model, effort, upstream, limit or ledger file differ from those of the budget.")
	register(1, BudgetIntegrity, "The ledger file of a budget is missing, not private, or not the one that belongs to it; nothing is forwarded.")
	register(1, BudgetExhausted, "The requests or tokens of the budget are spent.")
	register(69, BrokerUnavailable, "No brokerd on this Store took up the grant in time.")
	register(1, BrokerCloseUnconfirmed, "The grant opens nothing any more, but brokerd has not confirmed that what ran has ended.")
}

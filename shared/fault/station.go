package fault

// Codes of stations, their attempts, leases, principals and tickets as the Store
// keeps them (station.md §3, §4, §10).
const (
	AttemptExists   Code = "attempt_exists"
	AttemptState    Code = "attempt_state_invalid"
	LeaseInUse      Code = "lease_in_use"
	LeaseState      Code = "lease_state_invalid"
	ForceReason     Code = "force_reason_required"
	PrincipalExists Code = "principal_exists"
	RoleDenied      Code = "role_denied"
	TicketScope     Code = "ticket_scope_invalid"
	TooManyTickets  Code = "too_many_tickets"
)

func init() {
	register(1, AttemptExists, "The station has an attempt that has not ended; stop it, or start with --replace.")
	register(1, AttemptState, "The attempt is not in a state from which this move exists.")
	register(1, LeaseInUse, "The lease carries an attempt that has not ended; it is released after it.")
	register(1, LeaseState, "The lease is not in a state from which this move exists.")
	register(2, ForceReason, "Releasing a lease by force needs a reason, which is recorded.")
	register(1, PrincipalExists, "The organisation has a principal of that name, or the user has one already.")
	register(1, RoleDenied, "The principal is revoked, or has no role on the station that allows this.")
	register(2, TicketScope, "A ticket lives 15 s to 900 s, has a path prefix within the station's bridge, methods that a bridge passes on, and a bound of uses that is not negative.")
	register(1, TooManyTickets, "The attempt has as many live tickets as it may have.")
}

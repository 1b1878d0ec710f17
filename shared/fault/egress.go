package fault

// Codes of a station's way out (station §9). What the proxy answers a daemon is
// not among them: those codes stand in evidence only.
const (
	EgressProfileInvalid Code = "egress_profile_invalid"
	EgressProfileUnknown Code = "egress_profile_unknown"
	EgressUnenforceable  Code = "egress_unenforceable"
)

func init() {
	register(2, EgressProfileInvalid, "The file of egress profiles is malformed, names a destination that no profile may open, opens a private network without its review, or could be changed by others.")
	register(1, EgressProfileUnknown, "No egress profile has this name.")
	register(1, EgressUnenforceable, "The machine cannot keep a daemon from the network, and accept_unenforced_egress was not given.")
}

package fault

// Codes of stationd's control socket and of its command line (station.md §15).
const (
	StationdUnavailable Code = "stationd_unavailable"
	PeerRefused         Code = "peer_refused"
	EvidenceFlawed      Code = "evidence_flawed"
	SecretAsArgument    Code = "secret_as_argument"
)

func init() {
	register(69, StationdUnavailable, "No stationd answers at the control socket of this runtime directory.")
	register(1, PeerRefused, "The user has no current principal, or the request is for the user of stationd alone.")
	register(1, EvidenceFlawed, "A station's chain of events, or a document of its evidence, is not as it was written.")
	register(2, SecretAsArgument, "An argument holds a ticket or another secret; arguments are seen by every process of the machine.")
}

package fault

// Codes of the gate of stationd: what a client of a bridge is told (station.md
// §10.4, §11). An answer carries the code and nothing else.
const (
	Unauthorized       Code = "unauthorized"
	TicketExpired      Code = "ticket_expired"
	TicketRevoked      Code = "ticket_revoked"
	AttemptReplaced    Code = "attempt_replaced"
	PathOutsidePrefix  Code = "path_outside_prefix"
	MethodDenied       Code = "method_denied"
	StationNotReady    Code = "station_not_ready"
	StationStopping    Code = "station_stopping"
	StationEnded       Code = "station_ended"
	TicketInURL        Code = "ticket_in_url"
	TargetInvalid      Code = "target_invalid"
	HostRefused        Code = "host_refused"
	OriginRefused      Code = "origin_refused"
	MethodNotAllowed   Code = "method_not_allowed"
	UpgradeUnsupported Code = "upgrade_unsupported"
	LengthRequired     Code = "length_required"
	ProtocolRefused    Code = "protocol_refused"
	HeaderRefused      Code = "header_refused"
	TooManyFailures    Code = "too_many_failures"
	TooManyRequests    Code = "too_many_requests"
	TooManyStreams     Code = "too_many_streams"
	BodyTooLarge       Code = "body_too_large"
	BodyTimeout        Code = "body_timeout"
	DaemonUnreachable  Code = "daemon_unreachable"
	DaemonTimeout      Code = "daemon_timeout"
	DaemonAuthFailed   Code = "daemon_auth_failed"
	DaemonAnswer       Code = "daemon_answer_refused"
	RedirectOutside    Code = "redirect_outside"
	AnswerTooLarge     Code = "answer_too_large"
	GateUnavailable    Code = "gate_unavailable"

	// Refusals of a bridge's configuration.
	HeaderNotAllowable Code = "header_not_allowable"
	ListenNotLoopback  Code = "listen_not_loopback"
	BridgeInvalid      Code = "bridge_invalid"
)

func init() {
	register(1, Unauthorized, "No current principal with a right to this station, or no ticket of its own for exactly this attempt; nothing says which.")
	register(1, TicketExpired, "The ticket is past its time or its uses; take a new one.")
	register(1, TicketRevoked, "The ticket was revoked; take a new one.")
	register(1, AttemptReplaced, "The ticket is for an attempt that a newer one replaced; take a new one.")
	register(1, PathOutsidePrefix, "The path is outside the prefix that the ticket is for.")
	register(1, MethodDenied, "The ticket is not for this method.")
	register(1, StationNotReady, "The station's daemon is not ready yet.")
	register(1, StationStopping, "The station stops; nothing new is taken.")
	register(1, StationEnded, "The attempt has ended.")
	register(1, TicketInURL, "A ticket or a principal's secret stands in the address or in Referer; it belongs in a header, and should be replaced now.")
	register(1, TargetInvalid, "The request target is not a path in the one accepted form, climbs above its root, or is too long.")
	register(1, HostRefused, "The Host is not the gate's, or a browser's request does not use the host name of its own attempt.")
	register(1, OriginRefused, "A browser's request comes from another origin than the attempt's own.")
	register(1, MethodNotAllowed, "The gate does not pass on this method.")
	register(1, UpgradeUnsupported, "WebSocket, HTTP/2 and other upgrades are not passed on.")
	register(1, LengthRequired, "The request has a Transfer-Encoding; send it with a Content-Length.")
	register(1, ProtocolRefused, "The gate speaks HTTP/1.1 only.")
	register(1, HeaderRefused, "A header that would be passed on is repeated, too long, or holds a credential.")
	register(1, TooManyFailures, "Ten refused requests came from this address within a minute; it has to wait.")
	register(1, TooManyRequests, "The attempt has as many requests running as it may have.")
	register(1, TooManyStreams, "The attempt or the ticket has as many event streams open as it may have.")
	register(1, BodyTooLarge, "The request body is larger than the bridge takes.")
	register(1, BodyTimeout, "The request body stopped arriving.")
	register(1, DaemonUnreachable, "The station's daemon could not be reached or broke off before its answer.")
	register(1, DaemonTimeout, "The station's daemon did not begin its answer in time.")
	register(1, DaemonAuthFailed, "The station's daemon refused the credential that the gate added.")
	register(1, DaemonAnswer, "The station's daemon answered with something that is not passed on: an upgrade, an impossible status, an unusable header, a compressed stream.")
	register(1, RedirectOutside, "The station's daemon redirects to a place outside itself.")
	register(1, AnswerTooLarge, "The answer of the station's daemon is larger than the bridge passes on.")
	register(75, GateUnavailable, "The right to this request could not be looked up now.")

	register(2, HeaderNotAllowable, "A header that a bridge may never pass on stands in headerAllow.")
	register(2, ListenNotLoopback, "The gate listens on loopback or a unix socket only.")
	register(2, BridgeInvalid, "A setting of a bridge is malformed or over its bound.")
}

package control

import (
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
)

// issueTicket makes a ticket; only its hash is kept.
func (s *Server) issueTicket(q *request) error {
	id := q.vars["station"]
	if _, err := s.may(q, id, operate); err != nil {
		return err
	}
	var ask TicketRequest
	if err := q.decode(&ask); err != nil {
		return err
	}
	prefix, err := s.scope(q, id, ask.Prefix)
	if err != nil {
		return err
	}
	var life time.Duration
	if ask.TTL != "" {
		if life, err = time.ParseDuration(ask.TTL); err != nil || life <= 0 {
			return fault.New(fault.TicketScope, "issue a ticket: ttl is no duration such as 5m")
		}
	}
	for _, m := range ask.Methods { // none means all, so one that is none must not count as none
		if !gate.Passes(m) {
			return fault.New(fault.TicketScope, "issue a ticket: %.20q is no method of a bridge", m).
				WithHint("methods are GET, HEAD, POST, PUT, PATCH, DELETE and OPTIONS, in capitals")
		}
	}
	lease, err := s.lease()
	if err != nil {
		return err
	}
	user := ask.Principal
	if user == "" {
		user = q.by.ID
	}
	secret, digest := gate.NewTicket()
	k, err := s.opts.Store.IssueTicket(q.Context(), lease, store.NewTicket{
		SecretSHA256: digest, Issuer: q.by.ID, PrincipalID: user, StationID: id, Prefix: prefix,
		Methods: ask.Methods, MaxUses: ask.Uses, Life: life,
	})
	if err != nil {
		return err
	}
	return s.reply(q, Ticket{
		Ticket: secret.Reveal(), TicketID: k.ID, StationID: k.StationID, Attempt: k.Attempt, Prefix: k.Prefix,
		ExpiresAt: at(k.ExpiresAt), Bridge: s.bridge(k.StationID, k.Attempt),
	})
}

// scope is a ticket's prefix in its one form: the bridge's own, or one within it.
func (s *Server) scope(q *request, id, asked string) (string, error) {
	st, err := s.opts.Store.Station(q.Context(), id)
	if err != nil {
		return "", err
	}
	bridge, ok := bridgePrefix(st.Spec)
	if !ok {
		return "", fault.New(fault.TicketScope, "issue a ticket: station %s has no bridge", id).WithHint("its spec would have to hold bridge")
	}
	if asked == "" {
		asked = bridge
	}
	prefix, err := gate.ParsePrefix(asked)
	if err != nil {
		return "", fault.New(fault.TicketScope, "issue a ticket: the prefix is not a path from / on without a query")
	}
	if t, err := gate.ParseTarget(prefix, 0); err != nil || !t.Within(bridge) {
		return "", fault.New(fault.TicketScope, "issue a ticket: the bridge of station %s begins at %s", id, bridge).
			WithHint("ask for a prefix within that, or for none")
	}
	return prefix, nil
}

func (s *Server) revokeTicket(q *request) error {
	k, err := s.opts.Store.Ticket(q.Context(), q.vars["ticket"])
	if err != nil {
		return err
	}
	if _, err := s.may(q, k.StationID, operate); err != nil {
		if fault.Is(err, fault.NotFound) {
			err = fault.New(fault.NotFound, "there is no ticket %s for this principal", k.ID)
		}
		return err
	}
	lease, err := s.lease()
	if err != nil {
		return err
	}
	if k, err = s.opts.Store.RevokeTicket(q.Context(), lease, k.ID); err != nil {
		return err
	}
	return s.reply(q, TicketState{
		TicketID: k.ID, StationID: k.StationID, Attempt: k.Attempt, RevokedAt: orNever(k.RevokedAt), RevokedReason: k.RevokedReason,
	})
}

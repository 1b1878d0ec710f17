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
	prefix, err := gate.ParsePrefix(ask.Prefix)
	if err != nil {
		return fault.New(fault.TicketScope, "issue a ticket: the prefix is not a path from / on without a query")
	}
	var life time.Duration
	if ask.TTL != "" {
		if life, err = time.ParseDuration(ask.TTL); err != nil || life <= 0 {
			return fault.New(fault.TicketScope, "issue a ticket: ttl is no duration such as 5m")
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

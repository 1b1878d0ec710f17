package control

import (
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/gate"
)

func (s *Server) members(q *request) error {
	id := q.vars["station"]
	if _, err := s.may(q, id, operate); err != nil {
		return err
	}
	return s.replyMembers(q, id)
}

func (s *Server) replyMembers(q *request, id string) error {
	all, err := s.opts.Store.Members(q.Context(), id)
	if err != nil {
		return err
	}
	out := MemberList{Members: []Member{}}
	for _, m := range all {
		out.Members = append(out.Members, Member{
			PrincipalID: m.PrincipalID, Name: m.Name, Role: m.Role, GrantedAt: at(m.GrantedAt), RevokedAt: orNever(m.RevokedAt),
		})
	}
	return s.reply(q, out)
}

func (s *Server) grant(q *request) error {
	var ask RoleRequest
	if err := q.decode(&ask); err != nil {
		return err
	}
	return s.changeRole(q, func(l *store.Lease, id, principal string) error {
		return s.opts.Store.GrantRole(q.Context(), l, id, principal, ask.Role)
	})
}

func (s *Server) revokeRole(q *request) error {
	return s.changeRole(q, func(l *store.Lease, id, principal string) error {
		return s.opts.Store.RevokeRole(q.Context(), l, id, principal)
	})
}

// changeRole changes one role on a station and answers with all.
func (s *Server) changeRole(q *request, change func(l *store.Lease, id, principal string) error) error {
	id := q.vars["station"]
	if _, err := s.may(q, id, own); err != nil {
		return err
	}
	principal := q.vars["principal"]
	if _, err := s.opts.Store.Principal(q.Context(), principal); fault.Is(err, fault.NotFound) {
		return fault.New(fault.NotFound, "change a role on station %s: there is no principal %.64q", id, principal).
			WithHint("a principal is named by its id, prn_…; stationd principal list shows it beside the name, to the user that runs stationd")
	} else if err != nil {
		return err
	}
	lease, err := s.lease()
	if err != nil {
		return err
	}
	if err := change(lease, id, principal); err != nil {
		return err
	}
	return s.replyMembers(q, id)
}

// steward refuses everybody but the user that runs stationd (station §10.1).
func (s *Server) steward(q *request) error {
	if q.by.PeerUID == int64(self) {
		return nil
	}
	return fault.New(fault.PeerRefused, "principals are looked after by the user that runs stationd")
}

func (s *Server) principals(q *request) error {
	if err := s.steward(q); err != nil {
		return err
	}
	all, err := s.opts.Store.Principals(q.Context(), q.by.Org)
	if err != nil {
		return err
	}
	out := PrincipalList{Principals: []Principal{}}
	for _, p := range all {
		out.Principals = append(out.Principals, principalOf(p))
	}
	return s.reply(q, out)
}

// addPrincipal adds one to the organisation of whoever asks. A secret is made here,
// shown in the answer, and kept as a hash.
func (s *Server) addPrincipal(q *request) error {
	var ask PrincipalRequest
	if err := q.decode(&ask); err != nil {
		return err
	}
	if err := s.steward(q); err != nil {
		return err
	}
	lease, err := s.lease()
	if err != nil {
		return err
	}
	n := store.NewPrincipal{Org: q.by.Org, Name: ask.Name}
	shown := ""
	if ask.UID != nil {
		n.PeerUID = *ask.UID
	} else {
		secret, digest := gate.NewPrincipalSecret()
		n.SecretSHA256, shown = digest, secret.Reveal()
	}
	p, err := s.opts.Store.AddPrincipal(q.Context(), lease, n)
	if err != nil {
		return err
	}
	out := principalOf(p)
	out.Secret = shown
	return s.reply(q, out)
}

// revokePrincipal ends one of the caller's organisation. The principal of the user
// that runs stationd stays: without it nobody could look after the others.
func (s *Server) revokePrincipal(q *request) error {
	if err := s.steward(q); err != nil {
		return err
	}
	p, err := s.opts.Store.Principal(q.Context(), q.vars["principal"])
	switch {
	case fault.Is(err, fault.NotFound), err == nil && p.Org != q.by.Org:
		return fault.New(fault.NotFound, "there is no principal %.64q in %s", q.vars["principal"], q.by.Org).
			WithHint("stationd principal list shows the ids (prn_…)")
	case err != nil:
		return err
	case p.ID == q.by.ID:
		return fault.New(fault.InvalidArguments, "revoke principal %s: it is the user that runs stationd", p.ID)
	}
	lease, err := s.lease()
	if err != nil {
		return err
	}
	if p, err = s.opts.Store.RevokePrincipal(q.Context(), lease, p.ID); err != nil {
		return err
	}
	return s.reply(q, principalOf(p))
}

func principalOf(p store.Principal) Principal {
	out := Principal{PrincipalID: p.ID, Org: p.Org, Name: p.Name, CreatedAt: at(p.CreatedAt), RevokedAt: orNever(p.RevokedAt)}
	if p.PeerUID >= 0 {
		out.UID = &p.PeerUID
	}
	return out
}

package control

import (
	"drawbridge/shared/fault"
)

// release gives a lease back, whose station the caller has to control.
func (s *Server) release(q *request) error {
	var ask ReleaseRequest
	if err := q.decode(&ask); err != nil {
		return err
	}
	id := q.vars["lease"]
	a, err := s.opts.Store.AttemptOfWorkspace(q.Context(), id)
	if err == nil {
		_, err = s.may(q, a.StationID, operate)
	}
	switch {
	case fault.Is(err, fault.NotFound):
		return fault.New(fault.NotFound, "there is no lease %.64q for this principal", id)
	case err != nil:
		return err
	case ask.Force && ask.Reason == "":
		return fault.New(fault.ForceReason, "release lease %s by force: say why", id)
	case !ask.Force && ask.Reason != "":
		return fault.New(fault.InvalidArguments, "release lease %s: a reason is for a release by force", id)
	}
	w, err := s.opts.Manager.ReleaseLease(q.Context(), q.by, id, ask.Force, ask.Reason)
	if err != nil {
		return err
	}
	return s.reply(q, Lease{LeaseID: w.LeaseID, Provider: w.Provider, State: w.State, ReleasedAt: orNever(w.ReleasedAt), Cleanup: w.Cleanup})
}

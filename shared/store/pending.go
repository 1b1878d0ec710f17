package store

import (
	"context"
	"errors"
	"time"
)

var errPending = errors.New("the Store is being written")

func blocking(status string) bool {
	switch status {
	case TurnCreated, TurnRunning, TurnWaitingForAgent, TurnWaitingForController, TurnStalled, TurnCancelling:
		return true
	}
	return false
}

// ---- sessions
func (s *Store) Session(ctx context.Context, id string) (Session, error) {
	return Session{}, errPending
}
func (s *Store) Sessions(ctx context.Context, f SessionFilter) ([]Session, error) {
	return nil, errPending
}
func (s *Store) Bound(ctx context.Context) ([]Bound, error) { return nil, errPending }
func (s *Store) Binding(ctx context.Context, id string) (Binding, error) {
	return Binding{}, errPending
}
func (s *Store) Bindings(ctx context.Context, sessionID string) ([]Binding, error) {
	return nil, errPending
}
func (s *Store) SessionTurns(ctx context.Context, sessionID string) (int64, error) {
	return 0, errPending
}

// ---- turns
func (s *Store) Turn(ctx context.Context, id string) (Turn, error)       { return Turn{}, errPending }
func (s *Store) Turns(ctx context.Context, f TurnFilter) ([]Turn, error) { return nil, errPending }
func (s *Store) TurnEvents(ctx context.Context, turnID string, last int) ([]TurnEvent, error) {
	return nil, errPending
}
func (s *Store) RenewTurn(ctx context.Context, r TurnRenew) (Turn, error) { return Turn{}, errPending }
func (s *Store) CancelTurn(ctx context.Context, l *Lease, c TurnCancel) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) CloseTurn(ctx context.Context, c TurnClose) (Turn, error) { return Turn{}, errPending }
func (s *Store) CloseOrphan(ctx context.Context, c TurnClose, expectedMessageID string) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) CloseRetention(ctx context.Context, turnID string, minutes float64) ([]Turn, error) {
	return nil, errPending
}

// ---- dispatches
func (s *Store) Replay(ctx context.Context, r Receipt) (sub Submission, found bool, err error) {
	return Submission{}, false, errPending
}
func (s *Store) Preflight(ctx context.Context, d NewDispatch) error { return errPending }
func (s *Store) PrepareDispatch(ctx context.Context, l *Lease, d NewDispatch) (Submission, error) {
	return Submission{}, errPending
}
func (s *Store) MarkInput(ctx context.Context, l *Lease, messageID string) error { return errPending }
func (s *Store) TextInjected(ctx context.Context, l *Lease, messageID string) error {
	return errPending
}
func (s *Store) EnterDispatched(ctx context.Context, l *Lease, messageID string) error {
	return errPending
}
func (s *Store) AcceptDispatch(ctx context.Context, l *Lease, a Acceptance) (Submission, error) {
	return Submission{}, errPending
}
func (s *Store) SettleDispatch(ctx context.Context, l *Lease, r Settlement) (Submission, error) {
	return Submission{}, errPending
}
func (s *Store) AbortDispatch(ctx context.Context, l *Lease, messageID, code string) (Submission, error) {
	return Submission{}, errPending
}
func (s *Store) Submission(ctx context.Context, messageID string) (Submission, error) {
	return Submission{}, errPending
}
func (s *Store) Dispatches(ctx context.Context, turnID string) ([]Dispatch, error) {
	return nil, errPending
}
func (s *Store) Fence(ctx context.Context, terminalKey string) (Fence, bool, error) {
	return Fence{}, false, errPending
}
func (s *Store) Fences(ctx context.Context) ([]Fence, error) { return nil, errPending }

// ---- monitor
func (s *Store) CheckMonitor(ctx context.Context, m Monitor) (Turn, error) { return Turn{}, errPending }
func (s *Store) TurnRunning(ctx context.Context, m Monitor, a Activity) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) TouchActivity(ctx context.Context, m Monitor, a Activity) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) ApprovalNotified(ctx context.Context, m Monitor, a NewApproval) (Approval, bool, error) {
	return Approval{}, false, errPending
}
func (s *Store) ApprovalCleared(ctx context.Context, m Monitor) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) QuestionNotified(ctx context.Context, m Monitor, q NewInteraction) (Interaction, bool, error) {
	return Interaction{}, false, errPending
}
func (s *Store) QuestionCleared(ctx context.Context, m Monitor) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) ClaimCompletion(ctx context.Context, m Monitor, c Completion) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) StallTurn(ctx context.Context, m Monitor, st Stall) (Turn, error) {
	return Turn{}, errPending
}
func (s *Store) Approvals(ctx context.Context, turnID string) ([]Approval, error) {
	return nil, errPending
}
func (s *Store) Interactions(ctx context.Context, turnID string) ([]Interaction, error) {
	return nil, errPending
}

// ---- recovery
func (s *Store) OpenDispatches(ctx context.Context) ([]OpenDispatch, error) { return nil, errPending }
func (s *Store) RepairFences(ctx context.Context) (int, error)              { return 0, errPending }
func (s *Store) EligibleTurns(ctx context.Context) ([]Eligible, error)      { return nil, errPending }
func (s *Store) InvalidateAcceptance(ctx context.Context, l *Lease, r Settlement) (Submission, error) {
	return Submission{}, errPending
}

// ---- watches
func (s *Store) Watch(ctx context.Context, id string) (Watch, error)         { return Watch{}, errPending }
func (s *Store) Watches(ctx context.Context, f WatchFilter) ([]Watch, error) { return nil, errPending }
func (s *Store) WatchNotifications(ctx context.Context, watchID string) ([]WatchNotification, error) {
	return nil, errPending
}
func (s *Store) CreateWatch(ctx context.Context, l *Lease, w NewWatch) (Watch, error) {
	return Watch{}, errPending
}
func (s *Store) ObserveWatch(ctx context.Context, f WatchFence, o Observation) (Watch, error) {
	return Watch{}, errPending
}
func (s *Store) NotifyWatchApproval(ctx context.Context, f WatchFence, o Observation, n NewNotification) (Watch, bool, error) {
	return Watch{}, false, errPending
}
func (s *Store) SettleWatch(ctx context.Context, f WatchFence, w WatchSettlement) (Watch, error) {
	return Watch{}, errPending
}

// ---- callbacks
func (s *Store) Callback(ctx context.Context, deliveryID string) (Callback, error) {
	return Callback{}, errPending
}
func (s *Store) TurnCallbacks(ctx context.Context, turnID string) ([]Callback, error) {
	return nil, errPending
}
func (s *Store) WatchCallbacks(ctx context.Context, watchID string) ([]Callback, error) {
	return nil, errPending
}
func (s *Store) Attempts(ctx context.Context, deliveryID string) ([]Attempt, error) {
	return nil, errPending
}
func (s *Store) CallbackCounts(ctx context.Context) ([]CallbackCount, error) { return nil, errPending }
func (s *Store) OpenCallbacks(ctx context.Context, f RouteFamily, limit int) ([]Callback, error) {
	return nil, errPending
}
func (s *Store) NextDue(ctx context.Context, f RouteFamily) (due int64, ok bool, err error) {
	return 0, false, errPending
}
func (s *Store) ClaimCallback(ctx context.Context, l *Lease, f RouteFamily, ttl time.Duration) (Callback, bool, error) {
	return Callback{}, false, errPending
}
func (s *Store) MarkStarted(ctx context.Context, l *Lease, deliveryID, attemptID string) error {
	return errPending
}
func (s *Store) SettleCallback(ctx context.Context, o Outcome) (Callback, error) {
	return Callback{}, errPending
}
func (s *Store) ExpireClaims(ctx context.Context) (changed int, err error) { return 0, errPending }
func (s *Store) AbandonCallback(ctx context.Context, deliveryID string) (Callback, error) {
	return Callback{}, errPending
}
func (s *Store) RetryCallbackNow(ctx context.Context, turnID string) (cb Callback, recovered bool, err error) {
	return Callback{}, false, errPending
}

// ---- offers, transitions
func (s *Store) MintOffer(ctx context.Context, o NewOffer) error { return errPending }
func (s *Store) ConsumeOffer(ctx context.Context, k OfferKey) (payload []byte, err error) {
	return nil, errPending
}
func (s *Store) DeleteOffers(ctx context.Context, ownerSession string) (int, error) {
	return 0, errPending
}

package store

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

var errPending = errors.New("the Store is being written")

type writer struct{}
type bell struct{}

func blocking(status string) bool {
	switch status {
	case TurnCreated, TurnRunning, TurnWaitingForAgent, TurnWaitingForController, TurnStalled, TurnCancelling:
		return true
	}
	return false
}
func (s *Store) shut(context.Context) error { return nil }

// Open opens or makes the Store.
func Open(ctx context.Context, opt Options) (*Store, error) { return nil, errPending }

// Info describes the Store as it is now.
func (s *Store) Info(ctx context.Context) (Info, error) { return s.info, nil }

// Writable gives nil, or store_incompatible when this Store is only read.
func (s *Store) Writable() error { return nil }

// Names of leases.
func TerminalLease(terminalKey string) string      { return "terminal/" + terminalKey }
func MonitorLease(turnID, messageID string) string { return "monitor/" + turnID + "/" + messageID }
func AcceptLease(homeID, requestHash string) string {
	return "codex-accept/" + homeID + "/" + requestHash
}
func WatchdLease() string                                     { return "watchd/main" }
func OutboxdLease(profileID, controllerSession string) string { return "" }

// Acquire takes the lease or fails with lease_held.
func (s *Store) Acquire(ctx context.Context, name string, ttl time.Duration) (*Lease, error) {
	return nil, errPending
}

// Await is Acquire that waits up to wait; then lease_held.
func (s *Store) Await(ctx context.Context, name string, ttl, wait time.Duration) (*Lease, error) {
	return nil, errPending
}

// Renew prolongs leases in one transaction; lost are those that are not held any more.
func (s *Store) Renew(ctx context.Context, leases ...*Lease) (lost []*Lease, err error) {
	return nil, errPending
}

// Release frees leases; those already lost are left alone.
func (s *Store) Release(ctx context.Context, leases ...*Lease) error { return errPending }

// Leases lists lease rows whose name begins with prefix.
func (s *Store) Leases(ctx context.Context, prefix string) ([]LeaseRow, error) {
	return nil, errPending
}

// Live reports whether an effect outside the Store may start now.
func (l *Lease) Live() bool { return false }

// Check gives nil, or lease_lost.
func (l *Lease) Check() error { return errPending }

// Keeper renews all leases of a process.
type Keeper struct{ s *Store }

// NewKeeper makes a Keeper; log may be nil.
func NewKeeper(s *Store, log *slog.Logger) *Keeper { return &Keeper{s} }

// Run renews until ctx ends.
func (k *Keeper) Run(ctx context.Context) error { return errPending }

// Keep renews l until stop is called. The returned context ends when ctx ends,
// when stop is called, or, with cause lease_lost, when the lease is lost.
func (k *Keeper) Keep(ctx context.Context, l *Lease) (held context.Context, stop func()) {
	return ctx, func() {}
}

// Doorbell wakes subscribers after commits of any program.
type Doorbell struct{ s *Store }

// NewDoorbell makes a Doorbell; log may be nil.
func NewDoorbell(s *Store, log *slog.Logger) *Doorbell { return &Doorbell{s} }

// Run listens until ctx ends.
func (d *Doorbell) Run(ctx context.Context) error { return errPending }

// Subscribe gives a channel that receives once for any number of commits since the last receive.
func (d *Doorbell) Subscribe() (wake <-chan struct{}, cancel func()) { return nil, func() {} }

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

// Package lender gets a worker what it is lent instead of a credential: a
// capability that opens one model at the broker, for as long as the run lasts
// (broker §1, §4, §11).
//
// It speaks to brokerd by rows of the Store alone. When no brokerd holds the
// Store's lease, it starts the brokerd that lies beside the running program as a
// sibling, and starts it again when it dies while something is lent: a grant that
// was active is then served on. A brokerd that somebody else started is used and
// left alone. Of several that start at once one gets the lease, and the others go.
//
// Run owns the sibling; its end cuts the lifeline. brokerd then closes what this
// process was lent, serves other creators to their end, and exits. The same
// happens when this process is killed.
//
// The capability is made here and leaves this process only into the container; the
// Store gets its hash.
package lender

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/secretfile"
	"drawbridge/shared/sibling"
	"drawbridge/shared/store"
)

// Options of a Lender. Store, Creator and Program are required.
type Options struct {
	Store   *store.Store
	Creator *store.Lease    // what was lent ends with its holder; the caller renews it
	Program sibling.Program // brokerd

	Log    *slog.Logger // nil discards
	Output *slog.Logger // what brokerd prints; nil: Log

	Wait      time.Duration // for a grant; 0: store.GrantWait
	CloseWait time.Duration // for the end of one; 0: store.CloseWait
	Poll      time.Duration // between two looks at the lease; 0: 250 ms
	Stop      time.Duration // for the end of brokerd, when Run ends; 0: 1 s
}

// Lender takes out grants for one creator.
type Lender struct {
	opt  Options
	kick chan struct{} // holds a token when something was lent

	mu      sync.Mutex
	loans   map[string]*Loan
	waiting map[*waiter]bool
}

// waiter is one Lend that waits for brokerd.
type waiter struct{ fail context.CancelCauseFunc }

// Ask is what a worker needs.
type Ask struct {
	AuthFile        string // the credential; only its path is handed on
	Model           string
	ReasoningEffort string
	MaxRequests     int64 // 0: store.DefaultGrantRequests
	Endpoint        string
	BasePath        string
	RemoteCIDR      string
	RunID, OwnerID  string
	Life            time.Duration // the run's deadline and a minute
	UpstreamOrigin  string        // "": that of the credential's kind

	// A budget that several sessions of one run share (broker §10).
	RequestBindingDigest string
	LedgerFile           string
	Initialize           bool
}

// Loan is one grant while it is out.
type Loan struct {
	ID         string
	BaseURL    string
	Capability redact.Secret
	Model      string
	Bind       string // where the broker listens: an address, or unix:/path
	Transport  string // live, mocked-test-only

	l *Lender
}

// New makes a Lender. It does nothing before Run and Lend.
func New(o Options) *Lender {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Output == nil {
		o.Output = o.Log
	}
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&o.Wait, store.GrantWait)
	def(&o.CloseWait, store.CloseWait)
	def(&o.Poll, 250*time.Millisecond)
	def(&o.Stop, time.Second)
	return &Lender{opt: o, kick: make(chan struct{}, 1), loans: map[string]*Loan{}, waiting: map[*waiter]bool{}}
}

// Lend takes out a grant and waits until brokerd serves it; Run must run. The
// error is that of the broker's refusal, or broker_unavailable.
func (l *Lender) Lend(ctx context.Context, a Ask) (*Loan, error) {
	if err := secretfile.Check("credential file", a.AuthFile); err != nil {
		return nil, err
	}
	path, err := canonical(a.AuthFile)
	if err != nil {
		return nil, err
	}
	capability, hash := redact.NewCapability()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	w := &waiter{fail}
	l.mu.Lock()
	l.waiting[w] = true // before the row: a brokerd that cannot start fails it
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.waiting, w)
		l.mu.Unlock()
	}()
	grant, err := l.opt.Store.CreateGrant(ctx, store.NewGrant{
		CapabilitySHA256: hash, Creator: l.opt.Creator, CredentialRef: path,
		Request: store.GrantRequest{
			Model: a.Model, ReasoningEffort: a.ReasoningEffort, MaxRequests: a.MaxRequests, Endpoint: a.Endpoint, UpstreamOrigin: a.UpstreamOrigin,
			RequestBindingDigest: a.RequestBindingDigest, LedgerFile: a.LedgerFile, Initialize: a.Initialize,
		},
		BasePath: a.BasePath, RemoteCIDR: a.RemoteCIDR, RunID: a.RunID, OwnerID: a.OwnerID, Life: a.Life,
	})
	if err != nil {
		return nil, err
	}
	loan := &Loan{ID: grant.ID, Capability: capability, Model: a.Model, l: l}
	l.mu.Lock()
	l.loans[loan.ID] = loan
	l.mu.Unlock()
	l.wake()
	crashpoint.At("loan_requested")
	if grant, err = l.opt.Store.AwaitGrant(ctx, loan.ID, l.opt.Wait); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx) // not what the Store says of a call that was cut
		}
		l.withdraw(ctx, loan)
		return nil, secretfile.Blame(err, a.AuthFile)
	}
	loan.BaseURL, loan.Bind, loan.Transport = grant.BaseURL, grant.BindAddress, grant.TransportMode
	crashpoint.At("loan_out")
	return loan, nil
}

// canonical resolves the directory of a credential file and not the file, since
// brokerd refuses links.
func canonical(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fault.New(fault.Usage, "find the credential file: %w", err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fault.New(fault.CredentialUnavailable, "find the credential file: its directory cannot be resolved").
			WithHint("give the path of a file like Codex's own auth.json")
	}
	return filepath.Join(dir, filepath.Base(abs)), nil
}

// withdraw takes back a grant that was not had in time. What cannot be written
// now ends with its creator.
func (l *Lender) withdraw(ctx context.Context, loan *Loan) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), l.opt.CloseWait)
	defer done()
	if _, err := l.opt.Store.RequestClose(ctx, loan.ID, reasonWithdrawn); err != nil {
		l.opt.Log.Warn("a grant that is not used was not taken back; it ends with this program", "grant", loan.ID, "err", err)
	}
	l.forget(loan)
}

// Reasons of a close.
const (
	ReasonEnded     = "run_ended"
	reasonWithdrawn = "not_taken_up"
)

// Close gives the grant back and waits until brokerd has ended what ran on it.
// broker_close_unconfirmed when it does not say so in time: the capability opens
// nothing from the first commit on, all the same. ctx does not cut it short.
func (loan *Loan) Close(ctx context.Context) error {
	l := loan.l
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), l.opt.CloseWait+time.Second)
	defer done()
	defer l.forget(loan)
	if _, err := l.opt.Store.RequestClose(ctx, loan.ID, ReasonEnded); err != nil {
		return err
	}
	crashpoint.At("loan_closing")
	_, err := l.opt.Store.AwaitClosed(ctx, loan.ID, l.opt.CloseWait)
	return err
}

// Look gives what the broker has counted so far.
func (loan *Loan) Look(ctx context.Context) (store.Grant, error) {
	return loan.l.opt.Store.Grant(ctx, loan.ID)
}

func (l *Lender) forget(loan *Loan) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.loans, loan.ID)
}

func (l *Lender) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// lent lists what is out.
func (l *Lender) lent() []*Loan {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*Loan, 0, len(l.loans))
	for _, loan := range l.loans {
		out = append(out, loan)
	}
	return out
}

// failWaiting ends every Lend that waits.
func (l *Lender) failWaiting(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.waiting {
		w.fail(err)
	}
}

// Beside is the brokerd in the directory of the running program. listen are values
// of its -listen; the engine is that of the environment.
func Beside(storeDir, runtimeDir string, listen []string) (sibling.Program, error) {
	path, err := sibling.Beside("brokerd")
	if err != nil {
		return sibling.Program{}, err
	}
	args := []string{"serve", "-store-dir", storeDir, "-runtime-dir", runtimeDir, "-log-format", "json"}
	for _, at := range listen {
		args = append(args, "-listen", at)
	}
	return sibling.Program{
		Name: "brokerd", Path: path, Args: args, Env: sibling.Environment(os.Environ(), []string{"DOCKER_HOST"}, nil),
	}, nil
}

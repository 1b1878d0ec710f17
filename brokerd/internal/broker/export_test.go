package broker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
)

// ReadCredential gives kind, account and end of a credential file, and whether its
// secret is the expected one.
func ReadCredential(path, secret string) (kind, account string, expires int64, same bool, err error) {
	c, err := readCredential(path)
	if err != nil {
		return "", "", 0, false, err
	}
	return c.kind, c.account, c.expires, string(c.secret) == secret, nil
}

// ParseCredential is what a credential file goes through.
func ParseCredential(data []byte) (kind string, secret []byte, err error) {
	c, err := parseCredential(data)
	if err != nil {
		return "", nil, err
	}
	return c.kind, c.secret, nil
}

// Vault is the vault of a Broker.
type Vault struct{ v *vault }

func NewVault(now func() time.Time, r *redact.Redactor) Vault { return Vault{newVault(now, r)} }

func (v Vault) Open(path, grant string) (string, error) { return v.v.open(path, grant) }
func (v Vault) Close(path, grant string)                { v.v.close(path, grant) }
func (v Vault) Get(path, grant string) (c upstream.Credential, kind string, content bool, err error) {
	c, kind, ch, err := v.v.get(path, grant)
	return c, kind, ch.content, err
}

// Bytes gives the memory that holds a secret.
func (v Vault) Bytes(path string) []byte {
	v.v.mu.Lock()
	defer v.v.mu.Unlock()
	if l := v.v.files[path]; l != nil {
		return l.secret
	}
	return nil
}

// Anchor gives the content of a budget's anchor, and its check.
func Anchor(storeID string, b store.Budget) (content []byte, write, check func() error, err error) {
	a, err := anchorOf(storeID, b)
	return a.want, a.write, a.check, err
}

// WithFailingJournal gives a Broker that does not run, and its journal, of which the
// first commits fail.
func WithFailingJournal(s *store.Store, l *store.Lease, failures int) (*Broker, *upstream.Journal, error) {
	log := slog.New(slog.DiscardHandler)
	b, err := New(Options{Store: s, Log: log})
	if err != nil {
		return nil, nil, err
	}
	b.lease, b.journal = l, upstream.NewJournal(&failing{ledger{b}, failures}, log)
	return b, b.journal, nil
}

type failing struct {
	upstream.Ledger
	left int
}

func (f *failing) Commit(ctx context.Context, b upstream.Batch) ([]upstream.Answer, error) {
	if f.left > 0 {
		f.left--
		return nil, errors.New("the disk is full")
	}
	return f.Ledger.Commit(ctx, b)
}

// End is end.
func (b *Broker) End(ctx context.Context, id, reason string) (g store.Grant, ended bool, err error) {
	return b.end(ctx, id, reason)
}

// Decide gives the address that auto takes; "" for all interfaces.
func Decide(ctx context.Context, s *store.Store, dockerHost, network string) (addr, reason string) {
	ls := listeners{opt: &Options{Store: s, DockerHost: dockerHost, Network: network, Log: slog.New(slog.DiscardHandler)}}
	a, reason := ls.decide(ctx)
	if !a.IsValid() {
		return "", reason
	}
	return a.String(), reason
}

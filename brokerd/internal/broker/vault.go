package broker

import (
	"bytes"
	"sync"
	"time"

	"drawbridge/brokerd/internal/upstream"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/secretfile"
)

// vault holds the credentials of the live grants, each file once.
type vault struct {
	now      func() time.Time
	redactor *redact.Redactor // learns each secret before its first use; nil: none

	mu    sync.Mutex
	files map[string]*lent
}

// lent is one file and who uses it.
type lent struct {
	*credential
	users map[string]bool // grant ids
}

func newVault(now func() time.Time, r *redact.Redactor) *vault {
	return &vault{now: now, redactor: r, files: map[string]*lent{}}
}

// change is what a look at a file that differs from the one read before has found.
type change struct {
	content bool // other bytes
	kind    bool // the other kind of credential
}

// open reads the file anew for a grant and gives the credential's kind. The secret
// of an earlier reading is replaced.
func (v *vault) open(path, grantID string) (kind string, err error) {
	c, err := readCredential(path)
	if err != nil {
		return "", err
	}
	if c.expired(v.now()) {
		c.wipe()
		return "", fault.New(fault.CredentialExpired, "read the credential file: its token is over, or ends in less than %s", expiryMargin).
			WithHint("log in again on the host, then ask for a new grant")
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.files[path]
	if l == nil {
		l = &lent{users: map[string]bool{}}
		v.files[path] = l
	}
	l.users[grantID] = true
	v.replace(l, c)
	return c.kind, nil
}

// get gives the credential of a live grant, read again when the file is another
// one now or has changed.
func (v *vault) get(path, grantID string) (c upstream.Credential, kind string, ch change, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.files[path]
	if l == nil || !l.users[grantID] {
		return c, "", ch, upstream.ErrClosed
	}
	if state, err := secretfile.Look(credentialFile, path); err != nil || state != l.file {
		fresh, err := readCredential(path)
		if err != nil {
			return c, "", ch, err
		}
		ch = change{content: fresh.sum != l.sum, kind: fresh.kind != l.kind}
		if ch.kind {
			fresh.wipe()
			return c, l.kind, ch, nil
		}
		v.replace(l, fresh)
	}
	return upstream.Credential{Secret: redact.NewSecret(string(l.secret)), AccountID: l.account}, l.kind, ch, nil
}

// replace puts a fresh reading in the place of the old one.
func (v *vault) replace(l *lent, c *credential) {
	old := l.credential
	if v.redactor != nil && (old == nil || !bytes.Equal(old.secret, c.secret)) {
		v.redactor.Learn(string(c.secret))
	}
	l.credential = c
	if old != nil {
		v.drop(old)
	}
}

// drop overwrites a secret. The log goes on hiding it while another file has the same.
func (v *vault) drop(c *credential) {
	held := false
	for _, l := range v.files {
		held = held || bytes.Equal(l.secret, c.secret)
	}
	if v.redactor != nil && !held {
		v.redactor.Forget(string(c.secret))
	}
	c.wipe()
}

// close ends a grant's use of a file; the last one overwrites the secret.
func (v *vault) close(path, grantID string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.files[path]
	if l == nil {
		return
	}
	delete(l.users, grantID)
	if len(l.users) > 0 {
		return
	}
	delete(v.files, path)
	v.drop(l.credential)
}

// begins reports whether the secret of a file begins with a prefix.
func (v *vault) begins(path, prefix string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	l := v.files[path]
	return l != nil && bytes.HasPrefix(l.secret, []byte(prefix))
}

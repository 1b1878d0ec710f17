package station

import (
	"maps"
	"os"
	"strings"

	"drawbridge/shared/redact"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/launch"
)

// credentialFile is where a daemon finds its credential with daemonAuth.mode file:
// below wire.CredentialDir.
const credentialFile = "credential"

// newRedactor knows the values that no text of this attempt may show: those of
// stationd's environment and of the spec, and the daemon's credential.
func (a *attempt) newRedactor(paths map[string]string) *redact.Redactor {
	all := map[string]string{a.m.opts.StateDir: "<state>", a.m.opts.Store.Dir(): "<store>"}
	if home, err := os.UserHomeDir(); err == nil {
		all[home] = "<home>"
	}
	maps.Copy(all, paths)
	r := redact.New(redact.Options{Paths: all})
	for _, v := range a.m.known(a.plan.Spec) {
		r.Learn(v.Reveal())
	}
	return r
}

// makeCredential makes the daemon's credential, when its spec asks for one. It
// lives in this process and in the shim; the redactor knows it before the daemon
// does.
func (a *attempt) makeCredential() {
	if a.plan.wantsCredential() {
		secret, _ := redact.NewCapability()
		a.takeCredential(secret)
	}
}

// takeCredential keeps a credential: a new one, or the one that the shim kept.
func (a *attempt) takeCredential(secret redact.Secret) {
	var users []string
	if name, ok := strings.CutPrefix(a.plan.DaemonAuth.Inject, "basic:"); ok {
		users = append(users, name)
	}
	a.redactor.Learn(secret.Reveal(), users...)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.credential = secret
}

// dropCredential forgets it, except that texts which are still to come do not show
// it. Nothing can use it any more: its daemon has ended.
func (a *attempt) dropCredential() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.credential = redact.Secret{}
	a.env = nil
}

func (a *attempt) secret() redact.Secret {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.credential
}

func (p plan) wantsCredential() bool { return p.DaemonAuth.Mode != "none" && p.DaemonAuth.Mode != "" }

// inject says where requests carry the credential.
func (p plan) inject(secret redact.Secret) (gate.Credential, error) {
	if !p.wantsCredential() || secret.IsZero() {
		return gate.Credential{}, nil
	}
	return gate.ParseCredential(p.DaemonAuth.Inject, secret)
}

// surroundings are what the daemon's environment says of the attempt.
func (a *attempt) surroundings() launch.Surroundings {
	l, row := a.machine.Layout(), a.current()
	s := launch.Surroundings{
		Station: a.station.ID, Attempt: int(row.Number), Lease: row.LeaseID, Port: a.port,
		Home: l.Home, Temp: l.Temp, Credential: a.secret(),
	}
	if a.plan.way != nil {
		s.Proxy = egress.Variables()
	}
	return s
}

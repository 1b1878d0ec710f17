package supervise

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"drawbridge/stationd/internal/wire"
)

// CheckEvery is the pause between two observations of what listens (station §7.2).
const CheckEvery = 2 * time.Second

// maxFindings bounds what a Loopback remembers besides the first breach; a daemon that
// opens more is past telling them apart.
const maxFindings = 255

// Policies of a Loopback (station §7.3).
const (
	Strict    = "strict"    // a listener outside loopback ends the attempt
	Contained = "contained" // it is noted; nothing outside reaches it anyway
)

// Finding is a listener outside loopback.
type Finding struct {
	Protocol string `json:"protocol"`
	Address  string `json:"address"` // with the port
	Program  string `json:"program,omitempty"`
	Breach   bool   `json:"breach"` // it ends the attempt
}

func (f Finding) String() string { return fmt.Sprintf("%s %s %s", f.Protocol, f.Address, f.Program) }

// A Loopback judges what listens in one attempt's namespace. One goroutine uses it.
type Loopback struct {
	policy   string
	checks   int
	breached bool
	seen     map[string]bool
	findings []Finding
}

// NewLoopback begins with nothing seen. The shim's namespace is always a private
// one, so Contained may be chosen.
func NewLoopback(policy string) (*Loopback, error) {
	if policy == "" {
		policy = Strict
	}
	if policy != Strict && policy != Contained {
		return nil, fmt.Errorf("loopback policy %q: want strict or contained", policy)
	}
	return &Loopback{policy: policy, seen: map[string]bool{}}, nil
}

// Check judges one observation: what is new among listeners outside loopback. UDP
// is never a breach, since multicast names are common. However much was found before,
// the first breach is told.
func (l *Loopback) Check(rows []wire.Listener) (fresh []Finding) {
	l.checks++
	for _, r := range rows {
		if r.Loopback || r.Own {
			continue
		}
		f := Finding{Protocol: r.Protocol, Address: net.JoinHostPort(r.Address, strconv.Itoa(r.Port)), Program: r.Program}
		f.Breach = l.policy == Strict && !strings.HasPrefix(r.Protocol, "udp")
		key := f.Protocol + " " + f.Address
		if l.seen[key] || len(l.findings) >= maxFindings && (!f.Breach || l.breached) {
			continue
		}
		l.seen[key], l.breached = true, l.breached || f.Breach
		l.findings = append(l.findings, f)
		fresh = append(fresh, f)
	}
	return fresh
}

// Checks is how often it was looked, and Findings what was found, for the evidence.
func (l *Loopback) Checks() int { return l.checks }

// Findings are all so far, oldest first.
func (l *Loopback) Findings() []Finding { return l.findings }

// Run looks at once and then every CheckEvery, and tells what is new. It ends with
// ctx, or with the error of look.
func (l *Loopback) Run(ctx context.Context, look func(context.Context) ([]wire.Listener, error), found func(Finding)) error {
	t := time.NewTicker(CheckEvery)
	defer t.Stop()
	for {
		rows, err := look(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("look at what listens: %w", err)
		}
		for _, f := range l.Check(rows) {
			found(f)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// Serves reports whether a descendant of the shim listens on the port that the
// daemon was told, where in.sock leads: on loopback, or on every address when the
// policy lets that pass. Some other process's port is not it.
func (l *Loopback) Serves(rows []wire.Listener, port int) bool {
	for _, r := range rows {
		if r.Port == port && strings.HasPrefix(r.Protocol, "tcp") && r.PID != 0 && !r.Own && (r.Loopback || l.policy == Contained) {
			return true
		}
	}
	return false
}

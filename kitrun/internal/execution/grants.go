package execution

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"drawbridge/kitrun/internal/lender"
	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

const (
	// lentBeyond is how long a grant outlives the deadline of its run.
	lentBeyond = time.Minute
	// evidenceEvery is how often new evidence is looked for.
	evidenceEvery = 250 * time.Millisecond
	// settleWithin bounds the wait for the rows of requests that have just ended.
	settleWithin = 3 * time.Second
	settlePoll   = 25 * time.Millisecond
)

// grant is one capability that a kit took out, and what it was told of it.
type grant struct {
	loan   *lender.Loan
	peer   *nodehost.Peer
	stop   context.CancelFunc
	told   chan struct{} // holds a token while somebody tells
	rows   map[int]bool  // evidence rows told, by number; under told
	counts counters      // told; under told
}

// lend takes out a grant and begins to tell what is done with it.
func (p *ports) lend(ctx context.Context, peer *nodehost.Peer, params json.RawMessage) (any, error) {
	var in struct {
		AuthFile             string  `json:"authFile"`
		Model                string  `json:"model"`
		ReasoningEffort      *string `json:"reasoningEffort"`
		UpstreamOrigin       *string `json:"upstreamOrigin"`
		BindHost             *string `json:"bindHost"`
		Port                 *int64  `json:"port"`
		MaxRequests          *int64  `json:"maxRequests"`
		LedgerFile           *string `json:"ledgerFile"`
		RequestBindingDigest *string `json:"requestBindingDigest"`
		InitializeLedger     bool    `json:"initializeLedger"`
	}
	if err := decode("broker.start", params, &in); err != nil {
		return nil, err
	}
	if in.AuthFile == "" {
		return nil, fault.New(fault.CredentialUnavailable, "broker.start: authFile is missing").WithHint("run the kit with --auth-file")
	}
	l, reach, err := p.broker(ctx, listenAt(in.BindHost, in.Port))
	if err != nil {
		return nil, err
	}
	ask := lender.Ask{
		AuthFile: in.AuthFile, Model: in.Model, ReasoningEffort: value(in.ReasoningEffort), UpstreamOrigin: value(in.UpstreamOrigin),
		MaxRequests: value(in.MaxRequests), Endpoint: reach.Endpoint, RemoteCIDR: reach.CIDR, RunID: p.invocation, OwnerID: p.owner,
		Life:       min(time.Until(p.deadline)+lentBeyond, store.GrantLifeMost),
		LedgerFile: value(in.LedgerFile), RequestBindingDigest: value(in.RequestBindingDigest), Initialize: in.InitializeLedger,
	}
	loan, err := l.Lend(ctx, ask)
	if err != nil {
		return nil, err
	}
	if err := reach.Check(loan); err != nil {
		return nil, errors.Join(err, loan.Close(ctx))
	}
	tell, stop := context.WithCancel(p.ctx)
	row, err := loan.Look(ctx)
	if err != nil {
		stop()
		return nil, errors.Join(err, loan.Close(ctx))
	}
	g := &grant{loan: loan, peer: peer, stop: stop, told: make(chan struct{}, 1), rows: map[int]bool{}, counts: countersOf(row)}
	p.mu.Lock()
	p.grants[loan.ID] = g
	if in.AuthFile != p.auth {
		p.credentials = append(p.credentials, in.AuthFile)
	}
	p.mu.Unlock()
	p.wg.Go(func() { g.follow(tell) })
	return struct {
		ID         string   `json:"id"`
		BaseURL    string   `json:"baseUrl"`
		Capability string   `json:"capability"`
		Model      string   `json:"model"`
		Transport  string   `json:"transport_mode"`
		Counters   counters `json:"counters"`
	}{loan.ID, loan.BaseURL, loan.Capability.Reveal(), loan.Model, loan.Transport, g.counts}, nil
}

// listenAt is where a brokerd listens that is started for this kit, "" for the usual.
func listenAt(host *string, port *int64) string {
	if value(host) == "" {
		return ""
	}
	if at := *host; value(port) == 0 {
		return at
	}
	return joinPort(*host, *port)
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// counters are a grant's, as kits read them.
type counters struct {
	Received       int64 `json:"received"`
	Forwarded      int64 `json:"forwarded"`
	Refused        int64 `json:"refused"`
	MaxRequests    int64 `json:"max_requests"`
	TotalForwarded int64 `json:"total_forwarded"`
}

func countersOf(g store.Grant) counters {
	return counters{g.Received, g.Forwarded, g.Refused, g.MaxRequests, g.TotalForwarded}
}

// giveBack closes a grant that the kit names.
func (p *ports) giveBack(ctx context.Context, params json.RawMessage) (any, error) {
	var in struct {
		ID string `json:"id"`
	}
	if err := decode("broker.close", params, &in); err != nil {
		return nil, err
	}
	p.mu.Lock()
	g := p.grants[in.ID]
	p.mu.Unlock()
	if g == nil {
		return nil, fault.New(fault.GrantClosed, "broker.close: this run has no such grant")
	}
	err := p.closeGrant(ctx, g)
	return struct{}{}, err
}

// closeGrant closes a grant and tells the rest of its evidence.
func (p *ports) closeGrant(ctx context.Context, g *grant) error {
	p.mu.Lock()
	_, open := p.grants[g.loan.ID]
	delete(p.grants, g.loan.ID)
	p.mu.Unlock()
	if !open {
		return nil
	}
	err := g.loan.Close(ctx)
	g.tell(context.WithoutCancel(ctx))
	g.stop()
	return err
}

// closeGrants closes what the kit left open.
func (p *ports) closeGrants(ctx context.Context) (errs error) {
	p.mu.Lock()
	all := make([]*grant, 0, len(p.grants))
	for _, g := range p.grants {
		all = append(all, g)
	}
	p.mu.Unlock()
	for _, g := range all {
		errs = errors.Join(errs, p.closeGrant(ctx, g))
	}
	return errs
}

// flush tells what is known, once the requests that have ended have their rows.
func (g *grant) flush(ctx context.Context) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer done()
	for !g.tell(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(settlePoll):
		}
	}
}

// follow tells new evidence until ctx is done.
func (g *grant) follow(ctx context.Context) {
	tick := time.NewTicker(evidenceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.tell(ctx)
		}
	}
}

// tell pushes the rows that have been completed since the last time, and the
// counts. settled is false while a row is open.
func (g *grant) tell(ctx context.Context) (settled bool) {
	select {
	case g.told <- struct{}{}:
		defer func() { <-g.told }()
	case <-ctx.Done():
		return false
	}
	row, err := g.loan.Look(ctx)
	if err != nil {
		return false
	}
	rows, err := g.loan.Evidence(ctx)
	if err != nil {
		return false
	}
	for i, data := range rows {
		var open struct {
			Outcome string `json:"outcome"`
		}
		if g.rows[i] || json.Unmarshal(data, &open) != nil || open.Outcome == store.RequestReserved {
			continue
		}
		g.rows[i] = true
		g.peer.Push("broker.evidence", g.loan.ID, data)
	}
	if now := countersOf(row); now != g.counts {
		g.counts = now
		g.peer.Push("broker.counters", g.loan.ID, now)
	}
	return len(g.rows) == len(rows)
}

package station

import (
	"context"
	"net"

	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/wire"
)

// way is a running egress proxy of an attempt.
type way struct {
	proxy  *egress.Proxy
	cancel context.CancelFunc
	done   chan struct{}
}

// openWay listens on egress.sock, when the profile has a way out; the shim that
// starts next, or runs already, leads there.
func (a *attempt) openWay(ctx context.Context) error {
	p := a.plan
	if p.way == nil {
		return nil
	}
	own, err := a.machine.Addresses(ctx)
	if err != nil {
		return err
	}
	proxy, err := egress.New(egress.Options{
		Profile: *p.way, Enforcement: a.enforcement(), Models: a.m.opts.Egress.Models, Own: own, Internal: a.m.opts.Internal,
		Redactor: a.redactor, Log: a.log,
	})
	if err != nil {
		return err
	}
	l, err := a.machine.Listen(ctx, wire.Egress)
	if err != nil {
		return err
	}
	a.runWay(proxy, l)
	return nil
}

// runWay serves the proxy until closeWay.
func (a *attempt) runWay(proxy *egress.Proxy, l net.Listener) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(a.base))
	w := &way{proxy: proxy, cancel: cancel, done: make(chan struct{})}
	a.mu.Lock()
	a.way = w
	a.mu.Unlock()
	go func() { // closeWay waits for it
		defer close(w.done)
		defer l.Close()
		if err := proxy.Run(ctx, l); err != nil {
			a.log.Warn("the way out has ended", "err", err)
		}
	}()
}

// refuseWay takes no new tunnels: step 2 of a stop.
func (a *attempt) refuseWay() {
	if w := a.theWay(); w != nil {
		w.proxy.Refuse()
	}
}

// closeWay ends every tunnel, and waits for that.
func (a *attempt) closeWay() {
	if w := a.theWay(); w != nil {
		w.cancel()
		<-w.done
	}
}

func (a *attempt) theWay() *way {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.way
}

// wayOut is what evidence says of the way out.
func (a *attempt) wayOut() egress.Summary {
	if w := a.theWay(); w != nil {
		return w.proxy.Summary()
	}
	none := egress.NoEgress(a.enforcement())
	if a.plan.way != nil { // it was never opened here
		none.Profile = a.plan.way.Name
	}
	return none
}

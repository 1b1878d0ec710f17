package nodehost

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"time"

	"drawbridge/shared/fault"
)

// Peer is the process as its Ports see it.
type Peer struct {
	opt  Options
	conn net.Conn
	ctx  context.Context // of every call
	stop context.CancelFunc
	wg   sync.WaitGroup // calls being served

	ready  chan struct{} // closed by the first frame
	broken chan struct{} // closed when err is set

	writing sync.Mutex

	mu           sync.Mutex
	err          error // why this run has no outcome
	node         string
	outcome      *frame
	acknowledged bool
	open         map[int64]openCall
	replies      map[int64]chan frame
	last         int64
	cut          bool // the process is gone
}

// openCall is one that has no reply yet.
type openCall struct {
	method string
	cancel context.CancelFunc
}

func newPeer(conn net.Conn, o Options) *Peer {
	p := &Peer{
		opt: o, conn: conn, ready: make(chan struct{}), broken: make(chan struct{}),
		open: map[int64]openCall{}, replies: map[int64]chan frame{},
	}
	p.ctx, p.stop = context.WithCancel(context.Background()) // ends with the process, not with the caller
	return p
}

// Push tells the process something that it did not ask for. A process that is gone
// hears nothing.
func (p *Peer) Push(topic, id string, row any) { _ = p.send(event{kindEvent, topic, id, row}) }

// Back calls a function of the kit by its handle and gives what it resolved with.
func (p *Peer) Back(ctx context.Context, handle string, args ...any) (json.RawMessage, error) {
	reply := make(chan frame, 1)
	p.mu.Lock()
	p.last++
	id := p.last
	p.replies[id] = reply
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.replies, id)
		p.mu.Unlock()
	}()
	if err := p.send(frame{Kind: kindCallback, ID: id, Handle: handle, Args: args}); err != nil {
		return nil, err
	}
	select {
	case f := <-reply:
		if f.Error != nil {
			return nil, errors.New(fault.CleanLine(f.Error.Message))
		}
		return f.Result, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.ctx.Done():
		return nil, errors.New("the kit's process is gone")
	}
}

func (p *Peer) send(message any) error {
	p.writing.Lock()
	defer p.writing.Unlock()
	return writeFrame(p.conn, message)
}

// cancel tells the kit that its time is up.
func (p *Peer) cancel() { p.tell(frame{Kind: kindCancel}) }

// tell sends without waiting for a process that does not read.
func (p *Peer) tell(f frame) { p.wg.Go(func() { _ = p.send(f) }) }

// serve reads frames until the process closes the socket or breaks the protocol.
func (p *Peer) serve() {
	r := bufio.NewReaderSize(p.conn, 64<<10)
	for {
		f, err := readFrame(r)
		if err == nil {
			err = p.hear(f)
		}
		switch {
		case err == nil:
		case errors.Is(err, errFrame), errors.As(err, new(*fault.Error)):
			p.fail(err)
			return
		default: // closed, or given up by finish
			return
		}
	}
}

// hear takes one frame. Its error ends the run.
func (p *Peer) hear(f frame) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.node == "" {
		if f.Kind != kindReady || f.Protocol != protocol || f.Node == "" {
			return fault.New(fault.KitProtocol, "the kit's process did not begin as it should")
		}
		p.node = fault.CleanLine(f.Node)
		close(p.ready)
		p.tell(frame{Kind: kindStart, DeliveryID: p.opt.DeliveryID, Module: p.opt.Module, Export: p.opt.Export, Args: p.opt.Args})
		return nil
	}
	switch f.Kind {
	case kindCall:
		if _, twice := p.open[f.ID]; twice || f.ID <= 0 {
			return fault.New(fault.KitProtocol, "the kit made a call with the id of another one")
		}
		if len(p.open) == maxCalls {
			return fault.New(fault.KitProtocol, "the kit has more than %d calls open at once", maxCalls)
		}
		ctx, cancel := context.WithCancel(p.ctx)
		p.open[f.ID] = openCall{f.Method, cancel}
		p.wg.Go(func() {
			defer cancel()
			p.call(ctx, f)
		})
	case kindAbort:
		if call, ok := p.open[f.ID]; ok {
			call.cancel()
		}
	case kindCallbackReply:
		if reply := p.replies[f.ID]; reply != nil {
			delete(p.replies, f.ID)
			reply <- f
		}
	case kindResult, kindError:
		if p.outcome != nil || f.DeliveryID != p.opt.DeliveryID {
			return fault.New(fault.KitProtocol, "terminal envelope is invalid or duplicated")
		}
		p.outcome = &f
		p.wg.Go(p.acknowledge)
	default:
		return fault.New(fault.KitProtocol, "the kit's process sent a message of an unknown kind")
	}
	return nil
}

// call serves one call and replies, exactly once.
func (p *Peer) call(ctx context.Context, f frame) {
	result, err := p.opt.Ports.Call(ctx, p, f.Method, f.Params)
	p.mu.Lock()
	cut := p.cut
	if !cut {
		delete(p.open, f.ID) // what is left when the process ended was unfinished
	}
	p.mu.Unlock()
	reply := frame{Kind: kindReply, ID: f.ID}
	if err == nil {
		reply.Result, err = json.Marshal(result)
	}
	if err != nil {
		reply.Result, reply.Error = nil, &remoteError{Message: err.Error(), Code: string(fault.CodeOf(err))}
		if f, ok := fault.As(err); ok {
			reply.Error.Message = f.Message
			reply.Error.Reason, _ = f.Details["reason"].(string)
		}
	}
	if err := p.send(reply); err != nil && !cut {
		p.opt.Log.Debug("a reply did not reach the kit", "method", f.Method, "err", err)
	}
}

func (p *Peer) acknowledge() {
	if p.send(frame{Kind: kindAck, DeliveryID: p.opt.DeliveryID}) == nil {
		p.mu.Lock()
		p.acknowledged = true
		p.mu.Unlock()
	}
}

// fail ends the run with err, unless it has failed already.
func (p *Peer) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return
	}
	if errors.Is(err, errFrame) {
		err = fault.New(fault.KitProtocol, "the kit's process broke the protocol: %w", err)
	}
	p.err = err
	close(p.broken)
}

// finish cancels the calls and gives what is still in the socket d to be read: a
// process that inherited it must not hold anybody up.
func (p *Peer) finish(d time.Duration) {
	p.mu.Lock()
	p.cut = true
	p.mu.Unlock()
	p.stop()
	_ = p.conn.SetDeadline(time.Now().Add(d))
}

// settle waits for the calls that finish cancelled and says which they were.
func (p *Peer) settle() (unfinished []string) {
	p.mu.Lock()
	for _, call := range p.open {
		unfinished = append(unfinished, call.method)
	}
	p.mu.Unlock()
	p.wg.Wait()
	p.conn.Close()
	return unfinished
}

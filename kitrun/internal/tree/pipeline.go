package tree

import (
	"context"
	"runtime"
	"sync"
)

// ahead is how many steps may wait: each keeps a descriptor, and a file's content.
const ahead = 32

// step is a piece of a walk.
type step struct {
	work func() error // on some goroutine, as soon as there is one; may be nil
	then func() error // in the order of the steps, after work; may be nil
	free func()       // always, after then or instead of it

	done chan struct{}
	err  error
}

// pipeline does the work of many steps at once and what follows it in their order.
type pipeline struct {
	ctx   context.Context // ended by the first error
	jobs  chan *step
	order chan *step
}

// runPipeline does the steps that produce adds. It returns the first error in the
// order of the steps, and when nothing of it runs any more.
func runPipeline(ctx context.Context, produce func(*pipeline) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &pipeline{ctx: ctx, jobs: make(chan *step, ahead), order: make(chan *step, ahead)}
	var running sync.WaitGroup
	for range min(max(runtime.GOMAXPROCS(0), 2), 4) {
		running.Go(p.work)
	}
	var produced error
	running.Go(func() {
		defer close(p.order)
		defer close(p.jobs)
		produced = produce(p)
	})
	var first error
	for s := range p.order {
		<-s.done
		err := s.err
		if first == nil && err == nil && s.then != nil {
			err = s.then()
		}
		if first == nil && err != nil {
			first = err
			cancel(err)
		}
		if s.free != nil {
			s.free()
		}
	}
	running.Wait()
	if first == nil {
		first = produced
	}
	return first
}

func (p *pipeline) work() {
	for s := range p.jobs {
		if p.ctx.Err() == nil {
			s.err = s.work()
		} else {
			s.err = context.Cause(p.ctx)
		}
		close(s.done)
	}
}

// add queues a step; it waits while too many are queued.
func (p *pipeline) add(s step) {
	s.done = make(chan struct{})
	if s.work == nil {
		close(s.done)
	} else {
		p.jobs <- &s
	}
	p.order <- &s
}

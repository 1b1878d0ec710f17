package rig

import (
	"context"
	"fmt"
)

// TB is what the rig needs of a test. *testing.T fits; Do makes one for
// commands, so that tests, the demo and the recorder share one set of helpers.
type TB interface {
	Helper()
	Name() string
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
	Context() context.Context
}

// Do runs f outside a test: Fatalf ends f, clean-ups run in reverse order, and
// what went wrong comes back as an error. log may be nil.
func Do(ctx context.Context, name string, log func(format string, args ...any), f func(TB)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &command{ctx: ctx, name: name, log: log}
	defer func() {
		cancel() // as in a test: before the clean-ups
		for len(c.cleanups) > 0 {
			last := c.cleanups[len(c.cleanups)-1]
			c.cleanups = c.cleanups[:len(c.cleanups)-1]
			c.protect(last)
		}
		err = c.err
	}()
	c.protect(func() { f(c) })
	return nil
}

// command is the TB of Do. It belongs to one goroutine.
type command struct {
	ctx      context.Context
	name     string
	log      func(format string, args ...any)
	cleanups []func()
	err      error
}

// failed ends f; only protect recovers it.
type failed struct{}

func (c *command) protect(f func()) {
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(failed); !ok {
				panic(p)
			}
		}
	}()
	f()
}

func (c *command) Helper()                  {}
func (c *command) Name() string             { return c.name }
func (c *command) Context() context.Context { return c.ctx }
func (c *command) Cleanup(f func())         { c.cleanups = append(c.cleanups, f) }

func (c *command) Logf(format string, args ...any) {
	if c.log != nil {
		c.log(format, args...)
	}
}

func (c *command) Errorf(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	} else {
		c.Logf("also: "+format, args...)
	}
}

func (c *command) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	panic(failed{})
}

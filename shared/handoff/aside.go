package handoff

import (
	"fmt"
	"runtime/debug"
	"sync"
)

// aside runs f beside its caller, who must call wait on every way out; it may be
// called more than once. A panic of f comes out of wait, where the caller's own
// guard meets it.
func aside[T any](f func() T) (wait func() T) {
	var value T
	var panicked error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				panicked = fmt.Errorf("%v, in\n%s", v, debug.Stack())
			}
		}()
		value = f()
	}()
	return sync.OnceValue(func() T {
		<-done
		if panicked != nil {
			panic(panicked)
		}
		return value
	})
}

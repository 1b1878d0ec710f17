package worker_test

import (
	_ "drawbridge/shared/store"
	_ "drawbridge/shared/testkit"
	_ "github.com/google/go-cmp/cmp"
	_ "go.uber.org/goleak"
	_ "golang.org/x/sys/unix"
)

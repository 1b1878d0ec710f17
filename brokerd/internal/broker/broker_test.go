package broker_test

import (
	_ "drawbridge/shared/testkit"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/uuid"
	_ "go.uber.org/goleak"
)

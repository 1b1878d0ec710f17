package worker_test

import (
	_ "drawbridge/shared/store"
	_ "drawbridge/shared/testkit"
)

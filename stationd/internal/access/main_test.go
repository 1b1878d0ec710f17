package access_test

import (
	"testing"

	"drawbridge/shared/testkit"
)

func TestMain(m *testing.M) { testkit.Leak(m) }

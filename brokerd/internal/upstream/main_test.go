package upstream_test

import (
	"testing"

	"go.uber.org/goleak"
)

// net/http keeps a connection half a second longer when it refused a long body.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

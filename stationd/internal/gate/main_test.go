package gate_test

import (
	"io"
	"net"
	"os"
	"testing"

	"drawbridge/shared/testkit"
)

// dialVariable makes the test binary a client of a unix socket.
const dialVariable = "GATE_TEST_DIAL"

func TestMain(m *testing.M) {
	if path := os.Getenv(dialVariable); path != "" {
		os.Exit(client(path))
	}
	testkit.Leak(m)
}

// client sends its stdin and prints what comes back. A connection that ends at
// once is no failure.
func client(path string) int {
	c, err := net.Dial("unix", path)
	if err != nil {
		return 1
	}
	defer c.Close()
	_, _ = io.Copy(c, os.Stdin)
	_, _ = io.Copy(os.Stdout, c)
	return 0
}

//go:build drawbridge_crashpoints

package crashpoint

import "os"

var at = os.Getenv("DRAWBRIDGE_TEST_EXIT_AT")

// At ends the program when its environment names this step.
func At(name string) {
	if name == at {
		os.Exit(ExitCode)
	}
}

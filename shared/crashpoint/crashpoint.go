// Package crashpoint names the steps at which a test ends or stops a program, to
// prove what a crash between two commits leaves behind (spec core §13), and what
// one does that wakes up when its leases have gone to others (core §3.2).
//
// In an ordinary build At does nothing and is inlined away. Built with the tag
// drawbridge_crashpoints, a program whose environment holds
// DRAWBRIDGE_TEST_EXIT_AT=<name> exits with status 86 at that point, and one with
// DRAWBRIDGE_TEST_STOP_AT=<name> stops itself there, once, until it gets SIGCONT.
package crashpoint

// ExitCode is the status of a program that ended at a crash point.
const ExitCode = 86

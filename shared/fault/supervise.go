package fault

// Codes of the supervision of a station's daemon (station.md §6.5–§6.9, §7, §8).
const (
	ContainmentMissing Code = "containment_unavailable"
	RunAsRequired      Code = "run_as_required"
	RootRefused        Code = "root_refused"
	ShimUnavailable    Code = "shim_unavailable"
	ShimFailed         Code = "shim_failed"
	ShimLost           Code = "shim_lost"
	DaemonNotStarted   Code = "daemon_not_started"
	IntegrityFailed    Code = "integrity_failed"
	CleanupFailed      Code = "cleanup_failed"
)

func init() {
	register(1, ContainmentMissing, "This machine offers no containment that a daemon cannot leave; stationd doctor says what was tried.")
	register(1, RunAsRequired, "stationd runs as root, so the spec must say with run_as which user the daemon gets.")
	register(1, RootRefused, "run_as is uid 0, and the spec does not say allow_root.")
	register(69, ShimUnavailable, "The program station-shim is not beside stationd, or is not the one that belongs to it.")
	register(1, ShimFailed, "The shim could not set up its namespaces or refused a request.")
	register(1, ShimLost, "The shim is gone, does not answer, or is not the process it should be.")
	register(1, DaemonNotStarted, "The daemon's program could not be executed.")
	register(1, IntegrityFailed, "The artifact is not the one whose digest was verified; nothing of it was executed.")
	register(1, CleanupFailed, "Processes of the attempt could not be proven gone, or its lease could not be given back.")
}

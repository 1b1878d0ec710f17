package fault

// Codes of a run of a kit (kit.md §6–§11).
const (
	KitNode        Code = "kit_node_unavailable"
	KitProtocol    Code = "kit_protocol"
	KitNoResult    Code = "kit_no_result"
	KitRequest     Code = "kit_request_invalid"
	KitController  Code = "kit_controller_root"
	KitDeadline    Code = "kit_deadline_exceeded"
	KitCancelled   Code = "kit_cancelled"
	KitThrew       Code = "kit_threw"
	KitRunDrifted  Code = "kit_drifted_during_run"
	KitWorkersLeft Code = "kit_left_workers"
	KitUnverified  Code = "kit_termination_unverified"
)

func init() {
	register(1, KitNode, "Node is missing, older than 20.6, or did not start the kit; --node names another one.")
	register(1, KitProtocol, "The kit's process broke the protocol on its descriptor, or delivered more than one outcome.")
	register(1, KitNoResult, "The kit's process ended without delivering an outcome.")
	register(1, KitRequest, "The request breaks a rule of kontour.kit.execution_request@1.0, or is meant for another kit.")
	register(1, KitController, "The controller root is not private, not ours, or overlaps what the kit or its workers see.")
	register(1, KitDeadline, "The run's time was over; the kit's process was ended.")
	register(1, KitCancelled, "The run was cancelled from outside; the kit's process was ended.")
	register(1, KitThrew, "The kit's entry threw an error; the message is the kit's own.")
	register(1, KitRunDrifted, "The installed kit was changed while it ran.")
	register(1, KitWorkersLeft, "The kit returned while workers of its own were running; they were removed.")
	register(1, KitUnverified, "It could not be proven that all workers of the run are gone.")
}

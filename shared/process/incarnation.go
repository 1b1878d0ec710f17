package process

// An Incarnation names one life of one process: a pid alone may be reused, its
// start time within one boot and one pid namespace may not.
type Incarnation struct {
	PID       int    `json:"pid"`
	BootID    string `json:"boot_id"`
	Start     uint64 `json:"start"`  // field 22 of /proc/PID/stat, clock ticks since boot
	Namespace uint64 `json:"pid_ns"` // inode of /proc/self/ns/pid of whoever looked
}

package fault

// Codes of storage admission (worker §7).
const (
	StorageRefused   Code = "storage_admission_refused"
	StorageInspector Code = "storage_inspector_unavailable"
)

func init() {
	register(1, StorageRefused, "The writable directories are over their budget or hold what a worker may not have; the detail reason says which.")
	register(1, StorageInspector, "The writable directories could not be inspected: one cannot be read, or it took longer than 10 seconds.")
}

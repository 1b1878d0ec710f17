package fault

// Codes of kits (kit.md §2–§5).
const (
	KitID           Code = "kit_id_invalid"
	KitInvalid      Code = "kit_invalid"
	KitTree         Code = "kit_tree_invalid"
	KitPath         Code = "kit_path_unsafe"
	KitRegistry     Code = "kit_registry_invalid"
	KitNotInstalled Code = "kit_not_installed"
	KitAmbiguous    Code = "kit_ambiguous"
	KitEntry        Code = "kit_entry_invalid"
	KitMissing      Code = "kit_missing"
	KitDrifted      Code = "kit_drifted"
	KitUnhashed     Code = "kit_unhashed_content"
	KitNotRunnable  Code = "kit_not_runnable"
	KitConflict     Code = "kit_conflict"
	KitLocked       Code = "kit_locked"
	KitInUse        Code = "kit_in_use"
	KitInstall      Code = "kit_install_failed"
	KitClone        Code = "kit_clone_failed"
)

func init() {
	register(1, KitID, "The name is not a kit id: lower-case letters, digits and dashes, a letter first.")
	register(1, KitInvalid, "kit.json breaks a rule, or names files that are not there; the diagnostics say which.")
	register(1, KitTree, "The directory holds what no kit may (link, special file, name that is not UTF-8, too much), or it changed while it was read.")
	register(1, KitPath, "Source and destination overlap, or a directory of the destination is a link or leads out.")
	register(1, KitRegistry, "The registry of installed kits is no regular file of the known form; it is neither written nor trusted.")
	register(1, KitNotInstalled, "The registry has no kit with this id.")
	register(1, KitAmbiguous, "The registry has more than one entry with this id.")
	register(1, KitEntry, "The kit's entry in the registry does not name the canonical path or a SHA-256 hash.")
	register(1, KitMissing, "The kit is registered and its copy is not there.")
	register(1, KitDrifted, "The copy of the kit is not what was installed.")
	register(1, KitUnhashed, "The copy holds something named .git, __pycache__ or .pytest_cache, which its hash does not cover.")
	register(1, KitNotRunnable, "kit.json declares no entry to run, or the entry is not a regular file of the kit.")
	register(2, KitConflict, "A kit with this id is installed from another source; --update replaces it.")
	register(1, KitLocked, "Another install, update or uninstall holds the lock directory of the destination, or was killed and left it.")
	register(1, KitInUse, "A run of this kit is live; it is not replaced or removed now.")
	register(1, KitInstall, "The kit could not be copied or registered; what was installed before is in place.")
	register(1, KitClone, "git could not clone the source.")
}

package fault

// Codes of the Docker worker and of its storage (worker.md §16).
const (
	OptionInvalid       Code = "option_invalid"
	ImageUnknown        Code = "image_unknown"
	WorkspaceOwner      Code = "workspace_owner"
	DockerUnavailable   Code = "docker_unavailable"
	DockerIdentity      Code = "docker_identity_unqualified"
	PrepareFailed       Code = "prepare_failed"
	MountUnsafe         Code = "mount_unsafe"
	EnvironmentUnsafe   Code = "environment_unsafe"
	OutputExists        Code = "output_exists"
	WorkerConfigDiffers Code = "worker_config_mismatch"
	ForbiddenMount      Code = "forbidden_mount"
	NetworkUnqualified  Code = "network_unqualified"
	RemovalUnverified   Code = "removal_unverified"
	WorkerNotStarted    Code = "worker_not_started"
	ReceiptUnwritten    Code = "receipt_unwritten"
	EventsInvalid       Code = "events_invalid"
)

func init() {
	register(1, OptionInvalid, "An option of a worker run is missing, malformed or unsafe; the detail option names it.")
	register(1, ImageUnknown, "The engine has no image of exactly this id; nothing is ever pulled.")
	register(1, WorkspaceOwner, "The workspace belongs to another user than the one the container would run as.")
	register(69, DockerUnavailable, "The container engine does not answer.")
	register(1, DockerIdentity, "The engine maps user ids (rootless or userns), so that files in the workspace would belong to somebody else.")
	register(1, PrepareFailed, "The preparation of the workspace failed.")
	register(1, MountUnsafe, "A mount of the workspace's set-up has an unsafe or repeated destination or a missing source.")
	register(1, EnvironmentUnsafe, "An environment variable of the workspace's set-up is malformed, too large or reserved.")
	register(1, OutputExists, "A file of this invocation exists already in the artifact root; nothing is ever overwritten.")
	register(1, WorkerConfigDiffers, "The engine made another container than was asked for; it was never started. The detail field names the first difference.")
	register(1, ForbiddenMount, "A mount overlaps a directory that was named as forbidden; the detail kind says which sort.")
	register(1, NetworkUnqualified, "The network of the workers is missing, differs from what is needed, or cannot be had with this engine.")
	register(1, RemovalUnverified, "A container could not be proven gone; the next sweep tries again.")
	register(1, WorkerNotStarted, "The container did not start, or the run was cancelled or out of time before it did.")
	register(1, ReceiptUnwritten, "The worker ran, and its receipt or one of its files could not be written.")
	register(1, EventsInvalid, "The output is not the record of exactly one completed Codex turn.")
}

package fault

// Codes of what a station is to run, refused before anything runs (station §6).
const (
	SpecInvalid       Code = "station_spec_invalid"
	StationProfile    Code = "station_profile_invalid"
	ProfileUnknown    Code = "station_profile_unknown"
	ProfileRefused    Code = "station_profile_refused"
	ModelAccess       Code = "model_access_not_available"
	SecretInArguments Code = "secret_in_arguments"
	SecretEnvRefused  Code = "secret_env_refused"
	EnvRefused        Code = "env_refused"
	ArtifactUnpinned  Code = "artifact_unpinned"
	ArtifactRefused   Code = "artifact_refused"
	WorkspaceRefused  Code = "workspace_refused"
)

func init() {
	register(2, SpecInvalid, "The station's spec is not the one document that is accepted, or a value in it is out of its bounds.")
	register(2, StationProfile, "The file of station profiles is malformed, contradicts itself, or could be changed by others.")
	register(1, ProfileUnknown, "No station profile has this name.")
	register(1, ProfileRefused, "The spec asks for more than its profile allows.")
	register(1, ModelAccess, "modelAccess does not exist in this version; nothing was started.")
	register(1, SecretInArguments, "An argument of the daemon's command holds a secret; arguments are seen by every process and kept in evidence.")
	register(1, SecretEnvRefused, "A variable for the daemon has a secret's name; model and tool credentials are not delivered in this version.")
	register(1, EnvRefused, "A variable for the daemon could change what is executed, or belongs to the service itself.")
	register(1, ArtifactUnpinned, "A harness from outside the workspace has neither a SHA-256 nor a signature.")
	register(1, ArtifactRefused, "The harness could not be fetched, is no regular file, or is too large.")
	register(1, WorkspaceRefused, "The workspace's source cannot be copied: it is no repository, leaves itself through a link, or is too large.")
}

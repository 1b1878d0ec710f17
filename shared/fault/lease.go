package fault

// Codes of the providers of leases (station.md §5).
const (
	ProvidersInvalid    Code = "providers_invalid"
	ProviderUnknown     Code = "provider_unknown"
	ProviderUnsupported Code = "provider_unsupported"
	ProviderUnreachable Code = "provider_unreachable"
	HostKeyRefused      Code = "host_key_refused"
	LeaseUnavailable    Code = "lease_unavailable"
)

func init() {
	register(2, ProvidersInvalid, "The file of lease providers is malformed, contradicts itself, or could be changed by others.")
	register(1, ProviderUnknown, "No lease provider has this name.")
	register(1, ProviderUnsupported, "The lease provider does not say how it starts, supervises, bridges and stops a station; nothing was started.")
	register(75, ProviderUnreachable, "The machine of a lease cannot be reached, or does not let stationd in.")
	register(1, HostKeyRefused, "The machine showed another host key than the one that the providers file pins; nothing was sent to it.")
	register(1, LeaseUnavailable, "The lease could not be made, or what it made is not there any more.")
}

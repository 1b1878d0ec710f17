package worker

import (
	"strings"

	"drawbridge/shared/redact"
)

// Check refuses options as Run would, without the engine: before anything is lent
// for them. What is not lent yet (ProviderProxy) is taken for granted.
func Check(o Options, d Deps) error {
	if o.ProviderProxy == nil {
		o.ProviderProxy = &ProviderProxy{
			BaseURL: "http://" + hostName + ":1", Capability: redact.NewSecret(strings.Repeat("0", 2*redact.CapabilityBytes)), Model: o.Model,
		}
	}
	_, err := check(o, d.withDefaults())
	return err
}

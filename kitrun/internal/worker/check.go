package worker

import (
	"context"
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

// Ask gives what an engine says of itself, or docker_unavailable.
func Ask(ctx context.Context, e Engine) (EngineInfo, error) {
	info, err := e.Info(ctx)
	if err != nil {
		return info, unavailable("ask the container engine", err)
	}
	return info, nil
}

// Qualify refuses an engine on which no worker is run.
func Qualify(info EngineInfo) error {
	_, err := qualify(info)
	return err
}

package handoff

import (
	"encoding/json"

	"drawbridge/shared/agent"
	"drawbridge/shared/fault"
)

// parseAnchor reads a stored anchor.
func parseAnchor(b []byte) (agent.Anchor, error) {
	var a agent.Anchor
	if err := json.Unmarshal(b, &a); err != nil || a.Version != 1 {
		return agent.Anchor{}, fault.New(fault.IdentityUnverified, "stored anchor is unreadable")
	}
	return a, nil
}

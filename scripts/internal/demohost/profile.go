package demohost

import (
	"encoding/json"
	"fmt"
)

// Profile is the Host Profile of this Host: where its session id comes from,
// which executable takes a callback and with which arguments, and where in the
// executable's answer the verdict stands.
func Profile(executable, inbox string) []byte {
	pointer := func(p string) map[string]any { return map[string]any{"jsonPointer": p} }
	raw, err := json.MarshalIndent(map[string]any{
		"schema": "agent-knock-knock/host-profile", "version": 1,
		"id": "demo-host-inbox", "revision": "1",
		"compatibility":     map[string]any{"host": HostID, "range": ">=1.0.0 <2.0.0"},
		"controllerContext": map[string]any{"driver": "environment_v1", "sessionIdVariable": SessionVariable},
		"callback": map[string]any{
			"driver":     "command_json_v1",
			"executable": executable,
			"arguments": []string{
				"-dir", inbox,
				"-session", "${controller.session_id}",
				"-delivery-id", "${envelope.delivery_id}",
				"-message-id", "${envelope.message_id}",
				"-idempotency-key", "${envelope.idempotency_key}",
			},
			"stdin":          "${envelope.body}",
			"environment":    map[string]any{"allow": []string{}},
			"timeoutMs":      8000,
			"maxOutputBytes": 65536,
			"acknowledgement": map[string]any{
				"disposition": map[string]any{
					"jsonPointer": "/result/status",
					"mapping": map[string]any{
						"accepted": "accepted", "retry": "retryable_failure",
						"rejected": "permanent_failure", "unknown": "uncertain",
					},
				},
				"acceptanceId":           pointer("/result/acceptance_id"),
				"acknowledgedDeliveryId": pointer("/request/delivery_id"),
				"acknowledgedMessageId":  pointer("/request/message_id"),
			},
		},
	}, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("demohost: profile: %v", err)) // built here, always marshals
	}
	return append(raw, '\n')
}

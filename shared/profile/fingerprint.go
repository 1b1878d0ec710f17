package profile

import (
	"crypto/sha256"
	"encoding/hex"

	"drawbridge/shared/strictjson"
)

// fingerprint is host-profile §7: over the parsed model, with $schema always
// present and scope only if the document had one.
func (d document) fingerprint() string {
	context := map[string]any{"driver": EnvironmentDriver, "sessionIdVariable": d.sessionVariable}
	if d.scope != "" {
		context["scope"] = string(d.scope)
	}
	mapping := make(map[string]any, len(d.acknowledgement.Mapping))
	for k, v := range d.acknowledgement.Mapping {
		mapping[k] = string(v)
	}
	at := func(pointer string) map[string]any { return map[string]any{"jsonPointer": pointer} }
	canonical, err := strictjson.Canonical(map[string]any{
		"$schema":           SchemaURL,
		"schema":            Schema,
		"version":           int64(Version),
		"id":                d.id,
		"revision":          d.revision,
		"compatibility":     map[string]any{"host": d.host, "range": d.rangeText},
		"controllerContext": context,
		"callback": map[string]any{
			"driver":         CommandTransport,
			"executable":     d.executable,
			"arguments":      d.arguments,
			"stdin":          "${" + bodyPlaceholder + "}",
			"environment":    map[string]any{"allow": d.allow},
			"timeoutMs":      d.timeoutMS,
			"maxOutputBytes": d.output,
			"acknowledgement": map[string]any{
				"disposition":            map[string]any{"jsonPointer": d.acknowledgement.Disposition, "mapping": mapping},
				"acceptanceId":           at(d.acknowledgement.AcceptanceID),
				"acknowledgedDeliveryId": at(d.acknowledgement.DeliveryID),
				"acknowledgedMessageId":  at(d.acknowledgement.MessageID),
			},
		},
	})
	if err != nil {
		// Every string came out of a strict parser, every number is bounded.
		panic("profile: parsed document has no canonical form: " + err.Error())
	}
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:])
}

package operator

import (
	"regexp"
	"strings"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/secretfile"
	"drawbridge/shared/strictjson"
)

// maxCapabilityFile bounds the file of --capability-file.
const maxCapabilityFile = 64 << 10

var capabilityForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// readCapability reads a capability that somebody else took out: its 64 hex digits,
// or the JSON that `brokerd grant` prints, which also says where the broker is. The
// file is checked as brokerd checks a credential file, and no error shows any of it.
func readCapability(path string) (worker.ProviderProxy, error) {
	data, _, err := secretfile.Read("capability file", path, maxCapabilityFile)
	if err != nil {
		return worker.ProviderProxy{}, err
	}
	defer clear(data)
	text := strings.TrimSpace(string(data))
	if !strings.HasPrefix(text, "{") {
		if !capabilityForm.MatchString(text) {
			return worker.ProviderProxy{}, badCapability()
		}
		return worker.ProviderProxy{Capability: redact.NewSecret(text)}, nil
	}
	var grant struct {
		BaseURL    string `json:"base_url"`
		Capability string `json:"capability"`
		Model      string `json:"model"`
	}
	if err := strictjson.Decode([]byte(text), &grant, strictjson.Limits{MaxBytes: maxCapabilityFile, AllowUnknown: true}); err != nil ||
		!capabilityForm.MatchString(grant.Capability) {
		return worker.ProviderProxy{}, badCapability()
	}
	return worker.ProviderProxy{BaseURL: grant.BaseURL, Capability: redact.NewSecret(grant.Capability), Model: grant.Model}, nil
}

func badCapability() error {
	return fault.New(fault.CredentialUnavailable, "read the capability file: it holds neither 64 lower hex digits nor what brokerd grant prints")
}

package upstream

import (
	"net/netip"
	"net/url"

	"drawbridge/shared/fault"
)

// Kinds of a credential.
const (
	APIKey      = "api_key"
	AccessToken = "access_token"
)

// The two origins, compiled in (broker §2).
const (
	OriginAPI     = "https://api.openai.com/v1"
	OriginChatGPT = "https://chatgpt.com/backend-api/codex"
)

// TestPrefix begins every credential that may be used with a test origin.
const TestPrefix = "test-"

// OriginFor gives the one origin to which a credential of this kind may go, ""
// for an unknown kind.
func OriginFor(kind string) string {
	switch kind {
	case APIKey:
		return OriginAPI
	case AccessToken:
		return OriginChatGPT
	}
	return ""
}

// ParseTestOrigin checks the value of -test-upstream: plain HTTP to a literal
// loopback address, with a port, and at most the path /v1.
func ParseTestOrigin(value string) (string, error) {
	refuse := func(why string) (string, error) {
		return "", fault.New(fault.InvalidArguments, "read -test-upstream: %s", why).
			WithHint("give http://127.0.0.1:PORT or http://[::1]:PORT")
	}
	u, err := url.Parse(value)
	if err != nil || u.Opaque != "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return refuse("it is no plain URL")
	}
	if u.Scheme != "http" {
		return refuse("its scheme is not http")
	}
	addr, err := netip.ParseAddrPort(u.Host)
	if err != nil || !addr.Addr().IsLoopback() || addr.Addr().Is4In6() || addr.Addr().Zone() != "" || addr.Port() == 0 {
		return refuse("its host is no loopback address with a port")
	}
	if u.Path != "" && u.Path != "/v1" {
		return refuse("it has a path")
	}
	return "http://" + addr.String() + u.Path, nil
}

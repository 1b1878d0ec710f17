package egress

import (
	"net/netip"
	"strconv"
	"strings"
)

const (
	maxHost  = 253 // bytes of a name
	maxLabel = 63
)

// target is where a daemon wants to go: a name, or an address.
type target struct {
	name string     // lower case, no trailing dot; "" for an address
	addr netip.Addr // unmapped; not valid for a name
	port uint16
}

// host is how the target stands in the record.
func (t target) host() string {
	if t.name == "" {
		return t.addr.String()
	}
	return t.name
}

// parseTarget reads "host:port". Anything in doubt is refused: user information,
// names that are not ASCII host names, addresses in another than their usual
// notation, numbers with a sign or a leading zero.
func parseTarget(text string) (target, bool) {
	cut := strings.LastIndexByte(text, ':')
	if cut < 0 || len(text) > maxHost+len(":65535")+1 {
		return target{}, false
	}
	host, digits := text[:cut], text[cut+1:]
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil || port == 0 || digits[0] == '0' || digits[0] == '+' {
		return target{}, false
	}
	t := target{port: uint16(port)}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !ok || err != nil || !addr.Is6() || addr.Zone() != "" {
			return target{}, false
		}
		t.addr = addr.Unmap()
		return t, true
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is4() {
		t.addr = addr
		return t, true
	}
	name, ok := cleanName(host)
	t.name = name
	return t, ok
}

// cleanName gives the one form of a host name: ASCII, lower case, no trailing
// dot. A name whose last label is a number, in whatever base, is an address in
// disguise and no name.
func cleanName(text string) (string, bool) {
	name := strings.TrimSuffix(text, ".")
	if name == "" || len(name) > maxHost {
		return "", false
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > maxLabel || l[0] == '-' || l[len(l)-1] == '-' {
			return "", false
		}
		for i := range len(l) {
			c := l[i] | 0x20 // letters in lower case, digits and - stay
			if (c < 'a' || c > 'z') && (l[i] < '0' || l[i] > '9') && l[i] != '-' && l[i] != '_' {
				return "", false
			}
		}
	}
	last := strings.ToLower(labels[len(labels)-1])
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return "", false
	}
	return strings.ToLower(name), true
}

// cleanPattern gives the one form of an allowlist entry, or why it is none.
func cleanPattern(text string) (pattern, why string) {
	domain, wide := strings.CutPrefix(text, "*.")
	name, ok := cleanName(domain)
	switch {
	case strings.Contains(domain, "*"):
		return "", "has a star in another place than before the first dot"
	case !ok:
		return "", "is not a host name in ASCII"
	case !wide:
		return name, ""
	case !strings.Contains(name, "."):
		return "", "opens a whole top-level domain"
	}
	return "*." + name, ""
}

// matches reports whether an allowlist entry covers a name: *.d is d and
// everything below it.
func matches(pattern, name string) bool {
	if domain, wide := strings.CutPrefix(pattern, "*."); wide {
		return within(name, domain)
	}
	return pattern == name
}

// within reports whether name is domain or below it.
func within(name, domain string) bool {
	rest, ok := strings.CutSuffix(name, domain)
	return ok && (rest == "" || strings.HasSuffix(rest, "."))
}

// internalDomains lead to this host, its containers or a cloud's inside, with all
// that is below them.
var internalDomains = []string{"localhost", "internal", "local", "localdomain", "home.arpa"}

// internalName reports whether a name is one of the coordinator's own world.
func internalName(name string) bool {
	for _, d := range internalDomains {
		if within(name, d) {
			return true
		}
	}
	return false
}

// forbidden says why no profile may have a pattern.
func forbidden(pattern string, models []string) string {
	domain, wide := strings.CutPrefix(pattern, "*.")
	if internalName(domain) {
		return "names the host itself or the inside of a network, which no name opens"
	}
	if isModel(domain, models) {
		return "names a model destination, which needs modelAccess; that does not exist in this version"
	}
	for _, m := range models {
		named := strings.TrimPrefix(m, "*.")
		if wide && !strings.Contains(named, "*") && within(named, domain) {
			return "covers a model destination, " + named + "; name the hosts that are needed"
		}
	}
	return ""
}

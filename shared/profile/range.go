package profile

import (
	"math"
	"strconv"
	"strings"

	"github.com/Masterminds/semver/v3"

	"drawbridge/shared/fault"
)

const maxComparators = 4

// operators, the longer spelling first.
var operators = []string{">=", "<=", ">", "<", "="}

type comparator struct {
	op      string // one of operators
	version *semver.Version
}

// versionRange is a conjunction of comparators.
type versionRange []comparator

// parseRange reads one to four comparators separated by exactly one space.
func parseRange(text string) (versionRange, string) {
	parts := strings.Split(text, " ")
	if len(parts) > maxComparators {
		return nil, "must have at most four comparators"
	}
	out := make(versionRange, 0, len(parts))
	for _, part := range parts {
		c := comparator{op: "="}
		for _, op := range operators {
			if rest, ok := strings.CutPrefix(part, op); ok {
				c.op, part = op, rest
				break
			}
		}
		v, why := parseVersion(part)
		if why != "" {
			return nil, "comparators are [>=|>|<=|<|=]MAJOR.MINOR.PATCH, separated by one space: " + why
		}
		c.version = v
		out = append(out, c)
	}
	return out, ""
}

// parseVersion accepts exactly SemVer 2.0.0 whose numbers fit 63 bits: the
// library reads parts into 64 bits and compares longer identifiers as text.
func parseVersion(text string) (*semver.Version, string) {
	v, err := semver.StrictNewVersion(text)
	if err != nil {
		return nil, "not a full SemVer 2.0.0 version"
	}
	if v.Original() != text || !versionCharacters(text) {
		return nil, "not a full SemVer 2.0.0 version"
	}
	for _, n := range []uint64{v.Major(), v.Minor(), v.Patch()} {
		if n > math.MaxInt64 {
			return nil, "a number is beyond 63 bits"
		}
	}
	if p := v.Prerelease(); p != "" {
		for _, id := range strings.Split(p, ".") {
			if !numeric(id) {
				continue
			}
			if _, err := strconv.ParseInt(id, 10, 64); err != nil {
				return nil, "a numeric identifier is beyond 63 bits"
			}
		}
	}
	return v, ""
}

// versionCharacters refuses what no SemVer may hold, whatever the library
// makes of it: an empty identifier or a character outside its alphabet.
func versionCharacters(text string) bool {
	core, build, hasBuild := strings.Cut(text, "+")
	numbers, pre, hasPre := strings.Cut(core, "-")
	if hasBuild && !identifiers(build) || hasPre && !identifiers(pre) {
		return false
	}
	parts := strings.Split(numbers, ".")
	if len(parts) != 3 {
		return false
	}
	for _, p := range parts {
		if !numeric(p) || len(p) > 1 && p[0] == '0' {
			return false
		}
	}
	return true
}

func identifiers(s string) bool {
	for _, id := range strings.Split(s, ".") {
		if id == "" {
			return false
		}
		for _, r := range id {
			if !(r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r == '-') {
				return false
			}
		}
	}
	return true
}

func numeric(s string) bool {
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return s != ""
}

// allows is the conjunction behind the prerelease gate: a prerelease is
// eligible only next to a comparator that names a prerelease of the same release.
func (rs versionRange) allows(v *semver.Version) bool {
	if v.Prerelease() != "" && !rs.opensTo(v) {
		return false
	}
	for _, c := range rs {
		if !c.holds(v) {
			return false
		}
	}
	return len(rs) > 0
}

func (rs versionRange) opensTo(v *semver.Version) bool {
	for _, c := range rs {
		w := c.version
		if w.Prerelease() != "" && w.Major() == v.Major() && w.Minor() == v.Minor() && w.Patch() == v.Patch() {
			return true
		}
	}
	return false
}

func (c comparator) holds(v *semver.Version) bool {
	order := v.Compare(c.version)
	switch c.op {
	case ">=":
		return order >= 0
	case ">":
		return order > 0
	case "<=":
		return order <= 0
	case "<":
		return order < 0
	}
	return order == 0
}

// Compatible reports whether the Host that starts us is the one this Profile is
// for: the id byte for byte, the version inside the range.
func (p Profile) Compatible(host, version string) error {
	if why := clean(host, maxID); why != "" || !idPattern.MatchString(host) {
		return refuse(fault.HostInputInvalid, "--host", "must match ^[a-z][a-z0-9]*([._-][a-z0-9]+)*$ and be at most %d long", maxID)
	}
	if why := clean(version, maxRange); why != "" {
		return refuse(fault.HostInputInvalid, "--host-version", "%s", why)
	}
	v, why := parseVersion(version)
	if why != "" {
		return refuse(fault.HostInputInvalid, "--host-version", "%s", why)
	}
	if host != p.doc.host {
		return refuse(fault.HostIncompatible, "compatibility.host", "the Profile is for Host %s, not %s", p.doc.host, host)
	}
	if !p.doc.parsed.allows(v) {
		return refuse(fault.HostIncompatible, "compatibility.range", "Host version %s is outside %s", version, p.doc.rangeText)
	}
	return nil
}

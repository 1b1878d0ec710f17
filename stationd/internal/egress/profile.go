package egress

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
	"drawbridge/stationd/internal/adminfile"
)

const (
	// NoProfile is the default: no proxy at all.
	NoProfile = "none"

	maxFile    = 1 << 20
	maxEntries = 256 // of each list
	maxText    = 256
	maxLimitMS = 24 * 60 * 60 * 1000
)

// Profile is a named opening in the wall: what an operator allows a daemon to
// reach (station §9.2).
type Profile struct {
	Name    string    `json:"name"`
	Allow   []string  `json:"allow"`   // host, or *.domain for it and everything below
	Ports   []uint16  `json:"ports"`   // empty means 443 and 80
	Private []Private `json:"private"` // networks that are otherwise denied
	Limits  Limits    `json:"limits"`
}

// Private opens one network that is denied otherwise, after someone has looked at
// it. Every field is required.
type Private struct {
	CIDR       string   `json:"cidr"`
	Ports      []uint16 `json:"ports"`
	ReviewedBy string   `json:"reviewedBy"`
	ReviewedAt string   `json:"reviewedAt"` // a date, 2026-01-31
	Reason     string   `json:"reason"`

	prefix netip.Prefix
}

// Limits bound one attempt; zero means the default.
type Limits struct {
	Tunnels      int   `json:"tunnels"`      // open at once: 64
	NewPerSecond int   `json:"newPerSecond"` // 20
	BytesDown    int64 `json:"bytesDown"`    // 1 GiB
	BytesUp      int64 `json:"bytesUp"`      // 256 MiB
	IdleMS       int64 `json:"idleMs"`       // a tunnel without a byte: 10 minutes
	DNSMS        int64 `json:"dnsMs"`        // 5 seconds
	DialMS       int64 `json:"dialMs"`       // 10 seconds
}

// defaults are the bounds of station §9.5.
var defaults = Limits{
	Tunnels: 64, NewPerSecond: 20, BytesDown: 1 << 30, BytesUp: 256 << 20,
	IdleMS: 10 * 60 * 1000, DNSMS: 5000, DialMS: 10_000,
}

// Profiles is a file of profiles.
type Profiles struct {
	Profiles []Profile `json:"profiles"`
	Models   []string  `json:"models"` // model destinations besides the built-in ones
}

// Load reads a file of profiles. It is an administrator's: whoever else could
// change it could open the wall.
func Load(path string) (Profiles, error) {
	data, err := adminfile.Read(path, maxFile)
	if err != nil {
		return Profiles{}, invalid("read egress profiles: %w", err)
	}
	return Parse(data)
}

// Parse reads profiles strictly: unknown members, repeated names and everything
// that Profile.Check refuses are errors.
func Parse(data []byte) (Profiles, error) {
	var ps Profiles
	if err := strictjson.Decode(data, &ps, strictjson.Limits{MaxBytes: maxFile}); err != nil {
		return Profiles{}, invalid("read egress profiles: %w", err)
	}
	if len(ps.Profiles) > maxEntries || len(ps.Models) > maxEntries {
		return Profiles{}, invalid("read egress profiles: more than %d entries in a list", maxEntries)
	}
	for i, m := range ps.Models {
		name, ok := cleanName(strings.TrimPrefix(m, "*."))
		if !ok {
			return Profiles{}, invalid("read egress profiles: models[%d] is not a host name", i)
		}
		ps.Models[i] = name // a model's name covers what is below it
	}
	seen := map[string]bool{}
	for _, p := range ps.Profiles {
		if err := p.Check(ps.Models...); err != nil {
			return Profiles{}, err
		}
		if seen[p.Name] {
			return Profiles{}, invalid("read egress profiles: two profiles have the name %s", p.Name)
		}
		seen[p.Name] = true
	}
	return ps, nil
}

// Find gives the profile with this name.
func (ps Profiles) Find(name string) (Profile, error) {
	for _, p := range ps.Profiles {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fault.New(fault.EgressProfileUnknown, "find egress profile %s: there is none of this name", fault.CleanLine(name)).
		WithHint("profiles stand in the file of -egress-profiles; %q needs none", NoProfile)
}

// Check refuses a profile that opens what no profile may open. models are names
// of model destinations besides the built-in ones.
func (p Profile) Check(models ...string) error {
	_, err := p.compile(append(builtInModels(), models...))
	return err
}

// filled is the profile with its defaults, its names and networks in their one
// form. It must have passed Check.
func (p Profile) filled() Profile {
	out, _ := p.compile(nil)
	return out
}

func (p Profile) compile(models []string) (Profile, error) {
	if !plainName(p.Name) || p.Name == NoProfile {
		return p, invalid("check egress profile: a name is 1 to 64 of a-z, 0-9, - and _, and not %q", NoProfile)
	}
	bad := func(format string, args ...any) error {
		return invalid("check egress profile %s: %w", p.Name, fmt.Errorf(format, args...))
	}
	if len(p.Allow) > maxEntries || len(p.Private) > maxEntries || len(p.Ports) > maxEntries {
		return p, bad("more than %d entries in a list", maxEntries)
	}
	allow := make([]string, len(p.Allow))
	for i, text := range p.Allow {
		pattern, why := cleanPattern(text)
		if why == "" {
			why = forbidden(pattern, models)
		}
		if why != "" {
			return p, bad("allow[%d] %s", i, why)
		}
		allow[i] = pattern
	}
	p.Allow = allow
	if len(p.Ports) == 0 {
		p.Ports = []uint16{443, 80}
	}
	if slices.Contains(p.Ports, 0) {
		return p, bad("port 0")
	}
	p.Private = slices.Clone(p.Private)
	for i := range p.Private {
		e := &p.Private[i]
		if err := e.compile(); err != nil {
			return p, bad("private[%d]: %w", i, err)
		}
	}
	limits, err := p.Limits.filled()
	if err != nil {
		return p, bad("limits: %w", err)
	}
	p.Limits = limits
	return p, nil
}

// compile checks that an entry is reviewed, and reads its network.
func (e *Private) compile() error {
	for name, text := range map[string]string{"reviewedBy": e.ReviewedBy, "reason": e.Reason} {
		if strings.TrimSpace(text) == "" || len(text) > maxText {
			return fmt.Errorf("%s is missing or longer than %d bytes", name, maxText)
		}
	}
	if _, err := time.Parse(time.DateOnly, e.ReviewedAt); err != nil {
		return fmt.Errorf("reviewedAt is not a date such as 2026-01-31")
	}
	if len(e.Ports) == 0 || len(e.Ports) > maxEntries || slices.Contains(e.Ports, 0) {
		return fmt.Errorf("ports are missing, too many or 0")
	}
	prefix, err := netip.ParsePrefix(e.CIDR)
	if err != nil || prefix != prefix.Masked() || prefix.Addr().Is4In6() {
		return fmt.Errorf("cidr is not a network such as 10.1.0.0/16")
	}
	if why := openable(prefix); why != "" {
		return fmt.Errorf("cidr %s", why)
	}
	e.prefix = prefix
	return nil
}

// filled puts defaults where there is nothing.
func (l Limits) filled() (Limits, error) {
	for _, v := range []struct {
		name   string
		got    *int64
		normal int64
		most   int64
	}{
		{"bytesDown", &l.BytesDown, defaults.BytesDown, math.MaxInt64 / 2},
		{"bytesUp", &l.BytesUp, defaults.BytesUp, math.MaxInt64 / 2},
		{"idleMs", &l.IdleMS, defaults.IdleMS, maxLimitMS},
		{"dnsMs", &l.DNSMS, defaults.DNSMS, 60_000},
		{"dialMs", &l.DialMS, defaults.DialMS, 60_000},
	} {
		if *v.got < 0 || *v.got > v.most {
			return l, fmt.Errorf("%s is below 0 or over %d", v.name, v.most)
		}
		if *v.got == 0 {
			*v.got = v.normal
		}
	}
	for _, v := range []struct {
		name   string
		got    *int
		normal int
	}{{"tunnels", &l.Tunnels, defaults.Tunnels}, {"newPerSecond", &l.NewPerSecond, defaults.NewPerSecond}} {
		if *v.got < 0 || *v.got > 1000 {
			return l, fmt.Errorf("%s is below 0 or over 1000", v.name)
		}
		if *v.got == 0 {
			*v.got = v.normal
		}
	}
	return l, nil
}

// plainName accepts names of profiles.
func plainName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func invalid(format string, args ...any) *fault.Error {
	return fault.New(fault.EgressProfileInvalid, format, args...)
}

package launch

import (
	"slices"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
	"drawbridge/stationd/internal/adminfile"
)

const (
	maxProfiles = 1 << 20 // bytes of the file

	defaultTTL  = 8 * time.Hour
	defaultIdle = 45 * time.Minute
	noEgress    = "none"
)

// Profile holds the defaults and upper bounds of specs that name it. No profile
// can hold modelAccess.
type Profile struct {
	Name           string       `json:"name"`
	Bridge         bool         `json:"bridge"`         // a way in is allowed
	Providers      []string     `json:"providers"`      // the first is the default; none: any, and local
	EgressProfile  string       `json:"egressProfile"`  // the default; "" is none
	EgressProfiles []string     `json:"egressProfiles"` // allowed besides none and the default; absent: any
	TTL            string       `json:"ttl"`            // the default: 8h
	MaxTTL         string       `json:"maxTtl"`         // 24h
	Idle           string       `json:"idle"`           // the default: 45m; "0" is off
	MaxIdle        string       `json:"maxIdle"`        // absent: no bound, and off is allowed
	Limits         BridgeLimits `json:"limits"`         // of bridges: defaults and upper bounds
}

// Profiles are the built-in ones and those of a file.
type Profiles []Profile

// BuiltIn are station, which has no way in, and agent, which may have one.
func BuiltIn() Profiles { return Profiles{{Name: "station"}, {Name: "agent", Bridge: true}} }

// Resolved is a spec with its profile's values in place.
type Resolved struct {
	Spec
	TTLTime  time.Duration
	IdleTime time.Duration // 0 is off
}

// LoadProfiles reads a file of profiles beside the built-in ones. It is an
// administrator's: whoever else could change it could widen what specs may ask.
func LoadProfiles(path string) (Profiles, error) {
	data, err := adminfile.Read(path, maxProfiles)
	if err != nil {
		return nil, badProfile("read station profiles: %w", err)
	}
	return ParseProfiles(data)
}

// ParseProfiles reads {"profiles":[…]} strictly.
func ParseProfiles(data []byte) (Profiles, error) {
	if err := refuseModelAccess(data, maxProfiles); err != nil {
		return nil, err
	}
	var file struct {
		Profiles Profiles `json:"profiles"`
	}
	if err := strictjson.Decode(data, &file, strictjson.Limits{MaxBytes: maxProfiles}); err != nil {
		return nil, badProfile("read station profiles: %w", err)
	}
	out := BuiltIn()
	for i, p := range file.Profiles {
		if len(p.Name) > maxName || !plainName.MatchString(p.Name) {
			return nil, badProfile("read station profiles: profile %d has no usable name", i)
		}
		if _, err := out.Find(p.Name); err == nil {
			return nil, badProfile("read station profiles: two profiles have the name %s", p.Name)
		}
		for _, t := range []struct {
			name, text string
			least      time.Duration
		}{{"ttl", p.TTL, time.Second}, {"maxTtl", p.MaxTTL, time.Second}, {"idle", p.Idle, 0}, {"maxIdle", p.MaxIdle, time.Second}} {
			if _, err := duration(t.text, t.least); err != nil {
				return nil, badProfile("read station profile %s: %s: %w", p.Name, t.name, err)
			}
		}
		out = append(out, p)
		probe := Spec{Name: "probe", Profile: p.Name}
		if _, err := out.Resolve(probe); err != nil { // its defaults are within its bounds
			return nil, badProfile("read station profile %s: %w", p.Name, err)
		}
	}
	return out, nil
}

// Find gives the profile with this name.
func (ps Profiles) Find(name string) (Profile, error) {
	for _, p := range ps {
		if p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fault.New(fault.ProfileUnknown, "find station profile %s: there is none of this name", fault.CleanLine(name)).
		WithHint("station and agent are built in; others stand in the file of -profiles")
}

// Resolve holds a spec against its profile.
func (ps Profiles) Resolve(s Spec) (Resolved, error) {
	p, err := ps.Find(s.Profile)
	if err != nil {
		return Resolved{}, err
	}
	refuse := func(format string, args ...any) error {
		return fault.New(fault.ProfileRefused, "start "+s.Name+" with profile "+p.Name+": "+format, args...)
	}
	if s.Bridge != nil && !p.Bridge {
		return Resolved{}, refuse("the profile has no bridge; agent has")
	}
	if s.Provider == "" {
		s.Provider = DefaultProvider
		if len(p.Providers) > 0 {
			s.Provider = p.Providers[0]
		}
	}
	if len(p.Providers) > 0 && !slices.Contains(p.Providers, s.Provider) {
		return Resolved{}, refuse("provider %s is not one of the profile's", s.Provider)
	}
	if p.EgressProfile == "" {
		p.EgressProfile = noEgress
	}
	if s.EgressProfile == "" {
		s.EgressProfile = p.EgressProfile
	}
	if s.EgressProfile != noEgress && s.EgressProfile != p.EgressProfile && p.EgressProfiles != nil && !slices.Contains(p.EgressProfiles, s.EgressProfile) {
		return Resolved{}, refuse("egress profile %s is not one of the profile's", s.EgressProfile)
	}
	r := Resolved{Spec: s}
	most := pick(mostTTL, p.MaxTTL)
	r.TTLTime = pick(min(defaultTTL, most), p.TTL, s.TTL)
	if r.TTLTime > most {
		return Resolved{}, refuse("ttl is over %v", most)
	}
	mostIdle := pick(r.TTLTime, p.MaxIdle)
	r.IdleTime = pick(min(defaultIdle, mostIdle), p.Idle, s.Idle)
	if s.Idle == "" {
		r.IdleTime = min(r.IdleTime, r.TTLTime)
	}
	if r.IdleTime > mostIdle || r.IdleTime > r.TTLTime || p.MaxIdle != "" && r.IdleTime == 0 {
		return Resolved{}, refuse("idle is off, or over %v", min(mostIdle, r.TTLTime))
	}
	if s.Bridge != nil {
		b := *s.Bridge
		if name := b.Limits.within(p.Limits); name != "" {
			return Resolved{}, refuse("bridge.limits.%s is over the profile's", name)
		}
		r.Bridge = &b
	}
	return r, nil
}

// within takes what is absent from most, and names what is over it.
func (l *BridgeLimits) within(most BridgeLimits) string {
	for _, f := range []struct {
		name string
		got  *int64
		most int64
	}{
		{"body", &l.Body, most.Body}, {"answer", &l.Answer, most.Answer}, {"headerWaitMs", &l.HeaderWaitMS, most.HeaderWaitMS},
		{"requests", &l.Requests, most.Requests}, {"streams", &l.Streams, most.Streams}, {"ticketStreams", &l.TicketStreams, most.TicketStreams},
	} {
		if *f.got == 0 {
			*f.got = f.most
		}
		if f.most != 0 && *f.got > f.most {
			return f.name
		}
	}
	return ""
}

// pick gives the last of texts that says something; they are checked already.
func pick(otherwise time.Duration, texts ...string) time.Duration {
	for _, t := range slices.Backward(texts) {
		if t != "" {
			d, _ := time.ParseDuration(t)
			return d
		}
	}
	return otherwise
}

func badProfile(format string, args ...any) *fault.Error {
	return fault.New(fault.StationProfile, format, args...)
}

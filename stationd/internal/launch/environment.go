package launch

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

// searchPath is every daemon's PATH.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// neverNames and neverPrefixes change what is executed, or belong to stationd and
// its service manager.
var (
	neverNames    = []string{"NODE_OPTIONS", "BASH_ENV", "ENV", "PYTHONSTARTUP", "GIT_ASKPASS", "SSH_AUTH_SOCK", "NOTIFY_SOCKET", "LISTEN_FDS"}
	neverPrefixes = []string{"LD_", "DYLD_", "DRAWBRIDGE_"}
)

// tokens finds values that are secrets whatever their name.
var tokens = redact.New(redact.Options{})

// secretWords make a variable's name a secret's.
var secretWords = map[string]bool{
	"KEY": true, "TOKEN": true, "SECRET": true, "PASSWORD": true, "PASS": true, "CREDENTIAL": true, "AUTH": true,
	"PASSWD": true, "PASSPHRASE": true, "APIKEY": true, "ACCESSKEY": true, "SECRETKEY": true, "PRIVATEKEY": true, "AUTHTOKEN": true,
}

// refusedName reports whether no daemon gets a variable of this name.
func refusedName(name string) bool {
	return slices.Contains(neverNames, name) || slices.ContainsFunc(neverPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// secretName reports whether a name has a secret's word in it: API_KEY, authTokens.
func secretName(name string) bool {
	var words []string
	start := 0
	flush := func(end int) {
		if end > start {
			words = append(words, strings.ToUpper(name[start:end]))
		}
	}
	for i, r := range name {
		switch {
		case r == '_' || unicode.IsDigit(r):
			flush(i)
			start = i + 1
		case i > start && unicode.IsUpper(r) && unicode.IsLower(rune(name[i-1])):
			flush(i)
			start = i
		}
	}
	flush(len(name))
	return slices.ContainsFunc(words, func(w string) bool { return secretWords[w] || secretWords[strings.TrimSuffix(w, "S")] })
}

// Surroundings are what a daemon's environment says of its attempt.
type Surroundings struct {
	Station    string
	Attempt    int
	Lease      string
	Port       int
	Home       string // private directories of the attempt
	Temp       string
	Proxy      map[string]string // egress.Variables, nil without a proxy
	Credential redact.Secret     // for the variable of daemonAuth
}

// CheckEnv refuses a spec's variables that no daemon gets. environ is stationd's
// own environment, of which Allow picks.
func CheckEnv(s Spec, environ []string) error {
	_, err := picked(s, environ)
	return err
}

// Environment is the daemon's whole environment, sorted. It starts empty.
func Environment(s Spec, environ []string, at Surroundings) ([]string, error) {
	own, err := picked(s, environ)
	if err != nil {
		return nil, err
	}
	all := map[string]string{"LANG": "C.UTF-8"}
	maps.Copy(all, own)
	maps.Copy(all, map[string]string{ // nobody else decides about these
		"PATH": searchPath, "HOME": at.Home, "TMPDIR": at.Temp, "PORT": strconv.Itoa(at.Port),
		"STATION_ID": at.Station, "STATION_ATTEMPT": strconv.Itoa(at.Attempt), "STATION_LEASE_ID": at.Lease,
	})
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"} {
		delete(all, name)
		delete(all, strings.ToLower(name))
	}
	maps.Copy(all, at.Proxy)
	if name := s.DaemonAuth.Variable(); name != "" {
		all[name] = at.Credential.Reveal()
	}
	out := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, name+"="+all[name])
	}
	return out, nil
}

// Names are the names of an environment.
func Names(environment []string) []string {
	out := make([]string, len(environment))
	for i, e := range environment {
		out[i], _, _ = strings.Cut(e, "=")
	}
	return out
}

// picked are the variables that the spec sets, and those that it takes over.
func picked(s Spec, environ []string) (map[string]string, error) {
	out := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Env.Set)) {
		value := s.Env.Set[name]
		if !envName.MatchString(name) || strings.ContainsRune(value, 0) {
			return nil, fault.New(fault.SpecInvalid, "read env.set: %s is no variable", fault.CleanLine(name))
		}
		if err := allowedName(name, "set"); err != nil {
			return nil, err
		}
		if tokens.Finds([]byte(value)) {
			return nil, fault.New(fault.SecretEnvRefused, "read env.set: the value of %s is a secret", name).
				WithHint("specs are stored; the daemon's own credential goes through daemonAuth")
		}
		out[name] = value
	}
	for _, pattern := range s.Env.Allow {
		prefix, wide := strings.CutSuffix(pattern, "*")
		switch {
		case pattern == "*":
			continue // everything is nothing in particular
		case !envName.MatchString(prefix):
			return nil, fault.New(fault.SpecInvalid, "read env.allow: %s is neither a name nor the beginning of one", fault.CleanLine(pattern))
		case !wide:
			if err := allowedName(pattern, "allow"); err != nil {
				return nil, err
			}
		}
		for _, e := range environ {
			name, value, _ := strings.Cut(e, "=")
			if name != prefix && !(wide && strings.HasPrefix(name, prefix)) || !envName.MatchString(name) {
				continue
			}
			if err := allowedName(name, "allow"); err != nil {
				return nil, err
			}
			out[name] = value
		}
	}
	if name := s.DaemonAuth.Variable(); name != "" {
		if _, ok := out[name]; ok {
			return nil, fault.New(fault.SecretEnvRefused, "read env: %s is the variable of daemonAuth, which stationd fills", name)
		}
	}
	return out, nil
}

// allowedName refuses a variable by its name.
func allowedName(name, where string) error {
	switch {
	case refusedName(name):
		return fault.New(fault.EnvRefused, "read env.%s: %s is never given to a daemon", where, name)
	case secretName(name):
		return fault.New(fault.SecretEnvRefused, "read env.%s: %s has a secret's name", where, name).
			WithHint("model and tool credentials are not delivered in this version; the daemon's own goes through daemonAuth")
	}
	return nil
}

package launch_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/stationd/internal/launch"
)

// secrets are one of each form of station §6.3(b), put together here so that no
// scanner takes this file for a leak.
func secrets() map[string]string {
	r := strings.Repeat
	return map[string]string{
		"sk":         "sk-" + r("a1B2", 6),
		"sk-ant":     "sk-" + "ant-api03-" + r("x9", 12),
		"ghp":        "gh" + "p_" + r("a1", 18),
		"gho":        "gh" + "o_" + r("a1", 18),
		"ghs":        "gh" + "s_" + r("a1", 18),
		"github_pat": "github_" + "pat_" + r("a1", 20),
		"glpat":      "glpat" + "-" + r("a1", 10),
		"xoxb":       "xox" + "b-" + r("1a", 10),
		"AKIA":       "AK" + "IA" + r("A1B2", 4),
		"ASIA":       "AS" + "IA" + r("A1B2", 4),
		"AIza":       "AI" + "za" + r("aB1_-", 7),
		"npm":        "npm" + "_" + r("a1B2", 9),
		"hf":         "hf" + "_" + r("a1", 16),
		"ticket":     "dbt" + "_" + r("a", 43),
		"principal":  "dbp" + "_" + r("b", 43),
		"jwt":        "eyJ" + r("hbGc", 4) + ".eyJ" + r("zdWI", 4) + "." + r("c2ln", 8),
		"pem":        "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
		"bearer":     "Authorization: " + "Bearer " + r("q1w2", 6),
		"basic":      "Basic " + r("dXNl", 6) + "==",
	}
}

// Proves station 17.L3: every form, in every place an argument can hold it.
func TestSecretsInArguments(t *testing.T) {
	for kind, value := range secrets() {
		for place, command := range map[string]launch.Command{
			"own":       {Argv: []string{"serve", value}},
			"flag=":     {Argv: []string{"serve", "--config=" + value}},
			"flag":      {Argv: []string{"serve", "--config", value}},
			"userinfo":  {Argv: []string{"serve", "https://user:" + strings.ReplaceAll(value, " ", "%20") + "@x.test/"}},
			"query":     {Argv: []string{"serve", "https://x.test/?a=1&k=" + value}},
			"first":     {Argv: []string{value}},
			"setting":   {Argv: []string{"serve", "k=" + value}},
			"shell":     {Shell: "exec serve --x " + value + " | cat"},
			"quoted":    {Shell: `exec serve "` + value + `"`},
			"cut":       {Shell: `exec serve ` + value[:2] + `""` + value[2:]},
			"separated": {Shell: "true;" + value + "&"},
		} {
			err := launch.CheckArguments(command, nil)
			if !fault.Is(err, fault.SecretInArguments) {
				t.Errorf("%s, %s: %v", kind, place, err)
				continue
			}
			e, _ := fault.As(err)
			if text := fmt.Sprint(e.Message, e.Hint, e.Details, e.Err); strings.Contains(text, value) || strings.Contains(text, value[4:]) {
				t.Errorf("%s, %s: the refusal holds the value", kind, place)
			}
		}
	}
	for _, flag := range []string{"--token", "--api-key", "--apikey", "--password", "--passwd", "--secret", "--auth", "--access-key", "--private-key", "--credential", "--credentials", "--bearer", "-token", "--API_KEY"} {
		for _, c := range []struct {
			command launch.Command
			index   int
		}{
			{launch.Command{Argv: []string{"serve", flag, "v"}}, 2}, {launch.Command{Argv: []string{"serve", flag + "=v"}}, 1}, {launch.Command{Shell: "serve " + flag + " v"}, 0}, {launch.Command{Shell: "serve " + flag + "='v'"}, 0},
		} {
			err := launch.CheckArguments(c.command, nil)
			if e, ok := fault.As(err); !ok || e.Code != fault.SecretInArguments || e.Details["index"] != c.index && e.Details["index"] != c.index-1 {
				t.Errorf("%s in %v: %v %v", flag, c.command, err, e)
			}
		}
		if err := launch.CheckArguments(launch.Command{Argv: []string{"serve", flag + "={port}"}}, nil); err != nil {
			t.Errorf("%s with a placeholder: %v", flag, err)
		}
	}
}

// Proves station 17.L4
func TestKnownValuesInArguments(t *testing.T) {
	environ := []string{"DEPLOY_TOKEN=correct horse battery", "PLAIN=ordinary-value-here", "SHORT_KEY=abc", "DB_PASS=p%ss w/rd&x"}
	known := launch.Known(environ, launch.Spec{Env: launch.Env{Set: map[string]string{"MY_SECRET": "set-by-the-spec"}}}, redact.NewSecret("generated-credential"))
	for _, text := range []string{"correct horse battery", "x=correct horse battery", "correct%20horse%20battery", "Y29ycmVjdCBob3JzZSBiYXR0ZXJ5", "p%ss w/rd&x", "set-by-the-spec", "/x/generated-credential/y"} {
		for _, c := range []launch.Command{{Argv: []string{"serve", text}}, {Shell: "serve '" + text + "'"}} {
			if err := launch.CheckArguments(c, known); !fault.Is(err, fault.SecretInArguments) {
				t.Errorf("%v: %v", c, err)
			}
		}
	}
	for _, text := range []string{
		"da39a3ee5e6b4b0d3255bfef95601890afd80709", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "0198b1c2-7c1e-7a33-9a5e-0c1f2a3b4c5d",
		"/usr/lib/node_modules/sandbox-agent/bin/sandbox-agent", "ordinary-value-here", "--no-token", "--port", "{port}", "--host=127.0.0.1", "--log-level=debug", "https://x.test/a?b=c#d",
		"a.b.c", "abc", "--keyboard=us", "key.pem", "{\"a\":1}", "task-12345678901234567890", "./bin/author", "--max-tokens=4096", "-XX:+UseG1GC",
	} {
		if err := launch.CheckArguments(launch.Command{Argv: []string{"serve", text}}, known); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	harness := launch.Command{Argv: []string{"sandbox-agent", "server", "--host", "127.0.0.1", "--port", "{port}", "--no-token", "--no-telemetry"}}
	if err := launch.CheckArguments(harness, known); err != nil {
		t.Errorf("a real harness: %v", err)
	}
}

// Proves station 17.L5: what is listed and no more, the dangerous and the secret
// never.
func TestEnvironment(t *testing.T) {
	environ := []string{"KEPT=1", "WIDE_A=2", "WIDE_B=3", "OTHER=4", "PATH=/evil", "HTTP_PROXY=http://evil", "LD_PRELOAD=/x", "WIDE_C", "TERM=x"}
	s := launch.Spec{Env: launch.Env{Set: map[string]string{"MODE": "test", "HOME": "/evil", "KEPT": "0"}, Allow: []string{"*", "KEPT", "WIDE_*", "ABSENT", "HTTP_PROXY", "PATH"}},
		DaemonAuth: launch.DaemonAuth{Mode: "env:SERVER_PASSWORD", Inject: "bearer"}}
	got, err := launch.Environment(s, environ, launch.Surroundings{
		Station: "stn_1", Attempt: 2, Lease: "lse_1", Port: 7000, Home: "/h", Temp: "/t", Proxy: map[string]string{"HTTPS_PROXY": "http://127.0.0.1:3128"}, Credential: redact.NewSecret("c"),
	})
	want := []string{
		"HOME=/h", "HTTPS_PROXY=http://127.0.0.1:3128", "KEPT=1", "LANG=C.UTF-8", "MODE=test", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PORT=7000",
		"SERVER_PASSWORD=c", "STATION_ATTEMPT=2", "STATION_ID=stn_1", "STATION_LEASE_ID=lse_1", "TMPDIR=/t", "WIDE_A=2", "WIDE_B=3", "WIDE_C=",
	}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("environment (-want +got): %v\n%s", err, d)
	}
	for name, code := range map[string]fault.Code{
		"LD_PRELOAD": fault.EnvRefused, "LD_LIBRARY_PATH": fault.EnvRefused, "DYLD_INSERT_LIBRARIES": fault.EnvRefused, "NODE_OPTIONS": fault.EnvRefused, "BASH_ENV": fault.EnvRefused, "ENV": fault.EnvRefused,
		"PYTHONSTARTUP": fault.EnvRefused, "GIT_ASKPASS": fault.EnvRefused, "SSH_AUTH_SOCK": fault.EnvRefused, "NOTIFY_SOCKET": fault.EnvRefused, "LISTEN_FDS": fault.EnvRefused, "DRAWBRIDGE_LIFELINE_FD": fault.EnvRefused,
		"OPENAI_API_KEY": fault.SecretEnvRefused, "GITHUB_TOKEN": fault.SecretEnvRefused, "MY_SECRET": fault.SecretEnvRefused, "DB_PASSWORD": fault.SecretEnvRefused, "PASS": fault.SecretEnvRefused,
		"AWS_CREDENTIALS": fault.SecretEnvRefused, "NPM_AUTH": fault.SecretEnvRefused, "authToken": fault.SecretEnvRefused, "SERVER_PASSWORD": fault.SecretEnvRefused, "KEY2": fault.SecretEnvRefused,
	} {
		prefix, _, _ := strings.Cut(name, "_")
		for where, env := range map[string]launch.Env{"set": {Set: map[string]string{name: "v"}}, "allow": {Allow: []string{name}}, "wide": {Allow: []string{prefix + "*"}}} {
			s := launch.Spec{Env: env, DaemonAuth: launch.DaemonAuth{Mode: "env:SERVER_PASSWORD", Inject: "bearer"}}
			if err := launch.CheckEnv(s, []string{name + "=hunter2"}); !fault.Is(err, code) || strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Errorf("%s in %s: %v, want %s", name, where, err, code)
			}
		}
	}
	for _, name := range []string{"MONKEY", "AUTHOR", "COMPASS", "TOKENIZER", "KEYBOARD", "PASSENGER", "LANG", "CI"} {
		if err := launch.CheckEnv(launch.Spec{Env: launch.Env{Set: map[string]string{name: "v"}}}, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, value := range slices.Sorted(maps.Values(secrets())) {
		if err := launch.CheckEnv(launch.Spec{Env: launch.Env{Set: map[string]string{"MODE": value}}}, nil); !fault.Is(err, fault.SecretEnvRefused) || strings.Contains(err.Error(), value) {
			t.Errorf("a secret as an ordinary variable: %v", err)
		}
	}
	for _, env := range []launch.Env{{Set: map[string]string{"A-B": ""}}, {Set: map[string]string{"A": "\x00"}}, {Allow: []string{"A*B"}}, {Allow: []string{"**"}}, {Allow: []string{""}}} {
		if err := launch.CheckEnv(launch.Spec{Env: env}, nil); !fault.Is(err, fault.SpecInvalid) {
			t.Errorf("%v: %v", env, err)
		}
	}
}

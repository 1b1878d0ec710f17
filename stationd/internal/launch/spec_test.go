package launch_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/launch"
)

// specs with one member added to the smallest one.
func spec(members string) string {
	if members != "" {
		members = "," + members
	}
	return `{"name":"demo"` + members + `}`
}

const argv = `"command":{"argv":["/bin/true"]}`

func TestParse(t *testing.T) {
	s, err := launch.Parse([]byte(spec(argv + `,"profile":"agent","workspace":{"source":"/src","include":"untracked"},"workdir":"app/","bridge":{"limits":{"streams":2}},` +
		`"daemonAuth":{"mode":"env:SERVER_PASSWORD","inject":"basic:opencode"},"ttl":"1h","idle":"0","run_as":{"uid":1000,"gid":1000},"readiness":{"http_path":"/v1/health"},"modelAccess":null`)))
	if err != nil {
		t.Fatal(err)
	}
	if s.Workdir != "app" || s.Bridge.PathPrefix != "/" || s.RestartPolicy != "never" || s.Loopback != "strict" || s.GraceMS != 10_000 || s.Readiness.TimeoutMS != 60_000 {
		t.Errorf("defaults: %+v", s)
	}
	for _, c := range []string{
		``, `"command":{}`, `"command":{"argv":["/a"],"shell":"b"}`, `"command":{"argv":["../a"]}`, `"command":{"argv":[""]}`, `"command":{"argv":["/a\u0000"]}`,
		argv + `,"unknown":1`, argv + `,"name":"again"`, argv + `,"workdir":"/abs"`, argv + `,"workdir":"../up"`, argv + `,"workdir":"a/../../b"`,
		argv + `,"workspace":{"source":"relative"}`, argv + `,"workspace":{"source":"/s","ref":"--upload-pack=x"}`, argv + `,"workspace":{"source":"/s","ref":"a..b"}`,
		argv + `,"workspace":{"source":"/s","ref":"v1","include":"untracked"}`, argv + `,"workspace":{"source":"/s","include":"all"}`,
		argv + `,"port":80`, argv + `,"port":3128`, argv + `,"port":70000`, argv + `,"readiness":{"http_path":"/a","tcp":true}`, argv + `,"readiness":{"http_path":"a"}`,
		argv + `,"readiness":{"timeoutMs":300001}`, argv + `,"bridge":{"pathPrefix":"/a/../b"}`, argv + `,"bridge":{"pathPrefix":"/a%2f"}`, argv + `,"bridge":{"limits":{"body":-1}}`,
		argv + `,"daemonAuth":{"mode":"env:LD_PRELOAD","inject":"bearer"}`, argv + `,"daemonAuth":{"mode":"env:","inject":"bearer"}`, argv + `,"daemonAuth":{"mode":"file"}`, argv + `,"daemonAuth":{"inject":"bearer"}`,
		argv + `,"loopback":"none"`, argv + `,"restartPolicy":"always"`, argv + `,"ttl":"25h"`, argv + `,"ttl":"-1s"`, argv + `,"ttl":"soon"`, argv + `,"idle":"25h"`,
		argv + `,"graceMs":999`, argv + `,"graceMs":60001`, argv + `,"run_as":{"uid":-1,"gid":0}`, argv + `,"artifacts":{"paths":["/etc"]}`, argv + `,"artifacts":{"maxBytes":67108865}`,
		argv + `,"harness":{"artifact":{"path":"/a","url":"https://x.test"}}`, argv + `,"harness":{"artifact":{"path":"a","sha256":"` + strings.Repeat("0", 64) + `"}}`,
		argv + `,"harness":{"artifact":{"path":"/a","sha256":"` + strings.Repeat("A", 64) + `"}}`, `"command":{"shell":"x"},"harness":{"artifact":{"path":"/a","sha256":"` + strings.Repeat("0", 64) + `"}}`,
		argv + `,"profile":"a b"`, argv + `,"provider":"../x"`,
	} {
		if _, err := launch.Parse([]byte(spec(c))); !fault.Is(err, fault.SpecInvalid) {
			t.Errorf("%s: %v", c, err)
		}
	}
	if _, err := launch.Parse([]byte(spec(argv + `,"workdir":"` + strings.Repeat("a", 64<<10) + `"`))); !fault.Is(err, fault.SpecInvalid) {
		t.Errorf("over 64 KiB: %v", err)
	}
}

// Proves station 17.L12: before anything else of the spec is looked at; no profile
// can hold it either.
func TestModelAccessIsRefused(t *testing.T) {
	for _, content := range []string{`{"provider":"x"}`, `true`, `false`, `"yes"`, `1`, `[]`, `[1]`} {
		for _, rest := range []string{argv, `"command":{"argv":["--token","x"]},"unknown":1`} {
			for _, name := range []string{"modelAccess", "model_access", "ModelAccess"} {
				if _, err := launch.Parse([]byte(spec(fmt.Sprintf(`%s,%q:%s`, rest, name, content)))); !fault.Is(err, fault.ModelAccess) {
					t.Errorf("%s %s: %v", name, content, err)
				}
			}
		}
		if _, err := launch.Parse([]byte(spec(argv + `,"harness":{"modelAccess":` + content + `}`))); !fault.Is(err, fault.ModelAccess) {
			t.Errorf("nested %s: %v", content, err)
		}
		if _, err := launch.ParseProfiles([]byte(`{"profiles":[{"name":"p","modelAccess":` + content + `}]}`)); !fault.Is(err, fault.ModelAccess) {
			t.Errorf("profile %s: %v", content, err)
		}
	}
	if _, err := launch.ParseProfiles([]byte(`{"profiles":[{"name":"p","modelAccess":null}]}`)); !fault.Is(err, fault.StationProfile) {
		t.Errorf("an empty one in a profile: %v", err)
	}
	s, err := launch.Parse([]byte(spec(argv + `,"profile":"agent","bridge":{},"modelAccess":{}`)))
	if err != nil {
		t.Fatal(err)
	}
	r, err := launch.BuiltIn().Resolve(s)
	if err != nil || r.EgressProfile != "none" {
		t.Errorf("agent: %v, egress %q", err, r.EgressProfile)
	}
	env, err := launch.Environment(r.Spec, []string{"OPENAI_API_KEY=sk-aaaaaaaaaaaaaaaaaaaaaaaa"}, launch.Surroundings{})
	if err != nil || strings.Contains(strings.Join(env, " "), "OPENAI") {
		t.Errorf("agent: %v, environment %v", err, env)
	}
}

func TestProfiles(t *testing.T) {
	ps, err := launch.ParseProfiles([]byte(`{"profiles":[{"name":"tight","bridge":true,"providers":["box"],"egressProfile":"web","egressProfiles":[],"ttl":"1h","maxTtl":"2h","idle":"10m","maxIdle":"20m","limits":{"streams":4}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	base := launch.Spec{Name: "n", Profile: "tight", Bridge: &launch.Bridge{}}
	r, err := ps.Resolve(base)
	if err != nil || r.Provider != "box" || r.EgressProfile != "web" || r.TTLTime != time.Hour || r.IdleTime != 10*time.Minute || r.Bridge.Limits.Streams != 4 {
		t.Errorf("defaults: %v, %+v", err, r)
	}
	for name, change := range map[string]func(*launch.Spec){
		"provider": func(s *launch.Spec) { s.Provider = "local" },
		"egress":   func(s *launch.Spec) { s.EgressProfile = "other" },
		"ttl":      func(s *launch.Spec) { s.TTL = "3h" },
		"idle":     func(s *launch.Spec) { s.Idle = "30m" },
		"idle off": func(s *launch.Spec) { s.Idle = "0" },
		"streams":  func(s *launch.Spec) { s.Bridge = &launch.Bridge{Limits: launch.BridgeLimits{Streams: 5}} },
		"bridge":   func(s *launch.Spec) { s.Profile = "station" },
	} {
		s := base
		change(&s)
		if _, err := ps.Resolve(s); !fault.Is(err, fault.ProfileRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	short, err := launch.BuiltIn().Resolve(launch.Spec{Name: "n", Profile: "station", TTL: "5m"})
	if err != nil || short.IdleTime != 5*time.Minute || short.Provider != "local" {
		t.Errorf("a short life: %v, %+v", err, short)
	}
	if _, err := ps.Resolve(launch.Spec{Name: "n", Profile: "gone"}); !fault.Is(err, fault.ProfileUnknown) {
		t.Error(err)
	}
	for _, text := range []string{
		`{"profiles":[{"name":"agent"}]}`, `{"profiles":[{"name":""}]}`, `{"profiles":[{"name":"a","ttl":"3h","maxTtl":"2h"}]}`, `{"profiles":[{"name":"a","unknown":1}]}`, `{"profiles":[{"name":"a","maxTtl":"25h"}]}`,
	} {
		if _, err := launch.ParseProfiles([]byte(text)); !fault.Is(err, fault.StationProfile) {
			t.Errorf("%s: %v", text, err)
		}
	}
	// Proves station 17.C4: of station profiles.
	path := filepath.Join(t.TempDir(), "profiles.json")
	if err := os.WriteFile(path, []byte(`{"profiles":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := launch.LoadProfiles(path); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		t.Fatal(err)
	}
	if _, err := launch.LoadProfiles(path); !fault.Is(err, fault.StationProfile) {
		t.Errorf("group-writable: %v", err)
	}
}

// FuzzParse reads specs: no panic, and what is accepted stays in the workspace and
// has no model access.
func FuzzParse(f *testing.F) {
	for _, members := range []string{argv, argv + `,"modelAccess":{"a":1}`, argv + `,"workdir":"a/.."`, `"command":{"shell":"x {port}"}`, argv + `,"ttl":"1h","env":{"set":{"A":"b"},"allow":["X*"]}`} {
		f.Add([]byte(spec(members)))
	}
	f.Add([]byte(`{"name":"a","command":{"argv":["../../bin/sh"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := launch.Parse(data)
		if err != nil {
			return
		}
		if m, ok := s.ModelAccess.(map[string]any); s.ModelAccess != nil && (!ok || len(m) > 0) {
			t.Fatalf("model access: %v", s.ModelAccess)
		}
		place := launch.Place{Workspace: "/w", Workdir: s.Workdir, Port: 1}
		if d := place.Dir(); d != "/w" && !strings.HasPrefix(d, "/w/") {
			t.Fatalf("works in %s", d)
		}
		if words := s.Command.Fill(place, s.Harness.Artifact != nil); len(words) == 0 {
			t.Fatal("nothing to execute")
		}
		_ = launch.CheckArguments(s.Command, nil)
		_, _ = launch.Environment(s, []string{"X_Y=1"}, launch.Surroundings{})
	})
}

package worker_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
)

const hex64 = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

func TestParseOptions(t *testing.T) {
	dir := t.TempDir()
	prompt := filepath.Join(dir, "prompt.txt")
	if err := os.WriteFile(prompt, []byte("do it\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := worker.ParseOptions([]byte(`{
		"image":"sha256:x","workspace":"/w","sourceRoot":"/s","contextFile":"/c/r.json","artifactRoot":"/a",
		"providerProxy":{"baseUrl":"http://host.docker.internal:1","capability":"` + hex64 + `","model":"m"},
		"model":"m","timeoutMs":1500,"reasoningEffort":"low","network":"bridge","readOnlyWorkspace":true,
		"invocationId":"i","runId":"r","ownerId":"o","user":"1:2",
		"workspaceSetup":{"mounts":[{"source":"/o","destination":"/workspace/o"}],"bootstrap":"true","prompt":{"file":"` + prompt + `"},
			"metadata":{"a":[1]},"environment":{"A":"b"},"prepare":{"argv":["/bin/true"],"timeout_s":2.5}},
		"storageBudget":{"roots":["/w"],"max_bytes":1},
		"forbiddenMountRoots":[],
		"limits":{"memory_bytes":1,"cpus":0.5,"pids":2,"tmp_bytes":3}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got.Setup.Prepare == nil {
		t.Error("the preparation is missing")
	}
	got.Setup.Prepare = nil
	small := storage.DefaultBudget()
	small.MaxBytes = 1
	want := worker.Options{
		Image: "sha256:x", Workspace: "/w", SourceRoot: "/s", ContextFile: "/c/r.json", ArtifactRoot: "/a",
		ProviderProxy: &worker.ProviderProxy{BaseURL: "http://host.docker.internal:1", Capability: redact.NewSecret(hex64), Model: "m"},
		Model:         "m", Timeout: 1500 * time.Millisecond, ReasoningEffort: "low", Network: "bridge", ReadOnlyWorkspace: true,
		InvocationID: "i", RunID: "r", OwnerID: "o", User: "1:2",
		Setup: &worker.Setup{Mounts: []worker.Overlay{{Source: "/o", Destination: "/workspace/o"}}, Bootstrap: "true", Prompt: "do it\n",
			Metadata: json.RawMessage(`{"a":[1]}`), Environment: map[string]string{"A": "b"}},
		Storage:        &worker.StorageBudget{Roots: []string{"/w"}, Budget: small},
		ForbiddenRoots: []worker.ForbiddenRoot{},
		Limits:         worker.Limits{MemoryBytes: 1, CPUs: 0.5, Pids: 2, TmpBytes: 3},
	}
	reveal := cmp.Comparer(func(a, b redact.Secret) bool { return a.Reveal() == b.Reveal() })
	if diff := cmp.Diff(want, got, reveal, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	if got.ForbiddenRoots == nil {
		t.Error("an empty inventory became none")
	}
	if none, err := worker.ParseOptions([]byte(`{}`)); err != nil || none.ForbiddenRoots != nil || none.Storage != nil || none.Setup != nil {
		t.Errorf("empty options: %+v, %v", none, err)
	}
}

// Proves worker 17.2
func TestParseOptions_Refused(t *testing.T) {
	for _, tc := range []struct{ name, in, option string }{
		{"no JSON", `{`, "options"},
		{"no object", `[]`, "options"},
		{"unknown member", `{"imaeg":"x"}`, "options"},
		{"other case", `{"Image":"x"}`, "options"},
		{"member twice", `{"image":"x","image":"y"}`, "image"},
		{"timeout zero", `{"timeoutMs":0}`, "timeoutMs"},
		{"timeout negative", `{"timeoutMs":-1}`, "timeoutMs"},
		{"timeout a fraction", `{"timeoutMs":1.5}`, "timeoutMs"},
		{"timeout a string", `{"timeoutMs":"1"}`, "timeoutMs"},
		{"timeout too long", `{"timeoutMs":86400001}`, "timeoutMs"},
		{"unknown member of the proxy", `{"providerProxy":{"baseURL":"x"}}`, "providerProxy.baseURL"},
		{"prompt a number", `{"workspaceSetup":{"prompt":7}}`, "workspaceSetup.prompt"},
		{"prompt empty", `{"workspaceSetup":{"prompt":""}}`, "workspaceSetup.prompt"},
		{"prompt of a relative file", `{"workspaceSetup":{"prompt":{"file":"a"}}}`, "workspaceSetup.prompt"},
		{"prompt of no file", `{"workspaceSetup":{"prompt":{"file":"/does/not/exist"}}}`, "workspaceSetup.prompt"},
		{"prompt of a device", `{"workspaceSetup":{"prompt":{"file":"/dev/zero"}}}`, "workspaceSetup.prompt"},
		{"prepare without a program", `{"workspaceSetup":{"prepare":{"argv":[]}}}`, "workspaceSetup.prepare"},
		{"prepare by a relative path", `{"workspaceSetup":{"prepare":{"argv":["sh"]}}}`, "workspaceSetup.prepare"},
		{"prepare without time", `{"workspaceSetup":{"prepare":{"argv":["/bin/true"],"timeout_s":0}}}`, "workspaceSetup.prepare"},
		{"bytes a fraction", `{"storageBudget":{"max_bytes":1.5}}`, "storageBudget.max_bytes"},
		{"unknown bound", `{"limits":{"disk":1}}`, "limits.disk"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := worker.ParseOptions([]byte(tc.in))
			wantCode(t, err, fault.OptionInvalid)
			if got := worker.Reason(err); got != "option_invalid:"+tc.option {
				t.Errorf("got %s (%v), want %s", got, err, tc.option)
			}
		})
	}
}

// The refusal of an options file says where, and which option may have been meant.
func TestParseOptions_Says(t *testing.T) {
	for _, tc := range []struct{ name, in, says, hint string }{
		{"syntax", "{\n  \"model\": }", "line 2, column ", ""},
		{"type", "{\n\n\"timeoutMs\":\"1\"}", "line 3, column ", ""},
		{"two letters", `{"imaeg":"x"}`, "line 1, column ", "is image meant?"},
		{"other case", `{"runID":"x"}`, "unknown member", "is runId meant?"},
		{"underscore", `{"context_file":"x"}`, "unknown member", "is contextFile meant?"},
		{"nothing near", `{"colour":"x"}`, "unknown member", ""},
	} {
		_, err := worker.ParseOptions([]byte(tc.in))
		f, ok := fault.As(err)
		if !ok || !strings.Contains(f.Message, tc.says) || f.Hint != tc.hint {
			t.Errorf("%s: got %v", tc.name, err)
		}
	}
}

// A refusal names the path that it is about, and what is in its way.
func TestRun_RefusedSays(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(r *rig)
		says   func(r *rig) string
	}{
		{"missing", func(r *rig) { r.opts.Workspace = r.path("none") }, func(r *rig) string { return "workspace: \"" + r.path("none") + "\": no such file" }},
		{"the Store", func(r *rig) { r.opts.SourceRoot = r.deps.Store.Dir() }, func(r *rig) string { return "the Store \"" + r.deps.Store.Dir() + "\"" }},
		{"open to others", func(r *rig) { _ = os.Chmod(r.opts.ArtifactRoot, 0o755) }, func(r *rig) string { return "the mode of \"" + r.path("artifacts") + "\" is 0755" }},
		{"a context that is none", func(r *rig) { r.opts.ContextFile = r.path("context") }, func(r *rig) string { return "\"" + r.path("context") + "\": it is not a regular file" }},
	} {
		r := newRig(t)
		tc.change(r)
		_, err := worker.Run(t.Context(), r.opts, r.deps)
		wantCode(t, err, fault.OptionInvalid)
		if err != nil && !strings.Contains(err.Error(), tc.says(r)) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// Whatever can be refused by looking at the options is refused before the engine is
// asked for anything.
//
// Proves worker 17.1, 17.2, 17.4, 17.5 and 17.6
func TestRun_Refused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		want   string
		change func(*rig)
	}{
		{"no image", "option_invalid:image", func(r *rig) { r.opts.Image = "" }},
		{"a tag", "option_invalid:image", func(r *rig) { r.opts.Image = "worker:latest" }},
		{"a short id", "option_invalid:image", func(r *rig) { r.opts.Image = "sha256:abcdef012345" }},
		{"a repository digest", "option_invalid:image", func(r *rig) { r.opts.Image = "worker@" + r.opts.Image }},
		{"an id in upper case", "option_invalid:image", func(r *rig) { r.opts.Image = strings.ToUpper(r.opts.Image) }},
		{"an unknown id", "image_unknown", func(r *rig) { r.opts.Image = "sha256:" + strings.Repeat("0", 64) }},

		{"no model", "option_invalid:model", func(r *rig) { r.opts.Model = "" }},
		{"a model with a quote", "option_invalid:model", func(r *rig) { r.opts.Model = `a"b`; r.opts.ProviderProxy.Model = `a"b` }},
		{"a model with a line end", "option_invalid:model", func(r *rig) { r.opts.Model = "a\nb"; r.opts.ProviderProxy.Model = "a\nb" }},
		{"a long model", "option_invalid:model", func(r *rig) { r.opts.Model = strings.Repeat("m", 257) }},
		{"no timeout", "option_invalid:timeoutMs", func(r *rig) { r.opts.Timeout = 0 }},
		{"a negative timeout", "option_invalid:timeoutMs", func(r *rig) { r.opts.Timeout = -time.Second }},
		{"a timeout of more than a day", "option_invalid:timeoutMs", func(r *rig) { r.opts.Timeout = 24*time.Hour + 1 }},
		{"effort max", "option_invalid:reasoningEffort", func(r *rig) { r.opts.ReasoningEffort = "max" }},
		{"network host", "option_invalid:network", func(r *rig) { r.opts.Network = "host" }},
		{"no run", "option_invalid:runId", func(r *rig) { r.opts.RunID = "" }},
		{"a run with a slash", "option_invalid:runId", func(r *rig) { r.opts.RunID = "a/b" }},
		{"an invocation with a dot", "option_invalid:invocationId", func(r *rig) { r.opts.InvocationID = "a.b" }},
		{"an invocation with a path", "option_invalid:invocationId", func(r *rig) { r.opts.InvocationID = "../x" }},
		{"an owner that is no UUID", "option_invalid:ownerId", func(r *rig) { r.opts.OwnerID = "me" }},
		{"an owner in upper case", "option_invalid:ownerId", func(r *rig) { r.opts.OwnerID = "AAAAAAAA-0000-0000-0000-000000000000" }},
		{"a user by name", "option_invalid:user", func(r *rig) { r.opts.User = "root" }},

		{"no proxy", "option_invalid:providerProxy", func(r *rig) { r.opts.ProviderProxy = nil }},
		{"another host", "option_invalid:providerProxy.baseUrl", baseURL("http://example.org:80")},
		{"https", "option_invalid:providerProxy.baseUrl", baseURL("https://host.docker.internal:80")},
		{"path /x", "option_invalid:providerProxy.baseUrl", baseURL("http://host.docker.internal:80/x")},
		{"no port", "option_invalid:providerProxy.baseUrl", baseURL("http://host.docker.internal")},
		{"port 0", "option_invalid:providerProxy.baseUrl", baseURL("http://host.docker.internal:0")},
		{"port 65536", "option_invalid:providerProxy.baseUrl", baseURL("http://host.docker.internal:65536")},
		{"a query", "option_invalid:providerProxy.baseUrl", baseURL("http://host.docker.internal:80?x")},
		{"63 hex digits", "option_invalid:providerProxy.capability", capability(hex64[1:])},
		{"upper case", "option_invalid:providerProxy.capability", capability(strings.ToUpper(hex64))},
		{"no capability", "option_invalid:providerProxy.capability", capability("")},
		{"another model", "option_invalid:providerProxy.model", func(r *rig) { r.opts.ProviderProxy.Model = "other" }},

		{"no workspace", "option_invalid:workspace", func(r *rig) { r.opts.Workspace = "" }},
		{"a relative workspace", "option_invalid:workspace", func(r *rig) { r.opts.Workspace = "workspace" }},
		{"a workspace that does not exist", "option_invalid:workspace", func(r *rig) { r.opts.Workspace += "-not" }},
		{"a workspace that is a file", "option_invalid:workspace", func(r *rig) { r.opts.Workspace = r.path("workspace/main.txt") }},
		{"the root", "option_invalid:workspace", func(r *rig) { r.opts.Workspace = "/" }},
		{"a directory of the system", "option_invalid:workspace", func(r *rig) { r.opts.Workspace = "/usr" }},
		{"below a directory of the system", "option_invalid:workspace", func(r *rig) { r.opts.Workspace = "/usr/bin" }},
		{"the Store", "option_invalid:workspace", func(r *rig) { r.opts.Workspace = r.deps.Store.Dir() }},
		{"above the Store", "option_invalid:sourceRoot", func(r *rig) { r.opts.SourceRoot = filepath.Dir(r.deps.Store.Dir()) }},
		{"inside the Store", "option_invalid:sourceRoot", func(r *rig) {
			r.opts.SourceRoot = filepath.Join(r.deps.Store.Dir(), "log")
			mkdir(r, r.opts.SourceRoot)
		}},
		{"the runtime directory", "option_invalid:sourceRoot", func(r *rig) { r.opts.SourceRoot = r.path("run"); mkdir(r, r.opts.SourceRoot) }},
		{"the engine's socket", "option_invalid:sourceRoot", func(r *rig) {
			r.opts.SourceRoot = filepath.Dir(strings.TrimPrefix(r.deps.Engine.Host(), "unix://"))
		}},
		{"a link to a directory of the system", "option_invalid:sourceRoot", func(r *rig) { r.opts.SourceRoot = link(r, "/etc") }},
		{"no source", "option_invalid:sourceRoot", func(r *rig) { r.opts.SourceRoot = "" }},
		{"no artifacts", "option_invalid:artifactRoot", func(r *rig) { r.opts.ArtifactRoot = "" }},
		{"artifacts that others read", "option_invalid:artifactRoot", func(r *rig) { chmod(r, r.opts.ArtifactRoot, 0o750) }},
		{"artifacts in the workspace", "option_invalid:artifactRoot", func(r *rig) {
			r.opts.ArtifactRoot = r.path("workspace/artifacts")
			mkdir(r, r.opts.ArtifactRoot)
		}},
		{"the workspace in the artifacts", "option_invalid:artifactRoot", func(r *rig) {
			r.opts.Workspace = r.path("artifacts/workspace")
			mkdir(r, r.opts.Workspace)
		}},
		{"no context", "option_invalid:contextFile", func(r *rig) { r.opts.ContextFile = "" }},
		{"a context that is a directory", "option_invalid:contextFile", func(r *rig) { r.opts.ContextFile = r.path("context") }},
		{"a context that is a list", "option_invalid:contextFile", func(r *rig) { r.write("context/request.json", "[]") }},
		{"a context that is no JSON", "option_invalid:contextFile", func(r *rig) { r.write("context/request.json", "{") }},
		{"a context of more than 16 MiB", "option_invalid:contextFile", func(r *rig) {
			r.write("context/request.json", `{"a":"`+strings.Repeat("x", 16<<20)+`"}`)
		}},
		{"a context with the capability", "option_invalid:contextFile", func(r *rig) {
			r.write("context/request.json", `{"a":"`+r.capability()+`"}`)
		}},
		{"a context in a directory of the system", "option_invalid:contextFile", func(r *rig) { r.opts.ContextFile = "/etc/hostname" }},

		{"more memory", "option_invalid:limits.memory_bytes", func(r *rig) { r.opts.Limits.MemoryBytes = 2<<30 + 1 }},
		{"more processors", "option_invalid:limits.cpus", func(r *rig) { r.opts.Limits.CPUs = 2.5 }},
		{"more processes", "option_invalid:limits.pids", func(r *rig) { r.opts.Limits.Pids = 257 }},
		{"a larger /tmp", "option_invalid:limits.tmp_bytes", func(r *rig) { r.opts.Limits.TmpBytes = 1<<30 + 1 }},
		{"a bound below zero", "option_invalid:limits.pids", func(r *rig) { r.opts.Limits.Pids = -1 }},

		{"a budget below zero", "option_invalid:storageBudget", func(r *rig) {
			r.opts.Storage = &worker.StorageBudget{Budget: storage.Budget{MaxBytes: -1}}
		}},
		{"a relative root", "option_invalid:storageBudget.roots", func(r *rig) {
			r.opts.Storage = &worker.StorageBudget{Roots: []string{"a"}, Budget: budget()}
		}},
		{"an unknown kind", "option_invalid:forbiddenMountRoots", forbid("oracle", "/etc")},
		{"a relative forbidden root", "option_invalid:forbiddenMountRoots", forbid("controller", "etc")},
		{"a forbidden root that does not exist", "option_invalid:forbiddenMountRoots", forbid("controller", "/does/not/exist")},

		{"a bootstrap of more than 64 KiB", "option_invalid:workspaceSetup.bootstrap", setup(func(s *worker.Setup) { s.Bootstrap = strings.Repeat(":\n", 33<<10) })},
		{"a bootstrap with NUL", "option_invalid:workspaceSetup.bootstrap", setup(func(s *worker.Setup) { s.Bootstrap = ":\x00" })},
		{"metadata that is no JSON", "option_invalid:workspaceSetup.metadata", setup(func(s *worker.Setup) { s.Metadata = []byte("{") })},
		{"metadata of more than 1 MiB", "option_invalid:workspaceSetup.metadata", setup(func(s *worker.Setup) {
			s.Metadata = []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
		})},
		{"a prompt with the capability", "option_invalid:workspaceSetup.prompt", func(r *rig) {
			r.opts.Setup = &worker.Setup{Prompt: "use " + r.capability()}
		}},
		{"an environment with the capability", "environment_unsafe", func(r *rig) {
			r.opts.Setup = &worker.Setup{Environment: map[string]string{"A": r.capability()}}
		}},

		{"an overlay above /workspace", "mount_unsafe", overlay("/workspace/../x")},
		{"an overlay with ..", "mount_unsafe", overlay("/workspace/a/../b")},
		{"an overlay on /workspace", "mount_unsafe", overlay("/workspace")},
		{"an overlay elsewhere", "mount_unsafe", overlay("/other/x")},
		{"a relative overlay", "mount_unsafe", overlay("workspace/x")},
		{"an overlay with a slash at its end", "mount_unsafe", overlay("/workspace/x/")},
		{"an overlay with two slashes", "mount_unsafe", overlay("/workspace//x")},
		{"an overlay with a dot", "mount_unsafe", overlay("/workspace/./x")},
		{"an overlay with a space", "mount_unsafe", overlay("/workspace/a b")},
		{"an overlay twice", "mount_unsafe", overlay("/workspace/x", "/workspace/x")},
		{"an overlay in another", "mount_unsafe", overlay("/workspace/x", "/workspace/x/y")},
		{"an overlay around another", "mount_unsafe", overlay("/workspace/x/y", "/workspace/x")},
		{"an overlay of nothing", "mount_unsafe", func(r *rig) { addOverlay(r, r.path("not"), "/workspace/x") }},
		{"an overlay of the Store", "mount_unsafe", func(r *rig) { addOverlay(r, r.deps.Store.Dir(), "/workspace/x") }},
		{"an overlay of a file of the Store", "mount_unsafe", func(r *rig) { addOverlay(r, filepath.Join(r.deps.Store.Dir(), "store.db"), "/workspace/x") }},
		{"an overlay of /etc", "mount_unsafe", func(r *rig) { addOverlay(r, "/etc", "/workspace/x") }},
		{"an overlay of a device", "mount_unsafe", func(r *rig) { addOverlay(r, "/dev/null", "/workspace/x") }},
		{"an overlay without its place in a read-only workspace", "mount_unsafe", func(r *rig) {
			overlay("/workspace/x")(r)
			r.opts.ReadOnlyWorkspace = true
		}},

		{"a small letter", "environment_unsafe", environment("path")},
		{"no name", "environment_unsafe", environment("")},
		{"a name with =", "environment_unsafe", environment("A=B")},
		{"CODEX_HOME", "environment_unsafe", environment("CODEX_HOME")},
		{"the capability's own name", "environment_unsafe", environment("KONTOUR_PROVIDER_CAPABILITY")},
		{"HOME", "environment_unsafe", environment("HOME")},
		{"PATH", "environment_unsafe", environment("PATH")},
		{"LD_PRELOAD", "environment_unsafe", environment("LD_PRELOAD")},
		{"LD_AUDIT", "environment_unsafe", environment("LD_AUDIT")},
		{"DYLD_X", "environment_unsafe", environment("DYLD_X")},
		{"NODE_OPTIONS", "environment_unsafe", environment("NODE_OPTIONS")},
		{"BASH_ENV", "environment_unsafe", environment("BASH_ENV")},
		{"ENV", "environment_unsafe", environment("ENV")},
		{"IFS", "environment_unsafe", environment("IFS")},
		{"SHELLOPTS", "environment_unsafe", environment("SHELLOPTS")},
		{"GIT_EXEC_PATH", "environment_unsafe", environment("GIT_EXEC_PATH")},
		{"GIT_SSH_COMMAND", "environment_unsafe", environment("GIT_SSH_COMMAND")},
		{"PYTHONSTARTUP", "environment_unsafe", environment("PYTHONSTARTUP")},
		{"PERL5OPT", "environment_unsafe", environment("PERL5OPT")},
		{"RUBYOPT", "environment_unsafe", environment("RUBYOPT")},
		{"HTTP_PROXY", "environment_unsafe", environment("HTTP_PROXY")},
		{"HTTPS_PROXY", "environment_unsafe", environment("HTTPS_PROXY")},
		{"ALL_PROXY", "environment_unsafe", environment("ALL_PROXY")},
		{"OPENAI_API_KEY", "environment_unsafe", environment("OPENAI_API_KEY")},
		{"ANTHROPIC_X", "environment_unsafe", environment("ANTHROPIC_X")},
		{"DRAWBRIDGE_X", "environment_unsafe", environment("DRAWBRIDGE_X")},
		{"a value with NUL", "environment_unsafe", setup(func(s *worker.Setup) { s.Environment = map[string]string{"A": "\x00"} })},
		{"65 variables", "environment_unsafe", setup(func(s *worker.Setup) {
			s.Environment = map[string]string{}
			for i := range 65 {
				s.Environment["A"+strconv.Itoa(i)] = ""
			}
		})},
		{"64 KiB of environment", "environment_unsafe", setup(func(s *worker.Setup) {
			s.Environment = map[string]string{"A": strings.Repeat("x", 64<<10)}
		})},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, f := newFake(t)
			tc.change(r)
			if r.opts.ProviderProxy != nil {
				r.refused(tc.want)
			} else if _, err := worker.Run(t.Context(), r.opts, r.deps); worker.Reason(err) != tc.want {
				t.Errorf("got %v, want %s", err, tc.want)
			}
			f.nothingMade()
		})
	}
}

func baseURL(url string) func(*rig) { return func(r *rig) { r.opts.ProviderProxy.BaseURL = url } }

func capability(text string) func(*rig) {
	return func(r *rig) {
		r.opts.ProviderProxy.Capability = redact.NewSecret(text)
	}
}

func forbid(kind, path string) func(*rig) {
	return func(r *rig) {
		r.opts.ForbiddenRoots = append(r.opts.ForbiddenRoots, worker.ForbiddenRoot{Kind: kind, Path: path})
	}
}

func setup(change func(*worker.Setup)) func(*rig) {
	return func(r *rig) {
		r.opts.Setup = &worker.Setup{}
		change(r.opts.Setup)
	}
}

func overlay(destinations ...string) func(*rig) {
	return func(r *rig) {
		for _, d := range destinations {
			addOverlay(r, r.path("source"), d)
		}
	}
}

func addOverlay(r *rig, source, destination string) {
	if r.opts.Setup == nil {
		r.opts.Setup = &worker.Setup{}
	}
	r.opts.Setup.Mounts = append(r.opts.Setup.Mounts, worker.Overlay{Source: source, Destination: destination})
}

func environment(name string) func(*rig) {
	return setup(func(s *worker.Setup) { s.Environment = map[string]string{name: "x"} })
}

func mkdir(r *rig, path string) {
	r.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		r.Fatal(err)
	}
}

func chmod(r *rig, path string, mode os.FileMode) {
	r.Helper()
	if err := os.Chmod(path, mode); err != nil {
		r.Fatal(err)
	}
}

func link(r *rig, to string) string {
	r.Helper()
	path := r.path("link-to-" + filepath.Base(to))
	if err := os.Symlink(to, path); err != nil {
		r.Fatal(err)
	}
	return path
}

func FuzzParseOptions(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"image":"sha256:x","timeoutMs":1}`, `{"providerProxy":{"baseUrl":"x","capability":"y","model":"z"}}`,
		`{"workspaceSetup":{"prompt":"x","bootstrap":{"file":"/dev/null"},"mounts":[{"source":"/a","destination":"/workspace/b"}]}}`,
		`{"storageBudget":{"max_bytes":1},"limits":{"cpus":1e300},"forbiddenMountRoots":null}`, `{"timeoutMs":9e99}`, `[`,
		`{"workspaceSetup":{"prepare":{"argv":["/bin/true","a"],"timeout_s":1e400}}}`, `{"workspaceSetup":{"environment":{"A":"b"},"metadata":null}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		o, err := worker.ParseOptions(in)
		if err != nil {
			wantCode(t, err, fault.OptionInvalid)
			return
		}
		if o.Timeout < 0 || o.Timeout > 24*time.Hour {
			t.Errorf("timeout %v", o.Timeout)
		}
	})
}

package worker_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
)

// hostConfig changes the HostConfig of an inspection.
func hostConfig(name string, value any) func(*fakeContainer, map[string]any) {
	return func(_ *fakeContainer, doc map[string]any) { doc["HostConfig"].(map[string]any)[name] = value }
}

func config(name string, value any) func(*fakeContainer, map[string]any) {
	return func(_ *fakeContainer, doc map[string]any) { doc["Config"].(map[string]any)[name] = value }
}

// changeMount changes the mount at a destination.
func changeMount(destination, name string, value any) func(*fakeContainer, map[string]any) {
	return func(_ *fakeContainer, doc map[string]any) {
		for _, m := range list(doc["Mounts"]) {
			if m := m.(map[string]any); m["Destination"] == destination {
				m[name] = value
			}
		}
	}
}

// An engine that made something else than it was asked for has its container
// removed, unstarted.
//
// Proves worker 17.10
func TestRun_ConfigDiffers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		lie   func(*fakeContainer, map[string]any)
		field string
	}{
		{"another image", func(_ *fakeContainer, doc map[string]any) { doc["Image"] = "sha256:" + strings.Repeat("0", 64) }, "Image"},
		{"an extra mount", func(_ *fakeContainer, doc map[string]any) {
			doc["Mounts"] = append(list(doc["Mounts"]), map[string]any{"Type": "volume", "Source": "/v", "Destination": "/data", "RW": true})
		}, "Mounts"},
		{"a missing mount", func(_ *fakeContainer, doc map[string]any) { doc["Mounts"] = list(doc["Mounts"])[1:] }, "Mounts"},
		{"an old-style bind", hostConfig("Binds", []string{"/:/host"}), "Mounts"},
		{"a writable treatment", changeMount("/treatment", "RW", true), "Mounts./treatment"},
		{"a read-only workspace", changeMount("/workspace", "RW", false), "Mounts./workspace"},
		{"another source", changeMount("/workspace", "Source", "/elsewhere"), "Mounts./workspace"},
		{"a volume", changeMount("/workspace", "Type", "volume"), "Mounts./workspace"},
		{"a mount that spreads", changeMount("/context/request.json", "Propagation", "rshared"), "Mounts./context/request.json"},
		{"privileged", hostConfig("Privileged", true), "Privileged"},
		{"a writable root", hostConfig("ReadonlyRootfs", false), "ReadonlyRootfs"},
		{"capabilities kept", hostConfig("CapDrop", []string{}), "CapDrop"},
		{"a capability added", hostConfig("CapAdd", []string{"SYS_ADMIN"}), "CapAdd"},
		{"no no-new-privileges", hostConfig("SecurityOpt", []string{}), "SecurityOpt"},
		{"seccomp off", hostConfig("SecurityOpt", []string{"no-new-privileges", "seccomp=unconfined"}), "SecurityOpt"},
		{"AppArmor off", func(_ *fakeContainer, doc map[string]any) { doc["AppArmorProfile"] = "unconfined" }, "AppArmorProfile"},
		{"no bound of processes", hostConfig("PidsLimit", nil), "PidsLimit"},
		{"more memory", hostConfig("Memory", 4<<30), "Memory"},
		{"swap", hostConfig("MemorySwap", -1), "MemorySwap"},
		{"more processors", hostConfig("NanoCpus", 4e9), "NanoCpus"},
		{"no end for want of memory", hostConfig("OomKillDisable", true), "OomKillDisable"},
		{"no ulimits", hostConfig("Ulimits", nil), "Ulimits"},
		{"no tmpfs", hostConfig("Tmpfs", nil), "Tmpfs"},
		{"the host's network", hostConfig("NetworkMode", "host"), "NetworkMode"},
		{"no host mapping", hostConfig("ExtraHosts", nil), "ExtraHosts"},
		{"another host mapping", hostConfig("ExtraHosts", []string{"host.docker.internal:10.0.0.1"}), "ExtraHosts"},
		{"a name server", hostConfig("Dns", []string{"8.8.8.8"}), "Dns"},
		{"an open port", hostConfig("PortBindings", map[string]any{"80/tcp": []any{map[string]any{"HostPort": "80"}}}), "Ports"},
		{"root", config("User", ""), "User"},
		{"another group", hostConfig("GroupAdd", []string{"docker"}), "GroupAdd"},
		{"the host's users", hostConfig("UsernsMode", "host"), "UsernsMode"},
		{"the host's processes", hostConfig("PidMode", "host"), "PidMode"},
		{"the host's IPC", hostConfig("IpcMode", "host"), "IpcMode"},
		{"the host's name", hostConfig("UTSMode", "host"), "UTSMode"},
		{"a device", hostConfig("Devices", []any{map[string]any{"PathOnHost": "/dev/sda"}}), "Devices"},
		{"another runtime", hostConfig("Runtime", "other"), "Runtime"},
		{"the kernel's memory to be read", hostConfig("MaskedPaths", []string{}), "MaskedPaths"},
		{"keys to be read", hostConfig("MaskedPaths", []string{"/proc/kcore", "/proc/timer_list", "/sys/firmware"}), "MaskedPaths"},
		{"settings of the kernel to be written", hostConfig("ReadonlyPaths", []string{"/proc/bus"}), "ReadonlyPaths"},
		{"a setting of the kernel", hostConfig("Sysctls", map[string]string{"net.ipv4.ip_forward": "1"}), "Sysctls"},
		{"another command", config("Cmd", []string{"sh"}), "Entrypoint"},
		{"another directory", config("WorkingDir", "/"), "WorkingDir"},
		{"another environment", config("Env", []string{"PATH=/bin"}), "Env"},
		{"no labels", config("Labels", map[string]string{}), "Labels"},
		{"a terminal", config("Tty", true), "OpenStdin"},
		{"a log", hostConfig("LogConfig", map[string]any{"Type": "json-file"}), "LogConfig"},
		{"a restart", hostConfig("RestartPolicy", map[string]any{"Name": "always"}), "RestartPolicy"},
		{"a removal of its own", hostConfig("AutoRemove", true), "AutoRemove"},
		{"started already", func(_ *fakeContainer, doc map[string]any) {
			doc["State"] = map[string]any{"Status": "running", "Running": true, "StartedAt": "2026-01-02T03:04:05Z"}
		}, "State"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, f := newFake(t)
			lied := false
			f.inspect = func(c *fakeContainer, doc map[string]any) {
				if !lied { // the last look, at the removed container, is another matter
					tc.lie(c, doc)
				}
				lied = true
			}
			r.refused("worker_config_mismatch:" + tc.field)
			f.neverStarted()
			r.gone()
			r.noFiles()
		})
	}
}

// noFiles wants an artifact root without files.
func (r *rig) noFiles() {
	r.Helper()
	entries, err := os.ReadDir(r.opts.ArtifactRoot)
	if err != nil {
		r.Fatal(err)
	}
	for _, e := range entries {
		r.Errorf("a refusal leaves %s", e.Name())
	}
}

// Proves worker 17.30
func TestRun_Identity(t *testing.T) {
	for _, tc := range []struct {
		name   string
		info   func(map[string]any)
		change func(*rig)
		want   string
	}{
		{"rootless", func(i map[string]any) {
			i["SecurityOptions"] = []string{"name=seccomp,profile=default", "name=rootless"}
		}, nil,
			"docker_identity_unqualified"},
		{"userns", func(i map[string]any) { i["SecurityOptions"] = []string{"name=userns"} }, nil, "docker_identity_unqualified"},
		{"no bounds of seccomp", func(i map[string]any) {
			i["SecurityOptions"] = []string{"name=apparmor", "name=seccomp,profile=unconfined"}
		}, nil,
			"worker_config_mismatch:Seccomp"},
		{"Windows", func(i map[string]any) { i["OSType"] = "windows" }, nil, "docker_identity_unqualified"},
		{"workspace of another", nil, func(r *rig) { r.opts.User = "12345:12345" }, "workspace_owner"},
		{"a user on Docker Desktop", func(i map[string]any) { i["OperatingSystem"] = "Docker Desktop" },
			func(r *rig) { r.opts.User = "12345:12345" }, "option_invalid:user"},
		{"isolated on Docker Desktop", func(i map[string]any) { i["OperatingSystem"] = "Docker Desktop" },
			func(r *rig) { r.opts.Network = worker.NetworkIsolated }, "network_unqualified"},
		{"socket on Docker Desktop", func(i map[string]any) { i["OperatingSystem"] = "Docker Desktop" },
			func(r *rig) { r.opts.Network = worker.NetworkSocket }, "network_unqualified"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, f := newFake(t)
			f.info = tc.info
			if tc.change != nil {
				tc.change(r)
			}
			r.refused(tc.want)
			f.nothingMade()
		})
	}
}

// On Docker Desktop the container has no user of ours and the network bridge, and
// the engine need not repeat the mapping of the host's name.
func TestRun_DockerDesktop(t *testing.T) {
	r, f := newFake(t)
	r.opts.Network = ""
	f.info = func(i map[string]any) { i["OperatingSystem"] = "Docker Desktop" }
	f.inspect = hostConfig("ExtraHosts", nil)
	receipt := r.run()
	got := receipt.Observed
	if !receipt.Completed || got.NetworkMode != "bridge" || got.HostIdentity.ContainerUser != "unverified" || len(got.ExtraHosts) != 0 {
		t.Errorf("got %+v", receipt)
	}
}

// Proves worker 17.11, 17.12
func TestRun_ForbiddenRoots(t *testing.T) {
	for _, tc := range []struct {
		name string
		path string // of the root, below the rig
		hit  bool
	}{
		{"the workspace itself", "workspace", true},
		{"above the workspace", ".", true},
		{"below the workspace", "workspace/sub", true},
		{"the source root", "source", true},
		{"below the source root", "source/treatment.md", true},
		{"the context file", "context/request.json", true},
		{"above the context file", "context", true},
		{"the source of an overlay", "overlay", true},
		{"below the source of an overlay", "overlay/deep", true},
		{"a name that begins alike", "work", false},
		{"a name that goes on", "workspace-2", false},
		{"beside", "secret", false},
		{"a link to the workspace", "alias", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, f := newFake(t)
			for _, dir := range []string{"workspace/sub", "overlay/deep", "work", "workspace-2", "secret"} {
				mkdir(r, r.path(dir))
			}
			if err := os.Symlink(r.path("workspace"), r.path("alias")); err != nil {
				t.Fatal(err)
			}
			addOverlay(r, r.path("overlay"), "/workspace/overlay")
			forbidden := map[string]string{"credentials": "secret", "hidden-oracle": tc.path}
			for _, kind := range sortedNames(forbidden) {
				forbid(kind, r.path(forbidden[kind]))(r)
			}
			if tc.hit {
				err := r.refused("forbidden_mount:hidden-oracle")
				if got := err.Error(); !strings.Contains(got, "worker mounted") || !strings.Contains(got, "(hidden-oracle, \"/") {
					t.Errorf("got %v", got)
				}
				f.neverStarted()
				r.gone()
				return
			}
			receipt := r.run()
			got := receipt.Observed
			if got.ControllerMounted != nil || got.HiddenOraclesMounted == nil || *got.HiddenOraclesMounted || got.CredentialsMounted == nil || *got.CredentialsMounted {
				t.Errorf("controller %v, oracles %v, credentials %v; want null, false, false", got.ControllerMounted, got.HiddenOraclesMounted, got.CredentialsMounted)
			}
			if len(got.ForbiddenRoots) != 2 || got.ForbiddenRoots[0].Path != r.path("secret") {
				t.Errorf("forbidden roots in the receipt: %+v", got.ForbiddenRoots)
			}
		})
	}
}

func sortedNames(m map[string]string) []string {
	if len(m) == 2 {
		return []string{"credentials", "hidden-oracle"}
	}
	return nil
}

// Proves worker 17.12
func TestRun_Inventory(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*rig)
		want   [3]string
	}{
		{"none", func(*rig) {}, [3]string{"null", "null", "null"}},
		{"an empty one", func(r *rig) { r.opts.ForbiddenRoots = []worker.ForbiddenRoot{} }, [3]string{"null", "null", "null"}},
		{"a controller", func(r *rig) { mkdir(r, r.path("ctl")); forbid("controller", r.path("ctl"))(r) }, [3]string{"false", "null", "null"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r, _ := newFake(t)
			tc.change(r)
			r.run()
			text := r.file(".receipt.json")
			for i, name := range []string{"controller_mounted", "hidden_oracles_mounted", "credentials_mounted"} {
				if want := `"` + name + `": ` + tc.want[i]; !strings.Contains(text, want) {
					t.Errorf("the receipt lacks %s", want)
				}
			}
			if !strings.Contains(text, `"forbidden_mount_roots": [`) {
				t.Error("the roots are not a list")
			}
		})
	}
}

// A bind mount gives a directory a second name that no comparison of paths sees.
//
// Proves worker 17.11
func TestRun_ForbiddenAlias(t *testing.T) {
	for _, tc := range []struct{ name, from, root, source string }{
		{"an alias of the root", "secret", "secret", "alias"},
		{"an alias of a part of it", "secret/part", "secret", "alias"},
		{"an alias of what holds it", "secret", "secret/part", "alias"},
		{"an alias inside the source", "secret", "secret", "tree"},
		{"an alias of a part of it inside the source", "secret/part", "secret", "tree"},
		{"an alias of what holds it inside the source", "secret", "secret/part", "tree"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, f := newFake(t)
			mkdir(r, r.path("secret/part/deep"))
			at := r.path("alias")
			if tc.source == "tree" {
				at = r.path("tree/deep/alias")
			}
			mkdir(r, at)
			bind(t, r.path(tc.from), at)
			r.opts.SourceRoot = r.path(tc.source)
			forbid("controller", r.path(tc.root))(r)
			r.refused("forbidden_mount:controller")
			f.neverStarted()
		})
	}
}

// A directory that is exchanged while the engine starts the container is found
// before the container is given its prompt.
func TestRun_ExchangedAtStart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"workspace", "source"} {
		r, f := newFake(t)
		mkdir(r, r.path("secret"))
		var made *fakeContainer
		f.start = func(c *fakeContainer) int {
			made = c
			if err := errors.Join(os.Rename(r.path(name), r.path("moved")), os.Rename(r.path("secret"), r.path(name))); err != nil {
				t.Error(err)
			}
			return 0
		}
		r.refused("mount_unsafe")
		r.gone()
		r.noFiles()
		<-made.exit
		if len(made.stdin) > 0 {
			t.Error("the container was given its prompt")
		}
	}
}

// What must not be given away is known under its other names, too.
func TestRun_PrivateAlias(t *testing.T) {
	for _, tc := range []struct{ name, from, at, option string }{
		{"the Store", "store", "alias", "sourceRoot"},
		{"what holds the Store", "", "alias", "sourceRoot"},
		{"the Store inside the workspace", "store", "workspace/deep", "workspace"},
		{"the runtime directory", "run", "alias", "sourceRoot"},
		{"the root", "/", "alias", "sourceRoot"},
		{"a directory of the system", "/etc", "alias", "sourceRoot"},
		{"the engine's socket", "socket", "alias", "sourceRoot"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, f := newFake(t)
			r.deps.Store = r.storeIn(r.path("store"))
			from := r.path(tc.from)
			switch {
			case tc.from == "socket":
				from = filepath.Dir(strings.TrimPrefix(r.deps.Engine.Host(), "unix://"))
			case filepath.IsAbs(tc.from):
				from = tc.from
			}
			mkdir(r, r.path("run"))
			mkdir(r, r.path(tc.at))
			bind(t, from, r.path(tc.at))
			if tc.option == "sourceRoot" {
				r.opts.SourceRoot = r.path("alias")
			}
			r.refused("option_invalid:" + tc.option)
			f.nothingMade()
		})
	}
}

// bind gives a directory a second name for the length of the test.
func bind(t *testing.T, from, at string) {
	t.Helper()
	if err := unix.Mount(from, at, "", unix.MS_BIND, ""); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skipf("this user may not mount: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
}

// An engine that cannot remove the container gives an error of its own, which hides
// no other, and leaves the row for a sweep.
func TestRun_RemovalUnverified(t *testing.T) {
	t.Parallel()
	r, f := newFake(t)
	f.inspect = hostConfig("Privileged", true)
	f.remove = func(*fakeContainer) int { return 500 }
	_, err := worker.Run(t.Context(), r.opts, r.deps)
	wantCode(t, err, fault.WorkerConfigDiffers)
	if !strings.Contains(err.Error(), "termination unverified") {
		t.Errorf("got %v, want the removal, too", err)
	}
	row, err := r.deps.Store.Worker(t.Context(), r.opts.InvocationID)
	if err != nil || row.State != "unverified" {
		t.Fatalf("row %+v, %v", row, err)
	}
	f.remove = nil
	swept, err := worker.Sweep(t.Context(), r.deps)
	if err != nil || swept.Containers != 1 || swept.Rows != 1 {
		t.Errorf("swept %+v, %v", swept, err)
	}
	r.gone()
}

package worker

import (
	"maps"
	"slices"
	"strings"

	"drawbridge/shared/fault"
)

// identity is what is known of the engine and of whom the container runs as.
type identity struct {
	native   bool // the engine runs on this machine's kernel
	security []string
	swap     bool   // swap is bounded by the engine
	runtime  string // that every container gets
}

// qualify refuses an engine whose ids are not ours, and one that starts containers
// without the bounds of seccomp (worker §4, §4.1). A kernel that has no seccomp is
// no refusal; the receipt lists what there is.
func qualify(info EngineInfo) (identity, error) {
	id := identity{security: info.SecurityOptions, swap: info.SwapLimit, runtime: info.Runtime}
	if id.security == nil {
		id.security = []string{}
	}
	for _, opt := range info.SecurityOptions {
		parts := strings.Split(opt, ",")
		for _, name := range []string{"name=rootless", "name=userns"} {
			if slices.Contains(parts, name) {
				return id, fault.New(fault.DockerIdentity, "look at the container engine: it maps user ids (%s)", name).
					WithHint("use an engine without rootless mode and without userns-remap; user namespaces are not overridden")
			}
		}
		if slices.Contains(parts, "name=seccomp") && slices.Contains(parts, "profile=unconfined") {
			return id, fault.New(fault.WorkerConfigDiffers, "look at the container engine: its containers are not bounded by seccomp (%s)", opt).
				With("field", "Seccomp").WithHint("no container was made; start dockerd without --seccomp-profile unconfined")
		}
	}
	if info.OSType != "linux" {
		return id, fault.New(fault.DockerIdentity, "look at the container engine: it runs containers of %.40q", info.OSType)
	}
	id.native = !strings.Contains(info.OperatingSystem, "Docker Desktop")
	return id, nil
}

// What of /proc and /sys no container may read, and may not write. Engines hide
// more, each version some more.
var (
	masked   = []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"}
	readonly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// differs gives the first field in which the container that was made is not the
// one that was asked for (worker §8).
func differs(o Observed, s Spec, id identity) error {
	for _, c := range comparisons(o, s, id) {
		if !c.same {
			return fault.New(fault.WorkerConfigDiffers, "verify container %s before its start: %s is not what was asked for", s.Name, c.field).
				With("field", c.field).
				WithHint("the container was removed unstarted; look for a proxy or an authorization plugin before the engine")
		}
	}
	return nil
}

type comparison struct {
	field string
	same  bool
}

func comparisons(o Observed, s Spec, id identity) []comparison {
	out := []comparison{
		{"Image", o.Image == s.Image},
		{"Mounts", len(o.Mounts) == len(s.Mounts) && len(o.Binds) == 0 && len(o.VolumesFrom) == 0},
	}
	for _, want := range s.Mounts {
		out = append(out, comparison{"Mounts." + want.Destination, slices.ContainsFunc(o.Mounts, func(m Mount) bool {
			return m.Type == "bind" && m.Destination == want.Destination && m.Source == want.Source && m.ReadWrite == want.ReadWrite &&
				(m.Propagation == "rprivate" || m.Propagation == "")
		})})
	}
	return append(out,
		comparison{"Privileged", !o.Privileged},
		comparison{"ReadonlyRootfs", o.ReadOnlyRoot},
		comparison{"CapDrop", slices.Equal(o.CapDrop, []string{"ALL"})},
		comparison{"CapAdd", len(o.CapAdd) == 0},
		comparison{"SecurityOpt", slices.Equal(o.SecurityOptions, []string{noNewPrivileges})},
		comparison{"AppArmorProfile", o.AppArmor != "unconfined"},
		comparison{"PidsLimit", o.Pids == s.Pids},
		comparison{"Memory", o.Memory == s.Memory},
		comparison{"MemorySwap", o.MemorySwap == s.Memory || !id.swap && o.MemorySwap <= 0},
		comparison{"NanoCpus", o.NanoCPUs == s.NanoCPUs},
		comparison{"OomKillDisable", !o.OomKillDisable},
		comparison{"Ulimits", slices.Equal(sortedUlimits(o.Ulimits), sortedUlimits(s.Ulimits))},
		comparison{"Tmpfs", maps.Equal(o.Tmpfs, s.Tmpfs)},
		comparison{"NetworkMode", o.Network == s.Network},
		comparison{"ExtraHosts", slices.Equal(o.ExtraHosts, s.ExtraHosts) || !id.native && len(o.ExtraHosts) == 0},
		comparison{"Dns", slices.Equal(o.DNS, s.DNS)},
		comparison{"Ports", o.Ports == 0 && !o.PublishAll && len(o.Links) == 0},
		comparison{"User", o.User == s.User},
		comparison{"GroupAdd", len(o.GroupAdd) == 0},
		comparison{"UsernsMode", o.UsernsMode == ""},
		comparison{"PidMode", o.PidMode == ""},
		comparison{"IpcMode", o.IpcMode == ipcPrivate},
		comparison{"UTSMode", o.UTSMode == ""},
		comparison{"Devices", o.Devices == 0},
		comparison{"Runtime", o.Runtime == id.runtime || o.Runtime == ""},
		comparison{"MaskedPaths", holdsAll(o.MaskedPaths, masked)},
		comparison{"ReadonlyPaths", holdsAll(o.ReadonlyPaths, readonly)},
		comparison{"Sysctls", len(o.Sysctls) == 0},
		comparison{"Entrypoint", slices.Equal(o.Entrypoint, s.Entrypoint) && slices.Equal(o.Command, s.Command)},
		comparison{"WorkingDir", o.WorkingDir == s.WorkingDir},
		comparison{"Env", environmentHolds(o.Env, s.Env)},
		comparison{"Labels", labelsHold(o.Labels, s.Labels)},
		comparison{"OpenStdin", o.OpenStdin == s.Stdin && !o.Tty},
		comparison{"LogConfig", o.LogDriver == logNone},
		comparison{"RestartPolicy", o.RestartPolicy == "" || o.RestartPolicy == "no"},
		comparison{"AutoRemove", !o.AutoRemove},
		comparison{"State", o.Status == "created" && !o.Running && !o.Started},
	)
}

// Values that every container has.
const (
	noNewPrivileges = "no-new-privileges"
	ipcPrivate      = "private"
	logNone         = "none"
)

func holdsAll(have, want []string) bool {
	return !slices.ContainsFunc(want, func(path string) bool { return !slices.Contains(have, path) })
}

func sortedUlimits(in []Ulimit) []Ulimit {
	out := slices.Clone(in)
	slices.SortFunc(out, func(a, b Ulimit) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// environmentHolds reports whether every wanted variable is there, once. An image
// brings its own besides, such as PATH.
func environmentHolds(have, want []string) bool {
	values := map[string]string{}
	for _, line := range have {
		name, value, _ := strings.Cut(line, "=")
		if _, twice := values[name]; twice {
			return false
		}
		values[name] = value
	}
	for _, line := range want {
		name, value, _ := strings.Cut(line, "=")
		if got, ok := values[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// labelsHold reports whether the wanted labels are there, and no other by which
// workers are found.
func labelsHold(have, want map[string]string) bool {
	for name, value := range want {
		if got, ok := have[name]; !ok || got != value {
			return false
		}
	}
	if _, ok := want[LabelOwner]; !ok {
		if _, ok := have[LabelOwner]; ok {
			return false
		}
	}
	return true
}

// mountsOf gives the observed mounts for the receipt, by destination.
func mountsOf(o Observed) []ReceiptMount {
	out := []ReceiptMount{}
	for _, m := range o.Mounts {
		out = append(out, ReceiptMount{Destination: m.Destination, Source: m.Source, RW: m.ReadWrite})
	}
	slices.SortFunc(out, func(a, b ReceiptMount) int { return strings.Compare(a.Destination, b.Destination) })
	return out
}

package doctor

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"

	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/checkup"
	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/sibling"
	"drawbridge/shared/workernet"
)

// maxRules bounds what the firewall says.
const maxRules = 1 << 20

// errNoEngine stands where a check needs the engine and the check before says why
// there is none.
var errNoEngine = checkup.Warn(errors.New("not known without the engine"))

// engineProbe asks the engine what a run asks it, and what its kernel bounds.
func (d *doctor) engineProbe(ctx context.Context) ([]checkup.Fact, error) {
	engine, err := worker.NewDocker(d.dockerHost)
	if err != nil {
		return nil, err
	}
	facts := checkup.Facts("host", engine.Host())
	info, err := worker.Ask(ctx, engine)
	if err != nil {
		engine.Close()
		return facts, err
	}
	d.engine = engine
	var bounds, missing []string
	for _, b := range []struct {
		name string
		has  bool
	}{{"memory", info.MemoryLimit}, {"swap", info.SwapLimit}, {"pids", info.PidsLimit}, {"cpu", info.CPUQuota}} {
		if b.has {
			bounds = append(bounds, b.name)
		} else {
			missing = append(missing, b.name)
		}
	}
	facts = append(facts, checkup.Facts(
		"version", info.Version, "api", info.APIVersion, "system", info.OperatingSystem, "runtime", info.Runtime,
		"security_options", nonNil(info.SecurityOptions), "cgroup", info.CgroupVersion, "bounds", nonNil(bounds),
	)...)
	if err := worker.Qualify(info); err != nil {
		return facts, err
	}
	if slices.ContainsFunc(missing, func(name string) bool { return name != "swap" }) {
		return facts, fault.New(fault.DependencyMissing, "the engine cannot bound %s of a container", strings.Join(missing, ", ")).
			WithHint("workers are refused with worker_config_mismatch; give the engine a cgroup with these controllers")
	}
	switch {
	case !has(info.SecurityOptions, "name=seccomp"):
		return facts, checkup.Warn(fault.New(fault.DependencyMissing, "the engine has no seccomp: containers may make every system call").
			WithHint("use a kernel and an engine that have it"))
	case missing != nil:
		return facts, checkup.Warn(fault.New(fault.DependencyMissing, "the engine cannot bound swap: a worker may use more than its memory").
			WithHint("the kernel's swapaccount=1, or no swap at all"))
	}
	return facts, nil
}

// has reports whether an option is among security options.
func has(options []string, name string) bool {
	return slices.ContainsFunc(options, func(o string) bool { return slices.Contains(strings.Split(o, ","), name) })
}

func nonNil(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// networkProbe looks at the network of the workers and at the firewall's rules for
// it, which only root can see.
func (d *doctor) networkProbe(ctx context.Context) ([]checkup.Fact, error) {
	if d.engine == nil {
		return nil, errNoEngine
	}
	n, ok, err := d.engine.Network(ctx, d.network)
	switch {
	case err != nil:
		return nil, err
	case !ok: // the first worker, or brokerd, makes it
		return checkup.Facts("network", d.network, "state", "absent"), nil
	}
	facts := checkup.Facts("network", n.Name, "state", "present")
	if err := n.Check(workernet.IsLocal); err != nil {
		return facts, err
	}
	facts = append(facts, checkup.Facts("subnet", n.Subnet.String(), "gateway", n.Gateway.String(), "device", n.Device())...)
	rules, known := firewalled(ctx, n.Device())
	if !known {
		return append(facts, checkup.Facts("rules", "unknown")...), nil
	}
	facts = append(facts, checkup.Facts("rules", rules)...)
	if !rules {
		return facts, checkup.Warn(fault.New(fault.NetworkUnqualified, "services of this machine that listen on all addresses can be reached by workers").
			WithHint("scripts/worker-firewall apply closes that; docs/security.md shows how"))
	}
	return facts, nil
}

// firewalled reports whether what comes from a device goes into the chain of
// scripts/worker-firewall before anything else.
func firewalled(ctx context.Context, device string) (rules, known bool) {
	tool, err := exec.LookPath("iptables")
	if err != nil || os.Geteuid() != 0 {
		return false, false
	}
	res := process.Run(ctx, process.Spec{
		Path: tool, Args: []string{"-w", "-S", "INPUT"}, Env: []string{"PATH=" + os.Getenv("PATH")}, Dir: "/", Timeout: probeTime, MaxStdout: maxRules, MaxStderr: maxRules,
	})
	if !res.OK() {
		return false, false
	}
	return strings.Contains(string(res.Stdout), "-A INPUT -i "+device+" -j "+workernet.Chain+"\n"), true
}

// shimProbe looks for the program that is mounted into containers of the network
// socket, where there is no library.
func (d *doctor) shimProbe(context.Context) ([]checkup.Fact, error) {
	path, err := sibling.Beside("station-shim")
	if err != nil {
		return nil, err
	}
	found := checkup.Executable(path)
	facts := checkup.Facts("found", found)
	const hint = "scripts/build makes it beside kitrun; only the network socket needs it"
	if !found {
		return facts, checkup.Warn(fault.New(fault.DependencyMissing, "station-shim does not lie beside kitrun").WithHint(hint))
	}
	if !static(path) {
		return facts, checkup.Warn(fault.New(fault.DependencyMissing, "station-shim is no static program: it cannot run in a container").WithHint(hint))
	}
	return facts, nil
}

// static reports whether a program needs no loader.
func static(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

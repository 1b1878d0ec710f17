package engine

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Places and names of what a daemon changes on the machine.
const (
	bridgeName  = "docker0"
	forwarding  = "/proc/sys/net/ipv4/ip_forward"
	cgroupRoot  = "/sys/fs/cgroup"
	chainPrefix = "DOCKER"
)

// A machine is what the engine found when it started.
type machine struct {
	bridge   bool   // docker0 was there
	chains   bool   // firewall chains of an engine were there
	forward  string // setting of IPv4 forwarding
	policy   string // of the chain FORWARD
	cgroups  bool   // this program mounted them
	firewall bool   // iptables is installed
}

func remember() (*machine, error) {
	m := &machine{bridge: hasBridge()}
	forward, err := os.ReadFile(forwarding)
	if err != nil {
		return nil, fmt.Errorf("look at the machine: %w", err)
	}
	m.forward = string(forward)
	if rules, err := run("iptables", "-w", "-S"); err == nil {
		m.firewall = true
		m.chains = strings.Contains(rules, "-N "+chainPrefix)
		for row := range strings.Lines(rules) {
			if policy, ok := strings.CutPrefix(strings.TrimSpace(row), "-P FORWARD "); ok {
				m.policy = policy
			}
		}
	}
	mounted, err := mounts(func(fields []string) bool { return strings.HasPrefix(fields[2], "cgroup") })
	if err != nil {
		return nil, err
	}
	if len(mounted) == 0 {
		if err := unix.Mount("none", cgroupRoot, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return nil, fmt.Errorf("mount cgroups on %s, which an engine needs: %w", cgroupRoot, err)
		}
		m.cgroups = true
	}
	return m, nil
}

// restore takes back what the engine that ended left, and removes its directory.
func (m *machine) restore(dir string) error {
	all := []error{killBelow(dir), unmountBelow(dir)}
	if m.cgroups {
		all = append(all, unix.Unmount(cgroupRoot, unix.MNT_DETACH))
	}
	if !m.bridge && hasBridge() {
		_, err := run("ip", "link", "delete", bridgeName)
		all = append(all, err)
	}
	if m.firewall && !m.chains {
		for _, tool := range []string{"iptables", "ip6tables"} {
			for _, table := range []string{"filter", "nat", "raw"} {
				all = append(all, unchain(tool, table))
			}
		}
		if m.policy != "" {
			_, err := run("iptables", "-w", "-P", "FORWARD", m.policy)
			all = append(all, err)
		}
	}
	if now, err := os.ReadFile(forwarding); err == nil && string(now) != m.forward {
		all = append(all, os.WriteFile(forwarding, []byte(m.forward), 0o644))
	}
	return errors.Join(append(all, os.RemoveAll(dir))...)
}

// unchain deletes the chains of the engine from a table, and the rules that lead
// there or name its bridge.
func unchain(tool, table string) error {
	listed, err := run(tool, "-w", "-t", table, "-S")
	if err != nil {
		return nil // the machine does not have this table: nothing was added
	}
	var all []error
	var chains []string
	for row := range strings.Lines(listed) {
		fields := strings.Fields(row)
		switch {
		case len(fields) < 2:
		case fields[0] == "-N" && strings.HasPrefix(fields[1], chainPrefix):
			chains = append(chains, fields[1])
		case fields[0] == "-A" && !strings.HasPrefix(fields[1], chainPrefix) && ofEngine(fields[2:]):
			_, err := run(tool, append([]string{"-w", "-t", table, "-D"}, fields[1:]...)...)
			all = append(all, err)
		}
	}
	for _, how := range []string{"-F", "-X"} { // all are empty before the first goes
		for _, chain := range chains {
			_, err := run(tool, "-w", "-t", table, how, chain)
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// ofEngine recognises a rule of the engine in a chain of the system: it leads to
// one of the engine's chains, names its bridge, or is the one rule of the default
// bridge's way out.
func ofEngine(rule []string) bool {
	if slices.Contains(rule, bridgeName) {
		return true
	}
	at := slices.Index(rule, "-j")
	return at >= 0 && at+1 < len(rule) && strings.HasPrefix(rule[at+1], chainPrefix)
}

// unmountBelow unmounts everything below dir, the last mounted first.
func unmountBelow(dir string) error {
	below, err := mounts(func(fields []string) bool { return strings.HasPrefix(fields[1], dir+"/") })
	if err != nil {
		return err
	}
	var all []error
	for _, at := range slices.Backward(below) {
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			all = append(all, fmt.Errorf("unmount %s: %w", at, err))
		}
	}
	return errors.Join(all...)
}

// mounts lists the mount points whose line of /proc/self/mounts pleases.
func mounts(pleases func(fields []string) bool) ([]string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("look at the mounts: %w", err)
	}
	defer f.Close()
	var found []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && pleases(fields) {
			found = append(found, fields[1])
		}
	}
	return found, lines.Err()
}

// hasBridge asks the kernel, not /sys: that may show another network namespace.
func hasBridge() bool {
	_, err := net.InterfaceByName(bridgeName)
	return err == nil
}

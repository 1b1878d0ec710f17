package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/testkit"
	"drawbridge/shared/testkit/nettest"
)

// firewall runs scripts/worker-firewall.
func firewall(t *testing.T, args ...string) (out string, status int) {
	t.Helper()
	cmd := exec.Command(filepath.Join(testkit.Root(), "scripts", "worker-firewall"), args...)
	text, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// rules are those of the host's own chain and of the script's.
func rules(t *testing.T, tool string) string {
	t.Helper()
	out, err := exec.Command(tool, "-S").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", tool, err, out)
	}
	var kept []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "INPUT") || strings.Contains(line, "DRAWBRIDGE") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// The script changes what it says, as often as it is run, and takes all of it back;
// rules of others stay where they are. What the rules do to a worker is proven by
// the table of networks in kitrun.
func TestFirewall(t *testing.T) {
	testkit.Need(t, "iptables", "ip6tables")
	if nettest.Isolate(t) {
		return
	}
	for _, bridge := range []string{"br-one", "br-two"} {
		nettest.IP(t, "link", "add", bridge, "type", "bridge")
	}
	if out, err := exec.Command("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := [2]string{rules(t, "iptables"), rules(t, "ip6tables")}
	one := []string{"-device", "br-one", "-gateway", "10.213.77.1", "-port", "8787", "-port", "9000"}
	const applied = `-P INPUT ACCEPT
-N DRAWBRIDGE-WORKERS
-A INPUT -i br-one -j DRAWBRIDGE-WORKERS
-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT
-A DRAWBRIDGE-WORKERS -d 10.213.77.1/32 -p tcp -m tcp --dport 8787 -j ACCEPT
-A DRAWBRIDGE-WORKERS -d 10.213.77.1/32 -p tcp -m tcp --dport 9000 -j ACCEPT
-A DRAWBRIDGE-WORKERS -j DROP
`
	want := func(step, four string, six ...string) {
		t.Helper()
		if diff := cmp.Diff(four, rules(t, "iptables")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step, diff)
		}
		for _, text := range six {
			if diff := cmp.Diff(text, rules(t, "ip6tables")); diff != "" {
				t.Errorf("%s, IPv6 (-want +got):\n%s", step, diff)
			}
		}
	}
	run := func(args ...string) string {
		t.Helper()
		out, status := firewall(t, args...)
		if status != 0 {
			t.Fatalf("worker-firewall %v: status %d: %s", args, status, out)
		}
		return out
	}

	printed := run(append([]string{"print"}, one...)...)
	want("print", before[0], before[1])
	run(append([]string{"apply"}, one...)...)
	want("apply", applied, "-P INPUT ACCEPT\n-N DRAWBRIDGE-WORKERS\n-A INPUT -i br-one -j DRAWBRIDGE-WORKERS\n-A DRAWBRIDGE-WORKERS -j DROP\n")
	run(append([]string{"apply"}, one...)...)
	want("apply again", applied)
	other := func(step string) {
		t.Helper()
		if out, err := exec.Command("iptables", step, "INPUT", "-p", "tcp", "--dport", "80", "-j", "ACCEPT").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	other("-I")
	run(append([]string{"apply"}, one...)...)
	want("apply when another rule is in front", strings.Replace(applied, "-A INPUT -p", "-A INPUT -p tcp -m tcp --dport 80 -j ACCEPT\n-A INPUT -p", 1))
	other("-D")
	run("apply", "--device", "br-two", "--gateway", "10.213.78.1", "--port", "1")
	want("apply for another bridge", strings.NewReplacer("br-one", "br-two", "10.213.77.1", "10.213.78.1", "8787", "1").Replace(
		strings.Replace(applied, "-A DRAWBRIDGE-WORKERS -d 10.213.77.1/32 -p tcp -m tcp --dport 9000 -j ACCEPT\n", "", 1)))
	run("remove")
	want("remove", before[0], before[1])
	run("remove")
	want("remove again", before[0], before[1])

	// What is printed is what apply does.
	if out, err := exec.Command("sh", "-c", printed).CombinedOutput(); err != nil {
		t.Fatalf("the printed commands: %v: %s", err, out)
	}
	want("the printed commands", applied)
	run("remove")
	want("remove what was printed", before[0], before[1])
}

// A firewall that cannot be changed is no success.
func TestFirewall_Broken(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gets so far")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "iptables"), []byte("#!/bin/sh\necho no table >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, args := range [][]string{{"apply", "-device", "br0", "-gateway", "10.0.0.1", "-port", "1"}, {"remove"}} {
		if out, status := firewall(t, args...); status != 1 || !strings.Contains(out, "nothing was changed: no table") {
			t.Errorf("%s: status %d, %q", args[0], status, out)
		}
	}
}

// Nothing that a shell or iptables would read as more than it is gets through.
func TestFirewall_Refuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		args   []string
		status int
		said   string
	}{
		{"nothing", nil, 2, "print|apply|remove"},
		{"another verb", []string{"flush"}, 2, "print|apply|remove"},
		{"a flag without a value", []string{"print", "-port"}, 2, "print|apply|remove"},
		{"no port", []string{"print", "-device", "br0", "-gateway", "10.0.0.1"}, 1, "no port of the broker"},
		{"port 0", []string{"print", "-device", "br0", "-gateway", "10.0.0.1", "-port", "0"}, 1, "want a number"},
		{"a large port", []string{"print", "-device", "br0", "-gateway", "10.0.0.1", "-port", "65536"}, 1, "want a number"},
		{"a port that is more", []string{"print", "-device", "br0", "-gateway", "10.0.0.1", "-port", "1 -j ACCEPT"}, 1, "want a number"},
		{"a device that is more", []string{"print", "-device", "br0 -j ACCEPT", "-gateway", "10.0.0.1", "-port", "1"}, 1, "is no name of a bridge"},
		{"every device", []string{"print", "-device", "+", "-gateway", "10.0.0.1", "-port", "1"}, 1, "is no name of a bridge"},
		{"a gateway that is a range", []string{"print", "-device", "br0", "-gateway", "0.0.0.0/0", "-port", "1"}, 1, "is no IPv4 address"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if out, status := firewall(t, tc.args...); status != tc.status || !strings.Contains(out, tc.said) {
				t.Errorf("status %d, %q, want %d, … %s …", status, out, tc.status, tc.said)
			}
		})
	}
}

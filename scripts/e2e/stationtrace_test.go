package e2e

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"drawbridge/scripts/internal/stationrig"
	"drawbridge/shared/process"
	"drawbridge/shared/testkit/scan"
)

// A conversation whose prompts, answers, headers and queries hold twenty marks: none
// of them, no credential and nothing of that form is in a byte that the run wrote, in
// what the commands print, or in an argument of a process.
//
// Proves station 17.V8, 17.V3
func TestStation_KeepsNothingSaid(t *testing.T) {
	t.Parallel()
	h := newHarnessStation(t, stationrig.Options{Args: []string{"-log-level", "debug"}})
	marks := slices.Sorted(maps.Values(scan.Marks(20)))
	secrets := scan.Secrets{Values: map[string]string{}, Tokens: true}
	for i, m := range marks {
		secrets = secrets.With(fmt.Sprint("mark ", i), m)
	}
	next := func() (mark string) { mark, marks = marks[0], marks[1:]; return mark }
	spec := h.with(stationrig.Spec{"bridge": map[string]any{"headerAllow": []string{"X-Prompt"}}})
	s := h.Start(spec)
	c := s.Client("ada")
	secrets = secrets.With("ticket", c.Ticket).With("secret of ada", c.Secret)

	for range 4 {
		prompt, answer, header, query := next(), next(), next(), next()
		a := c.Must("POST", "/echo?q="+url.QueryEscape(query), `{"prompt":"`+prompt+`","answer":"`+answer+`"}`, "X-Prompt: "+header, "X-Request-Id: "+header)
		if !strings.Contains(string(a.Body), answer) {
			t.Fatalf("the answer: %s", a.Text(300))
		}
	}
	stray := c.Do("GET", "/"+next()+"?ticket="+c.Ticket, "", "Cookie: "+next(), "Referer: http://x.test/"+next())
	if stray.Status != 400 {
		t.Errorf("a ticket in the address: %d", stray.Status)
	}
	if a := c.Do("GET", "/redirect?to=http://"+strings.ToLower(next())+".test/", ""); a.Status != 502 {
		t.Errorf("a redirect: %d", a.Status)
	}
	secretArguments(t, c)
	s.End()
	for what, data := range map[string][]byte{
		"evidence": s.Evidence(), "export": s.Run("evidence", "export", s.ID), "status": s.Run("status", s.ID, "-json"),
		"logs": s.Run("logs", s.ID), "list": s.Run("list"), "principals": s.Run("principal", "list"), "log of stationd": []byte(h.Log()),
	} {
		for _, found := range secrets.In(what, data) {
			t.Error(found)
		}
	}
	h.Stop()
	secrets.None(t, h.Path("store"), h.Path("state"), h.Path("run"), h.Path("stationd.log"))
}

// secretArguments fails for a process whose arguments hold the client's credentials,
// while requests run.
func secretArguments(t *testing.T, c stationrig.Client) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Try(t.Context(), "GET", "/slow?for=500ms", "")
	}()
	for looks := 0; ; looks++ {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, line := range lines {
			data, _ := os.ReadFile(line)
			if strings.Contains(string(data), c.Ticket) || strings.Contains(string(data), c.Secret) {
				t.Errorf("%s holds a credential", line)
			}
		}
		select {
		case <-done:
			if looks == 0 {
				t.Error("the processes were not looked at")
			}
			return
		default:
		}
	}
}

// While a station runs, its processes and stationd hold one listener that anybody on
// the machine can reach: the gate. The daemon's own port leads nowhere from outside.
//
// Proves station 17.P1
func TestStation_OneWayIn(t *testing.T) {
	t.Parallel()
	h := newHarnessStation(t, stationrig.Options{Files: map[string]string{"egress.json": `{"profiles":[{"name":"docs","allow":["docs.example.test"]}]}`},
		Args: []string{"-egress-profiles", "egress.json"}})
	s := h.Start(h.with(stationrig.Spec{"egressProfile": "docs"}))
	st := s.Status()
	space, err := stationrig.Namespace(st.Detail.DaemonPID)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	var reachable []string
	for _, pid := range append(stationrig.Members(space), h.PID()) {
		reachable = append(reachable, hostListeners(t, pid)...)
	}
	if !slices.Equal(reachable, []string{gate.Host}) {
		t.Errorf("listeners of stationd and of the station: %v, want %s alone", reachable, gate.Host)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		host, _, _ := strings.Cut(a.String(), "/")
		for _, port := range []int{st.Detail.Port, 3128} {
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, strconv.Itoa(port)), time.Second)
			if err == nil {
				conn.Close()
				t.Errorf("%s answers at port %d", host, port)
			}
		}
	}
	if a := s.Client("ada").Do("GET", "/health", ""); a.Status != 200 {
		t.Errorf("through the gate: %d", a.Status)
	}
	s.End()
}

// hostListeners are the TCP listeners of this network namespace that a process holds.
func hostListeners(t *testing.T, pid int) (out []string) {
	t.Helper()
	rows := map[string]string{} // inode to address
	for _, name := range []string{"tcp", "tcp6"} {
		data, err := os.ReadFile("/proc/self/net/" + name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" {
				rows["socket:["+f[9]+"]"] = address(t, f[1])
			}
		}
	}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if info, err := process.Stat(pid); err != nil || len(fds) == 0 {
		t.Fatalf("look at process %d: %v, %+v", pid, err, info)
	}
	for _, fd := range fds {
		if name, err := os.Readlink(fd); err == nil && rows[name] != "" {
			out = append(out, rows[name])
		}
	}
	return out
}

// address reads 0100007F:1B9E, and leaves what is of the other family as it is.
func address(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	if ip, err := strconv.ParseUint(host, 16, 32); err == nil {
		return fmt.Sprintf("%d.%d.%d.%d:%d", byte(ip), byte(ip>>8), byte(ip>>16), byte(ip>>24), n)
	}
	return text
}

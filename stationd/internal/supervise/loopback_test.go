package supervise_test

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/testkit"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/wire"
)

func TestLoopback_Check(t *testing.T) {
	good := wire.Listener{Protocol: "tcp", Address: "127.0.0.1", Port: 7070, Loopback: true, PID: 5, Program: "d"}
	wide := wire.Listener{Protocol: "tcp6", Address: "::", Port: 9999, PID: 6, Program: "e"}
	names := wire.Listener{Protocol: "udp", Address: "0.0.0.0", Port: 5353, PID: 6}
	proxy := wire.Listener{Protocol: "tcp", Address: "127.0.0.1", Port: 3128, Loopback: true, PID: 1, Own: true}
	for name, tc := range map[string]struct {
		policy string
		rows   []wire.Listener
		want   []string
		breach bool
	}{
		"good":        {"", []wire.Listener{good, proxy}, nil, false},
		"strict":      {supervise.Strict, []wire.Listener{good, wide}, []string{"tcp6 [::]:9999 e"}, true},
		"contained":   {supervise.Contained, []wire.Listener{good, wide}, []string{"tcp6 [::]:9999 e"}, false},
		"strict udp":  {supervise.Strict, []wire.Listener{names}, []string{"udp 0.0.0.0:5353 "}, false},
		"own, always": {supervise.Strict, []wire.Listener{{Protocol: "tcp", Address: "0.0.0.0", Port: 1, Own: true, PID: 1}}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := supervise.NewLoopback(tc.policy)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range l.Check(tc.rows) {
				got = append(got, f.String())
				if f.Breach != tc.breach {
					t.Errorf("%v: breach %v", f, f.Breach)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if again := l.Check(tc.rows); again != nil || l.Checks() != 2 || len(l.Findings()) != len(tc.want) {
				t.Errorf("again %v, %d checks, %v", again, l.Checks(), l.Findings())
			}
		})
	}
	strict, _ := supervise.NewLoopback(supervise.Strict)
	contained, _ := supervise.NewLoopback(supervise.Contained)
	if !strict.Serves([]wire.Listener{good}, 7070) || strict.Serves([]wire.Listener{good}, 7071) || strict.Serves([]wire.Listener{wide}, 9999) ||
		!contained.Serves([]wire.Listener{wide}, 9999) || strict.Serves([]wire.Listener{proxy}, 3128) {
		t.Error("the wrong listener serves")
	}
	if _, err := supervise.NewLoopback("loose"); err == nil {
		t.Error("an unknown policy was taken")
	}
}

// However many findings there were, the first breach is told, and no more than that.
func TestLoopback_Full(t *testing.T) {
	l, _ := supervise.NewLoopback(supervise.Strict)
	var rows []wire.Listener
	for port := range 1000 {
		rows = append(rows, wire.Listener{Protocol: "udp", Address: "0.0.0.0", Port: 1 + port, PID: 6})
	}
	noted := len(l.Check(rows))
	var wide []wire.Listener
	for port := range 10 {
		wide = append(wide, wire.Listener{Protocol: "tcp6", Address: "::", Port: 9999 + port, PID: 6})
	}
	if found := l.Check(append(rows, wide...)); len(found) != 1 || !found[0].Breach || found[0].Address != "[::]:9999" {
		t.Errorf("found %v after %d findings", found, noted)
	}
	if again := l.Check(wide); again != nil || len(l.Findings()) != noted+1 || noted > 255 {
		t.Errorf("again %v, %d findings after %d", again, len(l.Findings()), noted)
	}
}

// rows are the listeners that the shim sees.
func (w *world) rows() []wire.Listener {
	w.Helper()
	rows, err := w.process.Client().Listeners(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return rows
}

// Proves station 17.B1 (the observation): an independent tool in the namespace sees
// loopback only, and so does the shim.
func TestLoopback_Good(t *testing.T) {
	w := newWorld(t).start()
	started := w.launch()
	l, _ := supervise.NewLoopback(supervise.Strict)
	rows := w.rows()
	if found := l.Check(rows); found != nil || !l.Serves(rows, w.spec.Port) || l.Checks() != 1 {
		t.Errorf("%v in %+v", found, rows)
	}
	for _, r := range rows {
		if r.Port == w.spec.Port && (r.PID != started.Inner || r.Program != "harness") {
			t.Errorf("%+v, want the daemon %+v", r, started)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("only root can look into the namespace from outside")
	}
	testkit.Need(t, "nsenter", "ss")
	out, err := exec.Command("nsenter", "-n", "-t", strconv.Itoa(w.process.Incarnation().PID), "ss", "-Hltun").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) < 5 || !strings.HasPrefix(f[4], "127.0.0.1:") {
			t.Errorf("listens: %s", line)
		}
	}
}

// Proves station 17.B2, 17.B3 for what is found and what is ended: within
// 3 s, whoever opened it, also where only tcp6 shows it.
func TestLoopback_Breach(t *testing.T) {
	for name, args := range map[string][]string{
		"0.0.0.0": {"-also", "0.0.0.0:9999"},
		"::":      {"-also", "[::]:9999"},
		"child":   {"-children", "fork", "-child-listen", "0.0.0.0:9999"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t).start()
			w.launch(args...)
			began := time.Now()
			l, _ := supervise.NewLoopback(supervise.Strict)
			var found []supervise.Finding
			testkit.Eventually(t, 3*time.Second, func() bool { found = l.Check(w.rows()); return len(found) > 0 })
			if f := found[0]; !f.Breach || f.Protocol != "tcp6" || f.Address != "[::]:9999" || f.Program == "" {
				t.Errorf("%+v after %v", f, time.Since(began))
			}
			if _, err := w.process.End(t.Context()); err != nil || w.alive() != 0 {
				t.Errorf("%v, %d left", err, w.alive())
			}
		})
	}
}

// Proves station 17.B5 for the policy: the daemon lives, and a new listener is
// found once.
//
// Proves station 17.B6 for the observation: another port than the one told is not
// the daemon's.
func TestLoopback_Contained(t *testing.T) {
	w := newWorld(t).start()
	w.launch("-also", "0.0.0.0:9999", "-udp", "0.0.0.0:5353")
	l, _ := supervise.NewLoopback(supervise.Contained)
	if found := l.Check(w.rows()); len(found) != 2 || found[0].Breach || found[1].Breach {
		t.Errorf("%v", found)
	}
	if again := l.Check(w.rows()); again != nil {
		t.Errorf("found again: %v", again)
	}
	if l.Serves(w.rows(), w.spec.Port+1) {
		t.Error("a port that nobody has is served")
	}
}

// Proves station 17.B4: the daemon's port is nowhere but behind in.sock.
func TestLoopback_Outside(t *testing.T) {
	w := newWorld(t).start()
	w.launch("-also", "0.0.0.0:0")
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		ip := a.(*net.IPNet).IP
		if ip.IsLinkLocalUnicast() {
			continue // would need its interface named
		}
		if c, err := net.DialTimeout("tcp", net.JoinHostPort(ip.String(), strconv.Itoa(w.spec.Port)), time.Second); err == nil {
			c.Close()
			t.Errorf("%v leads in", ip)
		}
	}
	if _, err := w.try("/health"); err != nil {
		t.Error(err)
	}
}

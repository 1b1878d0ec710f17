package listener_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/stationd/internal/listener"
	"drawbridge/stationd/internal/wire"
)

const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct {
		protocol, row string
		want          []string // address, "!" when it is not loopback
	}{
		"loopback":   {"tcp", "0100007F:1B9E 00000000:0000 0A", []string{"127.0.0.1:7070"}},
		"wide":       {"tcp", "00000000:270F 00000000:0000 0A", []string{"!0.0.0.0:9999"}},
		"wide six":   {"tcp6", "00000000000000000000000000000000:270F 00000000000000000000000000000000:0000 0A", []string{"![::]:9999"}},
		"six":        {"tcp6", "00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A", []string{"[::1]:80"}},
		"mapped":     {"tcp6", "0000000000000000FFFF00000100007F:0050 00000000000000000000000000000000:0000 0A", []string{"[::ffff:127.0.0.1]:80"}},
		"connected":  {"tcp", "0100007F:1B9E 0100007F:1B9F 01", nil},
		"datagrams":  {"udp", "00000000:14E9 00000000:0000 07", []string{"!0.0.0.0:5353"}},
		"with peer":  {"udp", "0100007F:14E9 0100007F:0035 01", nil},
		"other port": {"tcp", "0A00000A:FFFF 00000000:0000 0A", []string{"!10.0.0.10:65535"}},
	} {
		t.Run(name, func(t *testing.T) {
			rows, err := listener.Parse(tc.protocol, []byte(head+"   0: "+tc.row+" 00000000:00000000 00:00000000 00000000  1000        0 77 1 0 100 0\n"))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range rows {
				text := r.Address.String()
				if !listener.Loopback(r.Address.Addr()) {
					text = "!" + text
				}
				got = append(got, text)
				if r.Inode != 77 {
					t.Errorf("inode %d", r.Inode)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, bad := range []string{"0: x", "0: 01:1 0:0 0A a b c d e 1 2", "0: 0100007F:GGGG 0:0 0A a b c d 5 6 7"} {
		if rows, err := listener.Parse("tcp", []byte(head+bad+"\n")); err == nil {
			t.Errorf("%q: %v", bad, rows)
		}
	}
}

// A socket that is reached from elsewhere does not hide behind many others, and
// whatever a daemon opens, the answer fits into a line.
func TestBound(t *testing.T) {
	var table strings.Builder
	table.WriteString(head)
	for port := range 5000 {
		fmt.Fprintf(&table, "%4d: 0100007F:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77 1 0 100 0\n", port, 1+port)
	}
	table.WriteString("5000: 00000000:270F 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 78 1 0 100 0\n")
	rows, err := listener.Parse("tcp", []byte(table.String()))
	if err != nil {
		t.Fatal(err)
	}
	names := []listener.Socket{{Protocol: "udp", Address: netip.MustParseAddrPort("0.0.0.0:5353")}}
	rows = listener.Bound(append(names, rows...))
	if rows[0].Inode != 78 || rows[1].Address.Port() != 1 {
		t.Errorf("first come %+v and %+v", rows[0], rows[1])
	}
	answer := wire.Message{ID: 1 << 40}
	for range rows {
		answer.Listeners = append(answer.Listeners, wire.Listener{
			Protocol: "tcp6", Address: strings.Repeat("ffff:", 8), Port: 65535, Loopback: true, PID: 1 << 22, Own: true, Program: strings.Repeat("\x01", 64),
		})
	}
	if err := wire.Write(io.Discard, answer); err != nil {
		t.Errorf("%d rows: %v", len(rows), err)
	}
}

// A program's name is cut.
func TestProgram(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("no sleep here")
	}
	data, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), strings.Repeat("n", 255))
	if err := os.WriteFile(path, data, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if got := listener.Program(cmd.Process.Pid); got != strings.Repeat("n", 64) {
		t.Errorf("%q", got)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(head + "0: 0100007F:1B9E 00000000:0000 0A 0:0 0:0 0 1000 0 77 1\n"))
	f.Add([]byte(head + "0: 00000000000000000000000000000000:270F 0:0 0A 0:0 0:0 0 0 0 8 1"))
	f.Fuzz(func(t *testing.T, table []byte) {
		rows, err := listener.Parse("tcp", table)
		for _, r := range rows {
			if err == nil && !r.Address.IsValid() {
				t.Fatalf("%v", r)
			}
		}
	})
}

// What this process listens on is found, with its owner.
func TestList(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	all, err := listener.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range all {
		if row.Port == int(at.Port()) && row.Protocol == "tcp" {
			if !row.Loopback || row.PID != os.Getpid() || !row.Own || row.Program == "" {
				t.Errorf("%+v", row)
			}
			return
		}
	}
	t.Errorf("%v is not among %d sockets", at, len(all))
}

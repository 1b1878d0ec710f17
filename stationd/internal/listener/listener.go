// Package listener reads which sockets of a network namespace take connections or
// datagrams, and which processes hold them (station §7.2).
//
// One reading of the kernel's tables covers every process of the namespace. All
// four tables count: what Go calls 0.0.0.0 stands in tcp6 as ::.
package listener

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"drawbridge/shared/process"
	"drawbridge/stationd/internal/wire"
)

// Bounds of the answer, which has to fit into one line of package wire whatever a
// daemon opens: what is reached from elsewhere comes first, so that nobody hides one
// socket behind many others.
const (
	maxSockets = 1024
	maxProgram = 64 // bytes of a program's name, which a daemon chooses
)

// States of /proc/net: a listening TCP socket, and a UDP socket without a peer.
const (
	stateListen = "0A"
	stateBound  = "07"
)

// Socket is a row of a table.
type Socket struct {
	Protocol string
	Address  netip.AddrPort
	Inode    uint64
}

// Loopback reports whether only this namespace reaches the socket: 127.0.0.0/8,
// ::1, and the former in its IPv6 form.
func Loopback(a netip.Addr) bool { return a.Unmap().IsLoopback() }

// Parse reads the rows of one table that wait for somebody.
func Parse(protocol string, table []byte) ([]Socket, error) {
	want := stateListen
	if strings.HasPrefix(protocol, "udp") {
		want = stateBound
	}
	var out []Socket
	for n, line := range bytes.Split(table, []byte("\n")) {
		f := strings.Fields(string(line))
		if n == 0 || len(f) == 0 {
			continue
		}
		if len(f) < 10 {
			return nil, fmt.Errorf("read table %s: line %d has %d fields", protocol, n+1, len(f))
		}
		if f[3] != want {
			continue
		}
		at, err := parseAddress(f[1])
		if err != nil {
			return nil, fmt.Errorf("read table %s: line %d: %w", protocol, n+1, err)
		}
		inode, err := strconv.ParseUint(f[9], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read table %s: line %d: inode %q", protocol, n+1, f[9])
		}
		out = append(out, Socket{protocol, at, inode})
	}
	return out, nil
}

// Bound leaves at most maxSockets rows, those first that matter most: streams that
// are reached from elsewhere, then those of loopback, then datagrams.
func Bound(rows []Socket) []Socket {
	rank := func(r Socket) int {
		switch {
		case strings.HasPrefix(r.Protocol, "udp"):
			return 2
		case Loopback(r.Address.Addr()):
			return 1
		}
		return 0
	}
	slices.SortStableFunc(rows, func(a, b Socket) int { return rank(a) - rank(b) })
	return rows[:min(len(rows), maxSockets)]
}

// parseAddress reads "0100007F:1B9E": words of 32 bits in the machine's order, and
// a port in the usual one.
func parseAddress(text string) (netip.AddrPort, error) {
	host, port, ok := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if !ok || err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, fmt.Errorf("address %q", text)
	}
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("port of %q", text)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, uint16(p)), nil
}

// List gives the sockets of this process's network namespace with their owners.
func List() ([]wire.Listener, error) {
	var rows []Socket
	for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
		table, err := os.ReadFile("/proc/self/net/" + protocol)
		if errors.Is(err, fs.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", protocol, err)
		}
		more, err := Parse(protocol, table)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	rows = Bound(rows)
	holders := owners(rows)
	out := make([]wire.Listener, 0, len(rows))
	for _, r := range rows {
		l := wire.Listener{
			Protocol: r.Protocol, Address: r.Address.Addr().String(), Port: int(r.Address.Port()), Loopback: Loopback(r.Address.Addr()),
		}
		if pid := holders[r.Inode]; pid != 0 {
			l.PID, l.Own = pid, pid == os.Getpid()
			l.Program = Program(pid)
		}
		out = append(out, l)
	}
	return out, nil
}

// Program is the name of the file that a process runs, else the short name that it
// gave itself; a program executed through a descriptor is called by its number. It is
// cut to maxProgram.
func Program(pid int) string {
	name := ""
	if exe, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/exe"); err == nil {
		name = filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
	} else if info, err := process.Stat(pid); err == nil {
		name = info.Comm
	}
	return name[:min(len(name), maxProgram)]
}

// owners finds a process for each socket; the lowest pid, where several hold it.
func owners(rows []Socket) map[uint64]int {
	wanted := map[string]uint64{}
	for _, r := range rows {
		wanted[fmt.Sprintf("socket:[%d]", r.Inode)] = r.Inode
	}
	out := map[uint64]int{}
	if len(wanted) == 0 {
		return out
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		held, err := process.Descriptors(pid)
		if err != nil {
			continue // ended, or not ours to see
		}
		for _, d := range held {
			if inode, ok := wanted[d.Target]; ok && (out[inode] == 0 || pid < out[inode]) {
				out[inode] = pid
			}
		}
	}
	return out
}

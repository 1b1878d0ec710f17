package control

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"drawbridge/shared/process"
)

// maxTable bounds what is read of /proc/net/tcp.
const maxTable = 16 << 20

// tcpListen is the state of a listening socket in /proc/net/tcp.
const tcpListen = "0A"

// Listeners gives the inode of the socket that listens on each loopback port;
// ports where nothing listens are missing.
func Listeners() (map[int]uint64, error) {
	f, err := os.Open("/proc/self/net/tcp")
	if err != nil {
		return nil, fmt.Errorf("list listening sockets: %w", err)
	}
	defer f.Close()
	out, err := listeners(io.LimitReader(f, maxTable))
	if err != nil {
		return nil, fmt.Errorf("list listening sockets: %w", err)
	}
	return out, nil
}

func listeners(r io.Reader) (map[int]uint64, error) {
	out := map[int]uint64{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 10 || f[3] != tcpListen {
			continue
		}
		// The address is the four bytes in the machine's order; 127.0.0.1 only.
		addr, port, ok := strings.Cut(f[1], ":")
		if !ok || (addr != "0100007F" && addr != "7F000001") {
			continue
		}
		n, err1 := strconv.ParseUint(port, 16, 16)
		inode, err2 := strconv.ParseUint(f[9], 10, 64)
		if err1 != nil || err2 != nil || inode == 0 {
			continue
		}
		out[int(n)] = inode
	}
	return out, lines.Err()
}

// Holds reports whether process pid has the socket open.
func Holds(pid int, inode uint64) (bool, error) {
	fds, err := process.Descriptors(pid)
	if err != nil {
		return false, err
	}
	want := "socket:[" + strconv.FormatUint(inode, 10) + "]"
	for _, d := range fds {
		if d.Target == want {
			return true, nil
		}
	}
	return false, nil
}

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// respawnEvery is how long each generation of the respawning child lives.
const respawnEvery = 2 * time.Millisecond

// startChildren starts the kinds of -children.
func startChildren(o options) error {
	end := time.Now().Add(o.life)
	for kind := range strings.FieldsFuncSeq(o.children, func(r rune) bool { return r == ',' }) {
		listen := ""
		switch kind {
		case "plain", "setsid":
		case "fork":
			listen = o.childListen
		case "stopped", "respawn":
			if os.Getenv("STATION_ID") == "" {
				return fmt.Errorf("start a child: %s runs below a station only", kind)
			}
		default:
			return fmt.Errorf("start a child: no kind %q", kind)
		}
		if err := spawn(kind, o.deaf, end, listen); err != nil {
			return err
		}
	}
	return nil
}

// spawn starts this program as a child. /proc/self/exe is the program even where
// its path means nothing.
func spawn(kind string, deaf bool, end time.Time, listen string) error {
	cmd := exec.Command("/proc/self/exe", "child", kind, fmt.Sprint(deaf), end.Format(time.RFC3339Nano), listen)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: kind != "plain"}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start a child: %w", err)
	}
	if kind == "stopped" {
		return cmd.Process.Signal(syscall.SIGSTOP)
	}
	return cmd.Process.Release()
}

// child is what a descendant does until its time is over.
func child(args []string) int {
	if len(args) != 4 {
		return 2
	}
	kind, deaf, listen := args[0], args[1] == "true", args[3]
	end, err := time.Parse(time.RFC3339Nano, args[2])
	if err != nil {
		return 2
	}
	if deaf {
		signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	}
	if time.Now().After(end) {
		return 0
	}
	switch kind {
	case "fork": // and leave: the leaf belongs to pid 1
		if spawn("leaf", deaf, end, listen) != nil {
			return 1
		}
		return 0
	case "respawn":
		time.Sleep(respawnEvery)
		if spawn("respawn", deaf, end, "") != nil {
			return 1
		}
		return 0
	}
	if listen != "" {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return 1
		}
		defer l.Close()
	}
	time.Sleep(time.Until(end))
	return 0
}

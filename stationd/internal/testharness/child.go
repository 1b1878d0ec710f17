package main

import (
	"fmt"
	"io"
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
		if listen == "" {
			if err := spawn(kind, o.deaf, end, "", nil); err != nil {
				return err
			}
		} else if err := spawnListening(kind, o.deaf, end, listen); err != nil {
			return err
		}
	}
	return nil
}

// listens is what a child says on descriptor toldFD when it does.
const (
	listens = "listens"
	toldFD  = 3
)

// spawnListening starts a child whose leaf listens. One that does not ends the harness,
// with what it said: a test would wait for it in vain.
func spawnListening(kind string, deaf bool, end time.Time, listen string) error {
	heard, told, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start a child: %w", err)
	}
	err = spawn(kind, deaf, end, listen, told)
	told.Close()
	if err != nil {
		heard.Close()
		return err
	}
	go func() {
		defer heard.Close()
		said, err := io.ReadAll(heard) // until the leaf has told, or whoever should have has ended
		if err == nil && string(said) == listens {
			return
		}
		fmt.Fprintf(os.Stderr, "testharness: error: the child of kind %s does not listen: %s\n", kind, said)
		select {
		case exits <- 1:
		default:
		}
	}()
	return nil
}

// spawn starts this program as a child. /proc/self/exe is the program even where
// its path means nothing. told, if it is given, becomes its descriptor toldFD.
func spawn(kind string, deaf bool, end time.Time, listen string, told *os.File) error {
	cmd := exec.Command("/proc/self/exe", "child", kind, fmt.Sprint(deaf), end.Format(time.RFC3339Nano), listen)
	if told != nil {
		cmd.ExtraFiles = []*os.File{told}
	}
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
	var told *os.File
	if listen != "" {
		told = os.NewFile(toldFD, "told")
	}
	switch kind {
	case "fork": // and leave: the leaf belongs to pid 1
		if err := spawn("leaf", deaf, end, listen, told); err != nil {
			if told != nil {
				fmt.Fprint(told, err)
			}
			return 1
		}
		return 0
	case "respawn":
		time.Sleep(respawnEvery)
		if spawn("respawn", deaf, end, "", nil) != nil {
			return 1
		}
		return 0
	}
	if told != nil {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			fmt.Fprint(told, err)
			return 1
		}
		defer l.Close()
		fmt.Fprint(told, listens)
		told.Close()
	}
	time.Sleep(time.Until(end))
	return 0
}

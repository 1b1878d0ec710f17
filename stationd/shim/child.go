package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"
)

// signaled is added to the number of the signal that ended a command, as shells
// do it.
const signaled = 128

// follow starts the command with the descriptors of std and the environment of this
// process, passes signals on, reaps whatever ends below it, and gives the status
// of the command itself.
//
// As first process of a pid namespace this program inherits every orphan, so it
// waits for any child; the kernel ends all others when it returns. The wait blocks
// by pid -1 and not through os.Process: two waiters would steal from each other.
func follow(command []string, std []*os.File, signals <-chan os.Signal) (status int, err error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", command[0], err)
	}
	child, err := os.StartProcess(path, command, &os.ProcAttr{Files: std})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", command[0], err)
	}
	ended := make(chan struct{})
	var passing sync.WaitGroup
	passing.Go(func() {
		for {
			select {
			case s := <-signals:
				_ = child.Signal(s) // it may have ended just now
			case <-ended:
				return
			}
		}
	})
	defer passing.Wait()
	defer close(ended)
	for {
		var how unix.WaitStatus
		pid, err := unix.Wait4(-1, &how, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for %s: %w", command[0], err)
		case pid != child.Pid:
		case how.Signaled():
			return signaled + int(how.Signal()), nil
		default:
			return how.ExitStatus(), nil
		}
	}
}

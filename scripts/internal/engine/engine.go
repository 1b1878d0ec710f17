// Package engine runs a Docker engine for tests on a machine that has the
// programs but no daemon: a bare Debian in CI, without an init system.
//
// The engine has a private data root, exec root, socket and configuration, all
// below one new directory. Run starts it, says where it listens, and blocks; when
// its context ends it removes every container and network through the engine,
// stops the daemon and what that had started, each by its pid, and takes back
// what a daemon leaves behind on the machine: mounts, the bridge docker0, its
// firewall chains, forwarding. After that the machine is as it was.
//
// A second daemon in one network namespace would delete the first one's firewall
// chains when it starts, so Run refuses when another is there. A namespace of
// one's own is the way around: unshare -n.
package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	readyWait = 60 * time.Second // from start to the first answer
	stopWait  = 30 * time.Second // from SIGTERM to SIGKILL
	goneWait  = 10 * time.Second // for what was killed
	poll      = 20 * time.Millisecond
	logTail   = 4 << 10
)

// ErrOther says that a daemon already lives in this network namespace.
var ErrOther = errors.New("another Docker daemon lives in this network namespace, and a second one would remove its firewall chains; set DOCKER_HOST to it, or use a namespace: unshare -n")

// Run runs an engine until ctx ends; ready is called once with the value for
// DOCKER_HOST. It needs root.
func Run(ctx context.Context, ready func(host string)) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("start an engine: only root can")
	}
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		return errors.New("start an engine: dockerd is not installed (Debian: docker.io)")
	}
	if pid, err := other(); err != nil {
		return err
	} else if pid != 0 {
		return fmt.Errorf("start an engine: pid %d: %w", pid, ErrOther)
	}
	dir, err := os.MkdirTemp(base(), "dbe-") // a socket's path holds 107 bytes
	if err != nil {
		return fmt.Errorf("start an engine: %w", err)
	}
	before, err := remember()
	if err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	defer func() { err = errors.Join(err, before.restore(dir)) }()

	d, err := start(dockerd, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.stop()) }()
	if err := d.ready(ctx); ctx.Err() != nil {
		return nil // told to stop before it was ready
	} else if err != nil {
		return err
	}
	ready(d.host)
	select {
	case <-ctx.Done():
		return nil
	case <-d.ended:
		return fmt.Errorf("the engine ended by itself: %s", d.said())
	}
}

// base is a directory whose file system can carry the engine's layers: overlay
// cannot stand on overlay.
func base() string {
	const overlay = 0x794c7630
	candidates := []string{os.TempDir(), "/var/tmp", "/dev/shm"}
	for _, dir := range candidates {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type != overlay {
			return dir
		}
	}
	return candidates[0] // the engine then copies instead
}

// A daemon is a running dockerd.
type daemon struct {
	cmd    *exec.Cmd
	client *Client
	dir    string
	host   string
	ended  chan struct{} // closed when dockerd was waited for
}

func start(dockerd, dir string) (*daemon, error) {
	d := &daemon{dir: dir, host: "unix://" + filepath.Join(dir, "s"), ended: make(chan struct{})}
	var err error
	if d.client, err = NewClient(d.host); err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "daemon.json")
	if err := os.WriteFile(config, []byte("{}\n"), 0o600); err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	log, err := os.Create(d.log())
	if err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	defer log.Close()
	d.cmd = exec.Command(dockerd, "--config-file", config, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--host", d.host)
	// A terminal's Ctrl-C is not for the daemon: this program stops it in order.
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start an engine: %w", err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended is in its log
		close(d.ended)
	}()
	return d, nil
}

func (d *daemon) log() string { return filepath.Join(d.dir, "log") }

// said is the end of the daemon's log.
func (d *daemon) said() string {
	data, err := os.ReadFile(d.log())
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(data[max(0, len(data)-logTail):]))
}

func (d *daemon) ready(ctx context.Context) error {
	for end := time.Now().Add(readyWait); ; {
		if _, err := d.client.Call(ctx, http.MethodGet, "/_ping", nil); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.ended:
			return fmt.Errorf("the engine did not start: %s", d.said())
		case <-time.After(poll):
		}
		if time.Now().After(end) {
			return fmt.Errorf("the engine does not answer after %v: %s", readyWait, d.said())
		}
	}
}

// stop removes what is in the engine, so that the end is quick and leaves no
// bridge, and ends the daemon. Its containerd ends with it; what does not is ended
// by restore, which looks for processes with the engine's directory as argument.
func (d *daemon) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	removing := d.client.clear(ctx)
	select {
	case <-d.ended:
		return removing
	default:
	}
	err := d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(stopWait):
		err = errors.Join(err, d.cmd.Process.Kill())
		<-d.ended
	}
	return errors.Join(removing, err)
}

// other gives a dockerd in this network namespace, 0 when there is none.
func other() (pid int, err error) {
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return 0, fmt.Errorf("look for other daemons: %w", err)
	}
	for pid, args := range processes() {
		if filepath.Base(args[0]) != "dockerd" {
			continue
		}
		if theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && theirs == ours {
			return pid, nil
		}
	}
	return 0, nil
}

// processes are all processes with their arguments, kernel threads apart.
func processes() map[int][]string {
	found := map[int][]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return found
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if args := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00"); err == nil && args[0] != "" {
			found[pid] = args
		}
	}
	return found
}

// helpers are the programs that a daemon starts, by the beginning of their name.
var helpers = []string{"containerd", "runc", "docker-proxy"}

// killBelow ends every helper that has a path below dir among its arguments: the
// daemon's containerd, and the shim of each container.
func killBelow(dir string) error {
	for end := time.Now().Add(goneWait); ; time.Sleep(poll) {
		left := 0
		for pid, args := range processes() {
			helper := slices.ContainsFunc(helpers, func(name string) bool { return strings.HasPrefix(filepath.Base(args[0]), name) })
			if helper && slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, dir+"/") }) {
				left++
				_ = unix.Kill(pid, unix.SIGKILL) // it may be gone
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d processes of the engine below %s are still there", left, dir)
		}
	}
}

// run runs a tool of the system and gives what it says.
func run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out.String(), nil
}

// Needed says whether tests would find no engine: DOCKER_HOST names none, and none
// answers at the usual place.
func Needed(ctx context.Context) bool {
	if os.Getenv("DOCKER_HOST") != "" {
		return false
	}
	c, err := NewClient(DefaultHost)
	if err == nil {
		_, err = c.Call(ctx, http.MethodGet, "/_ping", nil)
	}
	return err != nil
}

// Serve runs an engine until in ends or ctx does, and writes one line to out when
// it is ready: an assignment that a shell evaluates. Where no engine is needed it
// writes an empty line, and waits all the same.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// The one goroutine that may outlive Serve: a read of stdin cannot be interrupted.
	go func() {
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	if !Needed(ctx) {
		_, err := fmt.Fprintln(out)
		<-ctx.Done()
		return err
	}
	var writing error
	err := Run(ctx, func(host string) {
		if _, writing = fmt.Fprintf(out, "export DOCKER_HOST=%s\n", host); writing != nil {
			cancel()
		}
	})
	return errors.Join(err, writing)
}

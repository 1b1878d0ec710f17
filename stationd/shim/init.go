package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/namespace"
	"drawbridge/stationd/internal/peer"
	"drawbridge/stationd/internal/relay"
	"drawbridge/stationd/internal/wire"
)

// Defaults and bounds of an attempt.
const (
	defaultOrphan = 120 * time.Second
	dutyEvery     = 50 * time.Millisecond // between two looks at the clock
	maxArtifact   = 512 << 20
)

// A shim is the first process of an attempt's namespaces. It lives as long as they do.
type shim struct {
	spec     wire.Spec
	birth    wire.Birth
	runtime  int // the runtime directory, writable
	fdinfo   int // of this process, in the /proc of who started it
	artifact *os.File

	stdout, stderr *ring

	mu         sync.Mutex
	launched   bool
	started    *wire.Started
	exit       *wire.End
	credential string
	current    *session  // of the stationd that is attached
	heard      time.Time // when that one said something last; in the monotonic clock
	alone      time.Time // since when none is attached; in the monotonic clock

	reaping sync.Mutex // held while a child is started, so that it is known before it is reaped
}

func initCommand(stdin io.Reader) *service.Command {
	return &service.Command{
		Name:  "init",
		Short: "Be the first process of an attempt's namespaces",
		Long:  "stationd starts it, in new namespaces, with the specification on stdin. It serves ctl.sock\nand in.sock in the runtime directory, and whatever runs beside it ends with it.",
		Run: func(ctx context.Context, _ []string) error {
			if os.Getpid() != 1 {
				return fault.New(fault.Usage, "init is for the first process of a pid namespace; stationd starts it")
			}
			var spec wire.Spec
			if err := wire.NewReader(stdin).Read(&spec); err != nil {
				return fault.New(fault.Usage, "read the specification: %w", err)
			}
			s, err := newShim(spec)
			if err != nil {
				return err
			}
			return s.run(ctx)
		},
	}
}

// newShim builds everything that the daemon must not change or see: sockets first,
// while the runtime directory is still in view.
func newShim(spec wire.Spec) (s *shim, err error) {
	if err := checkSpec(spec); err != nil {
		return nil, fault.New(fault.Usage, "specification: %w", err)
	}
	deafen()
	unix.Umask(0o022) // the starter's may be so narrow that the daemon could not enter what is made here
	if err := closeInherited(); err != nil {
		return nil, fmt.Errorf("close inherited descriptors: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("forbid tracing: %w", err)
	}
	s = &shim{spec: spec, stdout: newRing(), stderr: newRing(), alone: time.Now()}
	if err := s.identify(); err != nil {
		return nil, fmt.Errorf("identify the shim: %w", err)
	}
	if spec.Artifact != nil {
		if s.artifact, err = openArtifact(*spec.Artifact, spec.RunAs != nil); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func checkSpec(spec wire.Spec) error {
	for name, path := range map[string]string{"runtime": spec.Runtime, "workspace": spec.Workspace, "home": spec.Home, "temp": spec.Temp} {
		if real, err := filepath.EvalSymlinks(path); err != nil || !filepath.IsAbs(path) || real != path || path == "/" {
			return fmt.Errorf("%s: want an absolute directory without links", name)
		}
	}
	switch {
	case len(spec.Nonce) < 32:
		return errors.New("nonce: too short")
	case spec.Port < 1 || spec.Port > 65535:
		return errors.New("port: out of range")
	case spec.RunAs == nil && os.Getuid() == 0:
		return errors.New("run_as: root has to name another user")
	}
	return nil
}

// deafen makes every signal without effect that a process inside could send, the
// faults among them: a daemon may have the shim's uid. What the runtime needs of
// its own stays. SIGKILL from outside is how the shim is ended.
func deafen() {
	ignore := struct {
		handler           uintptr
		flags             uint64
		restorer, signals uintptr
	}{handler: 1} // SIG_IGN
	for sig := unix.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, 32, 33, 34:
			continue
		}
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0)
	}
}

// closeInherited closes what the starter left open by mistake. This program's own
// descriptors are all closed on exec, so those that are not came from elsewhere.
func closeInherited() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			_ = unix.Close(fd)
		}
	}
	return nil
}

// identify notes who this process is for whoever started it. The /proc seen here is
// still theirs.
func (s *shim) identify() error {
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(self)
	if err != nil {
		return err
	}
	info, err := process.Stat(pid)
	if err != nil {
		return err
	}
	inner, err := namespace.ID("self", "pid")
	if err != nil {
		return err
	}
	s.birth = wire.Birth{PID: pid, Start: info.Start, BootID: process.BootID(), Namespace: inner}
	s.fdinfo, err = unix.Open("/proc/self/fdinfo", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return err
}

// openArtifact opens the verified file once, and proves that it is the one. The
// name may lead elsewhere later; the descriptor does not.
func openArtifact(a wire.Artifact, other bool) (*os.File, error) {
	f, err := os.OpenFile(a.Path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open the artifact: %w", err)
	}
	fi, err := f.Stat()
	if err == nil && (!fi.Mode().IsRegular() || fi.Size() > maxArtifact) {
		err = errors.New("not a regular file of a sensible size")
	}
	sum := sha256.New()
	if err == nil {
		_, err = io.Copy(sum, f)
	}
	if err == nil && hex.EncodeToString(sum.Sum(nil)) != a.SHA256 {
		err = errors.New(wire.CodeIntegrity + ": its digest is not the one that was verified")
	}
	if err == nil && other { // another user executes it; the directories above stay closed
		err = f.Chmod(0o555)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open the artifact: %w", err)
	}
	return f, nil
}

// run sets the namespaces up and serves until the end. It returns only when it
// could not: the end is os.Exit, so that nothing of the namespace outlives it.
func (s *shim) run(ctx context.Context) error {
	control, err := listenUnix(filepath.Join(s.spec.Runtime, wire.Control))
	if err != nil {
		return err
	}
	in, err := listenUnix(filepath.Join(s.spec.Runtime, wire.In))
	if err != nil {
		return err
	}
	if s.runtime, err = buildView(s.spec); err != nil {
		return fmt.Errorf("build the daemon's view: %w", err)
	}
	if err := unix.Sethostname([]byte("station")); err != nil {
		return fmt.Errorf("name the host: %w", err)
	}
	if err := raiseLoopback(); err != nil {
		return fmt.Errorf("raise lo: %w", err)
	}
	serving := []*relay.Relay{relay.New(in, s.dialDaemon, s.outside)}
	if s.spec.Egress {
		// The directory is not in view any more; its descriptor still leads there.
		way, err := relay.Listen(wire.ProxyAddress, fmt.Sprintf("/proc/self/fd/%d/%s", s.runtime, wire.Egress))
		if err != nil {
			return err
		}
		serving = append(serving, way)
	}
	if err := s.write(wire.Nonce, []byte(s.spec.Nonce)); err != nil {
		return err
	}
	if err := s.writeJSON(wire.PID, s.birth); err != nil {
		return err
	}
	if err := quiet(); err != nil {
		return err
	}
	var running sync.WaitGroup
	for _, r := range serving {
		running.Go(func() { _ = r.Run(ctx) }) // a listener that fails leaves the rest as it is
	}
	running.Go(s.reap)
	running.Go(s.watchClock)
	running.Go(func() { s.serveControl(control) })
	running.Wait()
	return nil
}

func listenUnix(path string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", filepath.Base(path), err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// outside admits stationd and nobody from this pid namespace, whatever its uid: a
// peer that lives elsewhere has no pid here.
func (s *shim) outside(c net.Conn) bool {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return false
	}
	who, err := peer.Of(conn)
	return err == nil && who.PID == 0 && who.UID == s.spec.UID
}

func (s *shim) dialDaemon(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.spec.Port)))
}

// raiseLoopback sets lo up, the only interface here.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// quiet lets go of what the starter gave: stdin is read, and stderr has told all.
func quiet() error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("let go of stdin: %w", err)
	}
	defer unix.Close(fd)
	for std := range 3 {
		if err := unix.Dup3(fd, std, 0); err != nil {
			return fmt.Errorf("let go of descriptor %d: %w", std, err)
		}
	}
	return nil
}

// watchClock ends everything when the time is over, or when nobody attends
// (station §4.4, §4.5). With a stationd attached the TTL leaves it the time to stop
// the daemon its own way.
func (s *shim) watchClock() {
	orphan := defaultOrphan
	if s.spec.OrphanMS > 0 {
		orphan = time.Duration(s.spec.OrphanMS) * time.Millisecond
	}
	for range time.Tick(dutyEvery) {
		attended, alone := s.attended(orphan)
		deadline := s.spec.Deadline
		if attended {
			deadline += s.spec.GraceMS
		}
		switch {
		case s.spec.Deadline > 0 && process.BootTime() >= deadline:
			s.end(wire.ReasonTTL)
		case !attended && time.Since(alone) >= orphan:
			s.end(wire.ReasonOrphaned)
		}
	}
}

// Package supervise is stationd's side of the station shim: it starts the shim as a
// child in its own namespaces or finds a running one again, speaks the protocol of
// ctl.sock, ends everything below it and proves that nothing is left, judges what
// listens there, and finds out what containment this machine offers.
//
// A Client works over any connection, so it is the same on this machine and behind
// SSH. A Process is a shim of this machine. Neither decides why an attempt ends:
// they report, and do as they are told.
//
//	p, err := supervise.Start(ctx, options, spec) // returns once ctl.sock answers
//	started, err := p.Client().Launch(ctx, launch) // the daemon starts only now
//	for e := range p.Client().Events() { … }       // started, exit, output, dropped
//	cleanup, err := p.End(ctx)                     // SIGKILL to all, and the proof
//
// Nothing is signalled by a number alone: the shim is pinned by a pidfd and its
// start time compared (station §8 rule 6).
package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/namespace"
	"drawbridge/stationd/internal/peer"
	"drawbridge/stationd/internal/wire"
)

// Bounds of starting and ending.
const (
	startTime = 20 * time.Second      // until ctl.sock answers
	startPoll = 5 * time.Millisecond  // between two looks for it
	endTime   = 5 * time.Second       // for the proof of emptiness (station §12 step 5)
	endPoll   = 20 * time.Millisecond //
	maxSaid   = 4 << 10               // of the shim's stderr
	maxFile   = 64 << 10              // of a file in the runtime directory
)

// Containment kinds of a Process, strongest first (station §8).
const (
	KindPIDNamespaceCgroup = "pidns+cgroup2"
	KindPIDNamespace       = "pidns"
)

// ShimSHA256 is the digest of the station-shim that belongs to this program, set by
// the linker; "" accepts any.
var ShimSHA256 string

// Options say how shims are started on this machine.
type Options struct {
	Shim      string // absolute path of station-shim, as Shim gives it
	Cgroup    string // directory in which cgroups of attempts are made; "": none
	AllowRoot bool   // the spec says allow_root
}

// A Process is the shim of one attempt on this machine.
type Process struct {
	inc     process.Incarnation
	birth   wire.Birth
	runtime string
	space   *os.File // its pid namespace: while it is open, no other can get the number
	cgroup  string   // directory of the attempt's own cgroup, "" for none
	client  *Client
	cmd     *exec.Cmd     // nil when adopted
	done    chan struct{} // closed when the shim has ended
	said    *tail
	cancel  context.CancelFunc // ends follow
	alone   chan struct{}      // closed by Detach
	once    sync.Once
	watch   sync.WaitGroup
}

// Shim is the path of station-shim beside this program, checked against ShimSHA256.
func Shim() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fault.New(fault.ShimUnavailable, "find station-shim: %w", err)
	}
	path := filepath.Join(filepath.Dir(self), "station-shim")
	f, err := os.Open(path)
	if err != nil {
		return "", fault.New(fault.ShimUnavailable, "find station-shim: it is not beside stationd").WithHint("install station-shim in the same directory")
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fault.New(fault.ShimUnavailable, "read station-shim: %w", err)
	}
	if ShimSHA256 != "" && hex.EncodeToString(sum.Sum(nil)) != ShimSHA256 {
		return "", fault.New(fault.ShimUnavailable, "station-shim is not the one that was built with this stationd").WithHint("install both from one build")
	}
	return path, nil
}

// CheckUser refuses a daemon that would run as root (station §6.6).
func CheckUser(runAs *wire.User, allowRoot bool) error {
	switch {
	case runAs == nil && os.Geteuid() == 0:
		return fault.New(fault.RunAsRequired, "stationd runs as root and the spec has no run_as").WithHint(`say which user the daemon gets, for example "run_as": {"uid": 65534, "gid": 65534}`)
	case runAs != nil && runAs.UID == 0 && !allowRoot:
		return fault.New(fault.RootRefused, "the daemon would run as root").WithHint("choose another run_as, or allow_root")
	case runAs != nil && (runAs.UID < 0 || runAs.GID < 0):
		return fault.New(fault.RunAsRequired, "run_as has no usable ids")
	case runAs != nil && os.Geteuid() != 0 && (runAs.UID != os.Geteuid() || runAs.GID != os.Getegid()):
		return fault.New(fault.RunAsRequired, "only root can run a daemon as another user").WithHint("leave run_as out")
	}
	return nil
}

// Start makes the runtime directory's shim: born in new namespaces, and in a cgroup
// of its own where there is one. It returns once ctl.sock answers; the daemon does
// not run yet. When it fails, nothing is left running.
func Start(ctx context.Context, o Options, spec wire.Spec) (*Process, error) {
	if err := CheckUser(spec.RunAs, o.AllowRoot); err != nil {
		return nil, err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("encode the shim's spec: %w", err)
	}
	p := &Process{runtime: spec.Runtime, done: make(chan struct{}), alone: make(chan struct{}), said: &tail{}}
	cmd := exec.Command(o.Shim, "init")
	cmd.Args[0] = "station-shim"
	cmd.Env = []string{} // nothing of stationd's own
	cmd.Dir = "/"
	cmd.SysProcAttr = namespace.Attributes()
	if o.Cgroup != "" {
		group, err := makeCgroup(o.Cgroup, groupName(spec.Runtime))
		if err != nil {
			return nil, fault.New(fault.ShimFailed, "make the attempt's cgroup: %w", err)
		}
		defer group.Close()
		p.cgroup = group.Name()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(group.Fd())
	}
	in, write, read, out, err := pipes()
	if err != nil {
		p.dropCgroup()
		return nil, fmt.Errorf("start the shim: %w", err)
	}
	cmd.Stdin, cmd.Stderr = in, out // files, so that nothing here has to live as long as the shim
	err = cmd.Start()
	in.Close()
	out.Close()
	if err != nil {
		write.Close()
		read.Close()
		p.dropCgroup()
		return nil, fault.New(fault.ContainmentMissing, "start the shim in its namespaces: %w", err).WithHint("stationd doctor tries each kind of containment")
	}
	p.cmd = cmd
	p.inc, err = process.Of(cmd.Process.Pid) // its own until Wait, also when it ended already
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		write.Close()
		read.Close()
		p.dropCgroup()
		return nil, fault.New(fault.ShimFailed, "start the shim: %w", err)
	}
	p.watch.Go(func() { _, _ = io.Copy(p.said, read); read.Close() }) // until the shim closes it, before it answers
	p.watch.Go(func() { _, _ = write.Write(append(data, '\n')); write.Close() })
	p.follow()
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := p.connect(ctx, spec.Nonce); err != nil {
		err = p.failed(err)
		if _, ended := p.End(context.WithoutCancel(ctx)); ended != nil {
			err = errors.Join(err, ended)
		}
		return nil, err
	}
	return p, nil
}

// failed explains a start that did not succeed, with what the shim said.
func (p *Process) failed(err error) error {
	select {
	case <-p.done:
		p.watch.Wait() // then all that it said is here
	default:
	}
	if _, ok := fault.As(err); ok {
		return err
	}
	said := p.said.line()
	if said == "" {
		return fault.New(fault.ShimFailed, "start the shim: %w", err)
	}
	code := fault.ShimFailed
	if strings.Contains(said, wire.CodeIntegrity) {
		code = fault.IntegrityFailed
	}
	return fault.New(code, "start the shim: %s", said)
}

// Adopt finds the shim of a runtime directory that an earlier stationd started. It
// answers fault.ShimLost when that is not the process that was recorded, does not
// answer, or does not know the nonce; then nothing was signalled.
func Adopt(ctx context.Context, runtime string, recorded process.Incarnation) (*Process, error) {
	lost := func(format string, args ...any) error {
		return fault.New(fault.ShimLost, "adopt the shim %d: "+format, append([]any{recorded.PID}, args...)...)
	}
	if gone, known := recorded.Gone(); gone || !known {
		return nil, lost("it is gone, or is another process now")
	}
	nonce, err := readFile(filepath.Join(runtime, wire.Nonce))
	if err != nil {
		return nil, lost("%w", err)
	}
	p := &Process{inc: recorded, runtime: runtime, done: make(chan struct{}), alone: make(chan struct{}), said: &tail{}}
	if group, ok := findCgroup(recorded.PID, groupName(runtime)); ok {
		p.cgroup = group
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := p.dialClient(ctx, string(nonce)); err != nil {
		if p.client != nil {
			_ = p.client.Close()
		}
		return nil, lost("%w", err)
	}
	p.follow()
	return p, nil
}

// follow closes done when the shim has ended, until Detach.
func (p *Process) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.watch.Go(func() {
		for process.Wait(ctx, p.inc) != nil {
			select { // it has not ended: there was no descriptor left to look with
			case <-ctx.Done():
				return
			case <-time.After(endPoll):
			}
		}
		if p.cmd != nil {
			_ = p.cmd.Wait()
		} else {
			reapOwn(p.inc)
		}
		close(p.done)
	})
}

// reapOwn reaps a shim that has ended and that this process had started, detached and
// found again: nobody else can. What it finds ended is its own until it is reaped.
func reapOwn(inc process.Incarnation) {
	if info, err := process.Stat(inc.PID); err == nil && info.Start == inc.Start && info.PPID == os.Getpid() {
		_, _ = unix.Wait4(inc.PID, nil, unix.WNOHANG, nil)
	}
}

// pipes are the shim's stdin and stderr with their other ends.
func pipes() (in, write, read, out *os.File, err error) {
	if in, write, err = os.Pipe(); err != nil {
		return
	}
	if read, out, err = os.Pipe(); err != nil {
		in.Close()
		write.Close()
	}
	return
}

// Recorded reads shim.pid of a runtime directory: who the shim is, also when the
// stationd that started it had no time to write that down.
func Recorded(runtime string) (process.Incarnation, error) {
	data, err := readFile(filepath.Join(runtime, wire.PID))
	if err != nil {
		return process.Incarnation{}, err
	}
	var b wire.Birth
	if err := wire.Decode(data, &b); err != nil {
		return process.Incarnation{}, fmt.Errorf("read shim.pid: %w", err)
	}
	return process.Incarnation{PID: b.PID, BootID: b.BootID, Start: b.Start, Namespace: process.Self().Namespace}, nil
}

// Ended reads exit.json of a runtime directory; ok is false when there is none.
func Ended(runtime string) (end wire.End, ok bool, err error) {
	data, err := readFile(filepath.Join(runtime, wire.Exit))
	if errors.Is(err, os.ErrNotExist) {
		return end, false, nil
	}
	if err == nil {
		err = wire.Decode(data, &end)
	}
	if err != nil {
		return end, false, fmt.Errorf("read exit.json: %w", err)
	}
	return end, true, nil
}

// readFile reads a small regular file without following a link.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("read %s: too large", filepath.Base(path))
	}
	return data, err
}

// connect waits until the shim answers, or ends.
func (p *Process) connect(ctx context.Context, nonce string) error {
	t := time.NewTicker(startPoll)
	defer t.Stop()
	for {
		err := p.dialClient(ctx, nonce)
		if err == nil {
			return nil
		}
		// Until it answers, it may still fail to build what the daemon sees.
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) && !fault.Is(err, fault.ShimLost) {
			return err
		}
		select {
		case <-p.done:
			return errors.New("it ended before it answered")
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-t.C:
		}
	}
}

// dialClient connects to ctl.sock and checks that the listener is the shim.
func (p *Process) dialClient(ctx context.Context, nonce string) error {
	conn, err := p.Dial(ctx, wire.Control)
	if err != nil {
		return err
	}
	client, err := Connect(ctx, conn, nonce)
	if err != nil {
		return err
	}
	status, err := client.Status(ctx)
	if err != nil {
		_ = client.Close()
		return err
	}
	p.client, p.birth = client, status.Birth
	return p.pin()
}

// pin keeps the shim's pid namespace, and checks that it is the one that the shim
// named. The number of a namespace is given away again as soon as nobody has it.
func (p *Process) pin() error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", p.inc.PID))
	if err != nil {
		return fmt.Errorf("pin the shim's namespace: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino != p.birth.Namespace {
		f.Close()
		return errors.New("pin the shim's namespace: it is another than the shim says")
	}
	p.space = f
	return nil
}

// unpin lets the number go.
func (p *Process) unpin() {
	if p.space != nil {
		p.space.Close()
		p.space = nil
	}
}

// Dial connects to a socket of the runtime directory: wire.In, or wire.Control. The
// one who listens has to be the shim.
func (p *Process) Dial(ctx context.Context, name string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.runtime, name))
	if err != nil {
		return nil, err
	}
	who, err := peer.Of(conn.(*net.UnixConn))
	if err == nil && who.PID != p.inc.PID {
		err = fmt.Errorf("dial %s: process %d listens there, not the shim %d", name, who.PID, p.inc.PID)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// Client is the connection to ctl.sock. It ends when the shim does; Adopt makes
// another.
func (p *Process) Client() *Client { return p.client }

// Incarnation names the shim.
func (p *Process) Incarnation() process.Incarnation { return p.inc }

// Birth is what the shim says of itself.
func (p *Process) Birth() wire.Birth { return p.birth }

// Done is closed when the shim has ended, and with it everything in its namespaces.
func (p *Process) Done() <-chan struct{} { return p.done }

// Containment is the kind that holds the daemon.
func (p *Process) Containment() string {
	if p.cgroup != "" {
		return KindPIDNamespaceCgroup
	}
	return KindPIDNamespace
}

// Detach leaves the shim running, to its orphan rule or to the next stationd.
func (p *Process) Detach() error {
	err := p.client.Close()
	p.once.Do(func() { close(p.alone) })
	p.cancel()
	p.watch.Wait()
	p.unpin()
	return err
}

// tail keeps the end of what the shim says on stderr.
type tail struct {
	mu   sync.Mutex
	data []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - maxSaid; over > 0 {
		t.data = t.data[over:]
	}
	return len(p), nil
}

// line is what was said, on one line.
func (t *tail) line() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fault.CleanLine(strings.TrimPrefix(strings.TrimSpace(string(t.data)), "station-shim: error: "))
}

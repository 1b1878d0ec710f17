package place

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/artifact"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/tree"
	"drawbridge/stationd/internal/wire"
)

const (
	harnessName = "artifact"
	maxHarness  = 512 << 20
	maxNonce    = 256
	maxRequests = 32 // at once
	maxWait     = 10 * time.Second
)

// Serve does what requests ask, until there are no more, and answers each when it is
// done. One with content behind it is the last.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	var writing sync.Mutex
	answer := func(q Request, in io.Reader) error {
		a, err := q.serve(ctx, in)
		if err != nil {
			a.Error = &wire.Error{Code: string(fault.CodeOf(err)), Message: fault.CleanLine(err.Error())}
		}
		a.ID = q.ID
		writing.Lock()
		defer writing.Unlock()
		return json.NewEncoder(out).Encode(a)
	}
	r := bufio.NewReaderSize(in, wire.MaxLine)
	room := make(chan struct{}, maxRequests)
	var work sync.WaitGroup
	defer work.Wait()
	for n := 0; ; n++ {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 && n > 0 {
			return nil
		}
		var q Request
		if err == nil {
			err = wire.Decode(line[:len(line)-1], &q)
		}
		if err != nil {
			return fault.New(fault.Usage, "read the request: %w", err)
		}
		if q.Op == OpUnpack || q.Op == OpPut {
			return answer(q, r)
		}
		room <- struct{}{}
		work.Go(func() {
			defer func() { <-room }()
			_ = answer(q, nil) // who asked may have gone
		})
	}
}

func (q Request) serve(ctx context.Context, in io.Reader) (a Answer, err error) {
	switch q.Op {
	case OpAbout:
		a.BootID = process.BootID()
		a.Addresses, err = Addresses()
		return a, err
	case OpAlive, OpKill:
		if q.Incarnation == nil {
			return a, fault.New(fault.Usage, "%s: no process", q.Op)
		}
	case OpIdentify:
		a.SHA256, err = FileSHA256(q.Path)
		return a, err
	}
	p, err := Open(q.Base, q.Lease)
	if err != nil {
		return a, err
	}
	switch q.Op {
	case OpMake:
		a.Path, a.BootID, a.Layout = p.dir, process.BootID(), &p.layout
		return a, p.Make()
	case OpCheck:
		a.BootID, a.Layout = process.BootID(), &p.layout
		return a, p.exists()
	case OpPrepare:
		return a, p.Prepare(q.User)
	case OpUnpack:
		return a, p.unpack(in, q.SHA256, q.User)
	case OpPut:
		a.Path, err = p.put(in, q.SHA256)
	case OpStart:
		a.Birth, err = p.start(ctx, q)
	case OpNonce:
		a.Nonce, err = p.nonce()
	case OpRecorded:
		var inc process.Incarnation
		if inc, err = supervise.Recorded(p.layout.Runtime); err == nil {
			a.Incarnation = &inc
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	case OpEnded:
		var end wire.End
		var ok bool
		if end, ok, err = supervise.Ended(p.layout.Runtime); ok {
			a.End = &end
		}
	case OpAlive:
		if wait := min(time.Duration(q.WaitMS)*time.Millisecond, maxWait); wait > 0 {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			_ = process.Wait(ctx, Here(*q.Incarnation)) // what came of it is asked anyway
		}
		a.Alive, err = Alive(*q.Incarnation)
	case OpKill:
		var c supervise.Cleanup
		c, err = p.Kill(ctx, supervise.Options{}, *q.Incarnation)
		a.Cleanup = &Cleanup{c.Signalled, c.Took.Milliseconds(), c.Left}
	case OpUnlink:
		return a, p.unlink(q.Path)
	case OpArtifacts:
		var m artifact.Manifest
		m, err = artifact.List(p.layout.Workspace, q.Paths, q.MaxBytes)
		a.Manifest = &m
	case OpWipe:
		return a, p.Wipe()
	case OpRelease:
		return a, p.Release()
	default:
		err = fault.New(fault.Usage, "lease: no op %q", fault.CleanLine(q.Op))
	}
	return a, err
}

// exists fails when the lease was never made, or released.
func (p *Place) exists() error {
	if _, err := os.Lstat(filepath.Join(p.dir, lockName)); err != nil {
		return unavailable("look at the lease %s: %w", p.id, cause(err))
	}
	return nil
}

// unpack fills the empty workspace, proves that it is what was sent, and gives it to
// its user.
func (p *Place) unpack(in io.Reader, want string, user *wire.User) error {
	if err := tree.Unpack(in, p.layout.Workspace); err != nil {
		return unavailable("%w", cause(err))
	}
	got, err := tree.Of(p.layout.Workspace)
	if err != nil {
		return unavailable("%w", cause(err))
	}
	if got != want {
		return fault.New(fault.IntegrityFailed, "unpack the workspace: what arrived is not what was sent")
	}
	return p.Give(user)
}

// put writes the harness, once, and proves that it is what was sent.
func (p *Place) put(in io.Reader, want string) (string, error) {
	path := filepath.Join(p.layout.Harness, harnessName)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", unavailable("put the harness: %w", cause(err))
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, sum), io.LimitReader(in, maxHarness+1))
	if err == nil {
		err = f.Chmod(0o500)
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil && (n > maxHarness || hex.EncodeToString(sum.Sum(nil)) != want) {
		err = fault.New(fault.IntegrityFailed, "put the harness: what arrived is not what was sent")
	}
	if err != nil {
		_ = os.Remove(path)
		if _, ok := fault.As(err); ok {
			return "", err
		}
		return "", unavailable("put the harness: %w", cause(err))
	}
	return path, nil
}

// start completes a specification with what is this machine's, and starts its shim,
// which is this program and outlives it.
func (p *Place) start(ctx context.Context, q Request) (*wire.Birth, error) {
	if q.Spec == nil {
		return nil, fault.New(fault.Usage, "start: no specification")
	}
	spec := p.Complete(*q.Spec)
	spec.Hide = []string{filepath.Dir(p.dir), filepath.Dir(p.layout.Runtime)}
	if q.LeftMS > 0 {
		spec.Deadline = process.BootTime() + q.LeftMS
	}
	shim, err := supervise.Start(ctx, supervise.Options{Shim: "/proc/self/exe", AllowRoot: q.AllowRoot}, spec)
	if err != nil {
		return nil, err
	}
	birth := shim.Birth()
	return &birth, shim.Detach()
}

// Complete sets what of a shim's specification is the place's own.
func (p *Place) Complete(spec wire.Spec) wire.Spec {
	l := p.layout
	spec.Runtime, spec.UID, spec.Workspace, spec.Home, spec.Temp = l.Runtime, os.Geteuid(), l.Workspace, l.Home, l.Temp
	return spec
}

// TimeLeft is how long a deadline of this machine's boot time is away, for the clock
// of another; 0 is none, and one that passed is a moment away.
func TimeLeft(deadline int64) time.Duration {
	if deadline == 0 {
		return 0
	}
	return max(time.Duration(deadline-process.BootTime())*time.Millisecond, time.Millisecond)
}

// nonce reads the shim's, for a stationd that starts anew.
func (p *Place) nonce() (string, error) {
	f, err := os.OpenFile(filepath.Join(p.layout.Runtime, wire.Nonce), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", fault.New(fault.ShimLost, "read the shim's nonce: %w", cause(err))
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxNonce))
	if err != nil {
		return "", fault.New(fault.ShimLost, "read the shim's nonce: %w", cause(err))
	}
	return string(data), nil
}

// unlink removes a socket of the runtime directory, so that a new one can be made.
func (p *Place) unlink(name string) error {
	path, err := p.socket(name)
	if err == nil {
		if err = os.Remove(path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("remove the socket: %w", cause(err))
	}
	return nil
}

package lease

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/process"
	"drawbridge/stationd/internal/artifact"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/supervise"
	"drawbridge/stationd/internal/tree"
	"drawbridge/stationd/internal/wire"
)

func gone(format string, args ...any) *fault.Error {
	return fault.New(fault.LeaseUnavailable, format, args...)
}

// sshMachine is a lease of another machine.
type sshMachine struct {
	provider *SSH
	id       string
	layout   Layout
	scratch  string // of this machine, for what is on its way
	runAs    *wire.User

	ended     context.Context // done with Close
	end       context.CancelFunc
	listeners sync.WaitGroup
}

var _ Machine = (*sshMachine)(nil)

func (m *sshMachine) request(op string) place.Request { return m.provider.request(op, m.id) }

func (m *sshMachine) do(ctx context.Context, q place.Request) (place.Answer, error) {
	return m.provider.link.do(ctx, q, nil)
}

func (m *sshMachine) BootID(ctx context.Context) (string, error) {
	a, err := m.do(ctx, m.request(place.OpAbout))
	return a.BootID, err
}

func (m *sshMachine) Layout() Layout                        { return m.layout }
func (m *sshMachine) Network() egress.Enforcement           { return egress.Netns }
func (m *sshMachine) FreePort(context.Context) (int, error) { return freePort() }

func (m *sshMachine) Addresses(ctx context.Context) ([]netip.Addr, error) {
	a, err := m.do(ctx, m.request(place.OpAbout))
	return a.Addresses, err
}

func (m *sshMachine) Prepare(ctx context.Context, runAs *launch.User) error {
	m.runAs = user(runAs)
	q := m.request(place.OpPrepare)
	q.User = m.runAs
	_, err := m.do(ctx, q)
	return err
}

// pass gives f an empty directory of this machine, which goes with it.
func (m *sshMachine) pass(name string, f func(dir string) error) error {
	dir := filepath.Join(m.scratch, name)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return gone("use the lease %s: there is no room for it here", m.id)
	}
	defer os.RemoveAll(m.scratch)
	return f(dir)
}

func (m *sshMachine) Sync(ctx context.Context, w launch.Workspace) (g launch.Grounding, err error) {
	err = m.pass("work", func(dir string) error {
		if g, err = launch.Sync(ctx, w, dir); err != nil {
			return err
		}
		q := m.request(place.OpUnpack)
		q.SHA256, q.User = g.TreeDigest, m.runAs
		in, out := io.Pipe()
		packed := make(chan error, 1)
		go func() { packed <- tree.Pack(ctx, dir, out); out.Close() }()
		_, err := m.provider.link.do(ctx, q, in)
		_ = in.CloseWithError(io.ErrClosedPipe) // nobody reads any more
		if failed := <-packed; err == nil && failed != nil {
			err = gone("sync the workspace: %w", failed)
		}
		return err
	})
	return g, err
}

func (m *sshMachine) Obtain(ctx context.Context, a launch.Artifact) (got launch.Obtained, err error) {
	err = m.pass("harness", func(dir string) error {
		if got, err = launch.Obtain(ctx, a, dir, nil); err != nil {
			return err
		}
		f, err := os.Open(got.Path)
		if err != nil {
			return gone("send the harness: %w", err)
		}
		defer f.Close()
		q := m.request(place.OpPut)
		q.SHA256 = got.SHA256
		answer, err := m.provider.link.do(ctx, q, f)
		got.Path = answer.Path
		return err
	})
	return got, err
}

func (m *sshMachine) FileSHA256(ctx context.Context, program string) (string, error) {
	q := m.request(place.OpIdentify)
	q.Path = program
	a, err := m.do(ctx, q)
	return a.SHA256, err
}

func (m *sshMachine) Recorded(ctx context.Context) (process.Incarnation, error) {
	a, err := m.do(ctx, m.request(place.OpRecorded))
	switch {
	case err != nil:
		return process.Incarnation{}, err
	case a.Incarnation == nil:
		return process.Incarnation{}, fs.ErrNotExist
	}
	return *a.Incarnation, nil
}

func (m *sshMachine) Ended(ctx context.Context) (wire.End, bool, error) {
	a, err := m.do(ctx, m.request(place.OpEnded))
	if err != nil || a.End == nil {
		return wire.End{}, false, err
	}
	return *a.End, true, nil
}

func (m *sshMachine) Alive(ctx context.Context, inc process.Incarnation) (bool, error) {
	return m.alive(ctx, inc, 0)
}

// alive waits there, as long as the process lives.
func (m *sshMachine) alive(ctx context.Context, inc process.Incarnation, wait time.Duration) (bool, error) {
	q := m.request(place.OpAlive)
	q.Incarnation, q.WaitMS = &inc, wait.Milliseconds()
	a, err := m.do(ctx, q)
	return a.Alive, err
}

func (m *sshMachine) Kill(ctx context.Context, inc process.Incarnation) (supervise.Cleanup, error) {
	q := m.request(place.OpKill)
	q.Incarnation = &inc
	a, err := m.do(ctx, q)
	if a.Cleanup == nil {
		return supervise.Cleanup{}, err
	}
	return a.Cleanup.Result(), err
}

func (m *sshMachine) Artifacts(ctx context.Context, paths []string, maxBytes int64) (artifact.Manifest, error) {
	q := m.request(place.OpArtifacts)
	q.Paths, q.MaxBytes = paths, maxBytes
	a, err := m.do(ctx, q)
	if err != nil || a.Manifest == nil {
		return artifact.Manifest{}, err
	}
	return *a.Manifest, nil
}

func (m *sshMachine) Wipe(ctx context.Context) error {
	_, err := m.do(ctx, m.request(place.OpWipe))
	return err
}

// Close ends the machine's listeners.
func (m *sshMachine) Close() error {
	m.end()
	m.listeners.Wait()
	return nil
}

// dial connects to a socket of the runtime directory.
func (m *sshMachine) dial(ctx context.Context, name string) (net.Conn, error) {
	line, err := m.provider.link.get(ctx)
	if err != nil {
		return nil, err
	}
	conn, err := line.client.DialContext(ctx, "unix", path.Join(m.layout.Runtime, name))
	if err != nil {
		return nil, m.provider.link.unreachable(err)
	}
	return m.provider.link.local(conn)
}

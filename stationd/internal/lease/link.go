package lease

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/place"
)

// Bounds of a connection.
const (
	dialTime    = 10 * time.Second // connect, and again for the handshake
	aliveEvery  = 5 * time.Second  // between two questions whether the machine is there
	aliveTime   = 15 * time.Second // for the answer
	redialLeast = time.Second      // pauses between two tries (station §5.3)
	redialMost  = 15 * time.Second
	maxSaid     = 4 << 10
)

// errClosed ends what waits for a connection.
var errClosed = fmt.Errorf("the provider is closed: %w", net.ErrClosed)

// A link is the one connection to a machine, made anew when it is needed.
type link struct {
	remote Remote
	shim   string // of this machine; it is copied there
	turn   chan struct{}
	ended  context.Context
	end    context.CancelFunc
	work   sync.WaitGroup

	line *line // of whoever has the turn

	every, within time.Duration // aliveEvery and aliveTime

	mu    sync.Mutex
	fresh chan struct{} // closed with the next connection
}

func newLink(r Remote, shim string) *link {
	l := &link{remote: r, shim: shim, turn: make(chan struct{}, 1), every: aliveEvery, within: aliveTime, fresh: make(chan struct{})}
	l.ended, l.end = context.WithCancel(context.Background())
	return l
}

// get gives the connection. It tries once.
func (l *link) get(ctx context.Context) (*line, error) {
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, l.unreachable(context.Cause(ctx))
	}
	if l.ended.Err() != nil {
		return nil, l.unreachable(errClosed)
	}
	if l.line != nil {
		select {
		case <-l.line.gone:
			l.line = nil
		default:
			return l.line, nil
		}
	}
	client, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	line := &line{client: client, gone: l.keep(client), waiting: map[int64]chan place.Answer{}}
	if line.binary, err = l.install(ctx, client); err == nil {
		err = l.attend(line)
	}
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	l.line = line
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.fresh)
	l.fresh = make(chan struct{})
	return line, nil
}

// dial connects, proves the machine's key and this side's user.
func (l *link) dial(ctx context.Context) (*ssh.Client, error) {
	key, err := l.remote.hostKey()
	if err != nil {
		return nil, invalid("provider %s: %w", l.remote.Name, err)
	}
	methods, done, err := l.auth()
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.remote.address())
	if err != nil {
		return nil, l.unreachable(err)
	}
	other := false
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, channels, requests, err := ssh.NewClientConn(conn, l.remote.address(), &ssh.ClientConfig{
		User: l.remote.User, Auth: methods, HostKeyAlgorithms: keyAlgorithms(key),
		HostKeyCallback: func(_ string, _ net.Addr, shown ssh.PublicKey) error {
			if other = !bytes.Equal(shown.Marshal(), key.Marshal()); other {
				return errors.New("the host key is another")
			}
			return nil
		},
	})
	if !stop() && err == nil {
		err = context.Cause(ctx)
		_ = c.Close()
	}
	if err == nil {
		return ssh.NewClient(c, channels, requests), nil
	}
	_ = conn.Close()
	if negotiation, ok := errors.AsType[*ssh.AlgorithmNegotiationError](err); other || ok && negotiation.What == "host key" {
		return nil, fault.New(fault.HostKeyRefused, "connect to the provider %s: the machine does not have the host key that is pinned", l.remote.Name).
			WithHint("find out why; only if the machine has a new key, put that into the providers file")
	}
	return nil, l.unreachable(err)
}

// auth is how this side proves who it is; done follows the handshake.
func (l *link) auth() (methods []ssh.AuthMethod, done func(), err error) {
	if l.remote.Agent != "" {
		conn, err := net.DialTimeout("unix", l.remote.Agent, dialTime)
		if err != nil {
			return nil, nil, l.unreachable(fmt.Errorf("reach the agent: %w", err))
		}
		return []ssh.AuthMethod{ssh.PublicKeysCallback(agent.NewClient(conn).Signers)}, func() { _ = conn.Close() }, nil
	}
	signer, err := l.remote.signer()
	if err != nil {
		return nil, nil, l.unreachable(err).WithHint(keyHint)
	}
	return []ssh.AuthMethod{ssh.PublicKeys(signer)}, func() {}, nil
}

func (l *link) unreachable(err error) *fault.Error {
	return fault.New(fault.ProviderUnreachable, "reach the machine of the provider %s: %w", l.remote.Name, err)
}

// keep asks from time to time whether the machine is still there, and ends the
// connection when it is not.
func (l *link) keep(client *ssh.Client) <-chan struct{} {
	gone := make(chan struct{})
	l.work.Go(func() { _ = client.Wait(); close(gone) })
	l.work.Go(func() {
		t := time.NewTicker(l.every)
		defer t.Stop()
		for {
			select {
			case <-gone:
				return
			case <-l.ended.Done():
				_ = client.Close()
				return
			case <-t.C:
			}
			late := time.AfterFunc(l.within, func() { _ = client.Close() })
			_, _, err := client.SendRequest("keepalive@openssh.com", true, nil)
			late.Stop()
			if err != nil {
				_ = client.Close()
			}
		}
	})
	return gone
}

// close ends the connection and all that waits for one.
func (l *link) close() {
	l.end()
	l.turn <- struct{}{} // nobody dials any more
	if l.line != nil {
		_ = l.line.client.Close()
	}
	<-l.turn
	l.work.Wait()
}

// pause waits before the n-th try, the first of which is at once, or until somebody
// else has made a connection.
func (l *link) pause(ctx context.Context, n int) error {
	if n == 0 {
		return ctx.Err()
	}
	l.mu.Lock()
	fresh := l.fresh
	l.mu.Unlock()
	t := time.NewTimer(min(redialLeast<<min(n-1, 10), redialMost))
	defer t.Stop()
	select {
	case <-t.C:
	case <-fresh:
	case <-ctx.Done():
	}
	return ctx.Err()
}

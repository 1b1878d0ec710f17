package lease

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/place"
	"drawbridge/stationd/internal/wire"
)

// A line is one connection of a link, with the shim's command lease at its far end,
// which is started once: login shells can be slow.
type line struct {
	client *ssh.Client
	gone   <-chan struct{} // closed when the connection has ended
	binary string          // of the shim there

	writing sync.Mutex
	in      io.Writer // of lease

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan place.Answer
	err     error // why there are no answers any more
}

func (l *line) command() string { return l.binary + " lease" }

// attend starts lease there, and hands its answers out until it ends; then the
// connection is of no use any more.
func (l *link) attend(far *line) error {
	session, err := far.client.NewSession()
	if err != nil {
		return l.unreachable(err)
	}
	said := &bounded{most: maxSaid}
	session.Stderr = said
	out, err := session.StdoutPipe()
	if err == nil {
		far.in, err = session.StdinPipe()
	}
	if err == nil {
		err = session.Start(far.command())
	}
	if err != nil {
		return l.unreachable(err)
	}
	l.work.Go(func() {
		err := far.receive(out)
		ended := session.Wait()
		_ = far.client.Close()
		if _, ok := errors.AsType[*ssh.ExitError](ended); ok {
			err = fmt.Errorf("the shim there ended: %w: %s", ended, fault.CleanLine(said.String()))
		}
		far.fail(err)
	})
	return nil
}

func (l *line) receive(out io.Reader) error {
	s := bufio.NewScanner(out)
	s.Buffer(nil, place.MaxAnswer)
	for s.Scan() {
		a, err := place.Read(s.Bytes())
		if err != nil {
			return err
		}
		l.mu.Lock()
		if answer, ok := l.waiting[a.ID]; ok {
			delete(l.waiting, a.ID)
			answer <- a // it has room for one
		}
		l.mu.Unlock()
	}
	return errors.Join(s.Err(), io.ErrUnexpectedEOF)
}

func (l *line) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = err
	for id, answer := range l.waiting {
		close(answer)
		delete(l.waiting, id)
	}
}

// ask sends a request and waits for its answer.
func (l *line) ask(ctx context.Context, q place.Request) (place.Answer, error) {
	answer := make(chan place.Answer, 1)
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return place.Answer{}, l.err
	}
	l.last++
	q.ID = l.last
	l.waiting[q.ID] = answer
	l.mu.Unlock()
	l.writing.Lock()
	err := wire.Write(l.in, q)
	l.writing.Unlock()
	if err == nil {
		select {
		case a, ok := <-answer:
			if ok {
				return a, nil
			}
			err = io.ErrUnexpectedEOF
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, q.ID)
	return place.Answer{}, err
}

// do lets the shim there do one thing. content follows the request, when there is
// some.
func (l *link) do(ctx context.Context, q place.Request, content io.Reader) (place.Answer, error) {
	line, err := l.get(ctx)
	if err != nil {
		return place.Answer{}, err
	}
	if content == nil {
		a, err := line.ask(ctx, q)
		if err != nil {
			return a, l.unreachable(err)
		}
		return a, a.Fault()
	}
	head, err := json.Marshal(q)
	if err != nil {
		return place.Answer{}, fmt.Errorf("encode the request: %w", err)
	}
	out, err := l.execute(ctx, line.client, line.command(), io.MultiReader(bytes.NewReader(append(head, '\n')), content))
	if err != nil {
		return place.Answer{}, err
	}
	a, err := place.Read(out)
	if err != nil {
		return place.Answer{}, fault.New(fault.LeaseUnavailable, "%s: the answer of the machine of the provider %s: %w", q.Op, l.remote.Name, err)
	}
	return a, a.Fault()
}

// execute runs a command there and gives what it prints.
func (l *link) execute(ctx context.Context, client *ssh.Client, command string, in io.Reader) ([]byte, error) {
	session, err := client.NewSession()
	if err != nil {
		return nil, l.unreachable(err)
	}
	defer session.Close()
	out, said := &bounded{most: place.MaxAnswer}, &bounded{most: maxSaid}
	session.Stdin, session.Stdout, session.Stderr = in, out, said
	ended := make(chan error, 1)
	l.work.Go(func() { ended <- session.Run(command) }) // with the connection at the latest
	select {
	case err = <-ended:
	case <-ctx.Done():
		return nil, l.unreachable(context.Cause(ctx))
	}
	if exit, ok := errors.AsType[*ssh.ExitError](err); ok {
		return nil, fault.New(fault.LeaseUnavailable, "the machine of the provider %s: status %d: %s", l.remote.Name, exit.ExitStatus(), fault.CleanLine(said.String()))
	}
	if err != nil {
		return nil, l.unreachable(err)
	}
	return out.data, nil
}

// bounded keeps the beginning of what is written.
type bounded struct {
	data []byte
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	b.data = append(b.data, p[:min(len(p), b.most-len(b.data))]...)
	return len(p), nil
}

func (b *bounded) String() string { return strings.TrimSpace(string(b.data)) }

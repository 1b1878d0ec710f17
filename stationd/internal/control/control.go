// Package control is stationd's control API: HTTP/1.1 over one unix socket in the
// runtime directory, and the client that the commands use (station §15). No route
// of it exists on TCP.
//
// Whoever connects is known by the uid that the kernel noted, and is a principal of
// the Store or nobody. A peer in another network namespace is a daemon that got hold
// of the socket, whatever its uid, and is hung up on (station §6.7). What a principal
// may do follows from its role on the station, asked for with every request: owners
// and managers control it, viewers see status and evidence, owners give roles. A
// station on which a principal has no role does not exist for it.
//
// Bodies are one strict JSON document of at most 64 KiB; answers are JSON, an event
// stream for logs, and never stored. A failure is {"error","message","hint"} with
// the status of its code. Bodies, tickets and secrets are never logged.
//
// Run serves only while this stationd acts: before that, and while another one of
// the host does, the socket is not its own. It returns when every request has ended.
package control

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
	"drawbridge/stationd/internal/station"
)

// Socket is the name of the control socket in the runtime directory.
const Socket = "stationd.sock"

// Bounds of the API.
const (
	MaxBody        = 64 << 10
	maxHeaders     = 16 << 10
	maxConnections = 128
	maxStations    = 200 // of a list
	eventPage      = 500 // events that an export reads at once

	readWait  = 10 * time.Second // for the header, and for the body
	writeWait = 15 * time.Second // for each piece of an answer
	keepAlive = 30 * time.Second
	stopWait  = 5 * time.Second // for requests in flight when the server stops
	probeWait = time.Second     // for whoever holds the socket already
	leaveWait = 3 * time.Second // for one that has stopped acting to let it go
	leavePoll = 50 * time.Millisecond
	longPoll  = 25 * time.Second
	slowPoll  = time.Second // behind the doorbell
	heartbeat = 15 * time.Second
)

// Manager is what acts on stations; *station.Manager is the one.
type Manager interface {
	Lease() *store.Lease
	Start(ctx context.Context, by store.Principal, q station.StartRequest) (station.Started, error)
	Replace(ctx context.Context, by store.Principal, stationID string) (station.Started, error)
	Stop(ctx context.Context, by store.Principal, stationID string) (store.StationAttempt, error)
	// Logs hands the redacted output of an attempt, 0 for the newest, to emit in order:
	// what there is, or with follow all until it has ended. stream is stdout or stderr,
	// and "" for a mark of what is left out. not_found when nothing is kept.
	Logs(ctx context.Context, stationID string, attempt int64, follow bool, emit func(stream string, text []byte) error) error
	ReleaseLease(ctx context.Context, by store.Principal, leaseID string, force bool, reason string) (store.Workspace, error)
}

// Options configures New. All but Redactor and Log are required.
type Options struct {
	RuntimeDir string // private; holds the socket
	Store      *store.Store
	Bell       *store.Doorbell
	Manager    Manager
	GatePort   int // in URLs of bridges; 0: the gate has no TCP port
	Redactor   *redact.Redactor
	Log        *slog.Logger
}

// Server serves the control socket of one stationd.
type Server struct {
	opts  Options
	ended context.Context // of those who wait or follow: it ends when Run stops
	end   context.CancelFunc
}

// New makes a Server.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Redactor == nil {
		o.Redactor = redact.New(redact.Options{})
	}
	s := &Server{opts: o}
	s.ended, s.end = context.WithCancel(context.Background())
	return s
}

// Run takes the socket, calls ready, and serves until ctx is done.
func (s *Server) Run(ctx context.Context, ready func()) error {
	path := filepath.Join(s.opts.RuntimeDir, Socket)
	l, err := listen(ctx, path)
	switch {
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		return err
	}
	defer l.remove()
	server := &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: readWait,
		IdleTimeout:       keepAlive,
		MaxHeaderBytes:    maxHeaders,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, c.(*visitor).peer)
		},
		ErrorLog:  slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelWarn),
		Protocols: new(http.Protocols),
	}
	server.Protocols.SetHTTP1(true)
	var work sync.WaitGroup
	ended := make(chan error, 1)
	work.Go(func() { ended <- server.Serve(l) })
	ready()
	select {
	case <-ctx.Done():
	case err = <-ended:
		err = fault.New(fault.Internal, "serve the control socket: %w", err)
	}
	s.end()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWait)
	defer cancel()
	if shut := server.Shutdown(last); errors.Is(shut, context.DeadlineExceeded) {
		_ = server.Close()
	}
	work.Wait()
	return err
}

// waiting is a request's context that also ends when the server stops.
func (s *Server) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ended, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// self is the uid that runs stationd: its principal looks after principals.
var self = os.Geteuid()

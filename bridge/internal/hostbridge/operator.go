package hostbridge

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/shared/agent"
	"drawbridge/shared/agent/files"
	"drawbridge/shared/agent/rule"
	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/profile"
	"drawbridge/shared/redact"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
)

// Settings are those of a command that works with the tools outside a Host: a
// person at a shell, or a callback executable of ours. They are host-bridge's
// own, so that both see the same panes under the same policy.
type Settings struct {
	cfg config

	// Session is the controller session to act as; "" means that of the Profile,
	// or the operator's own, OperatorSession.
	Session string
}

// OperatorSession is the controller session of a person at a shell who names
// none. No Host has it, so nothing of a Host is owned by it.
func OperatorSession() string { return "operator:" + strconv.Itoa(os.Getuid()) }

// Register defines the flags.
func (s *Settings) Register(fs *flag.FlagSet) {
	s.cfg.register(fs)
	s.cfg.LogLevel = "warn" // the answer is what a person wants to see
	fs.Lookup("log-level").DefValue = s.cfg.LogLevel
}

// StoreDir is the directory of the Store, absolute once a desk was opened.
func (s *Settings) StoreDir() string { return s.cfg.StoreDir }

// RuntimeDir is the directory of locks, absolute once a desk was opened.
func (s *Settings) RuntimeDir() string { return s.cfg.RuntimeDir }

// Untested is the policy for versions without fixtures.
func (s *Settings) Untested() handoff.Untested { return handoff.Untested(s.cfg.untested) }

// check is that of host-bridge for what an operator may leave out.
func (s *Settings) check() error {
	if err := s.cfg.Common.Check(); err != nil {
		return err
	}
	given := 0
	for _, v := range []string{s.cfg.profile, s.cfg.host, s.cfg.hostVersion} {
		if v != "" {
			given++
		}
	}
	if given != 0 && given != 3 {
		return fault.New(fault.Usage, "--profile, --host and --host-version are given together or not at all")
	}
	if s.cfg.profile != "" && s.Session != "" {
		return fault.New(fault.Usage, "--session and --profile exclude each other: the Profile says whose session it is")
	}
	return s.cfg.checkSettings()
}

// Rules loads the rule files that the settings name.
func (s *Settings) Rules() (*rule.Set, error) { return rule.Load(s.cfg.rulesDir) }

// A Bench is the tools and what they need, running in this process for one
// command. Close must be called.
type Bench struct {
	Desk  *handoff.Desk
	Tools *catalog.Catalog // nil from OpenLook
	Store *store.Store     // nil from OpenLook when there is none yet

	log  *service.Log
	stop context.CancelFunc
	runs sync.WaitGroup
}

// Open opens the Store, making it where it is absent, and runs what the tools
// need until Close. No sibling is started: the Store says which ones live.
func (s *Settings) Open(ctx context.Context, stderr io.Writer) (*Bench, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	captured, private, paths, err := s.capture()
	if err != nil {
		return nil, err
	}
	b, err := s.openLog(stderr, captured)
	if err != nil {
		return nil, err
	}
	if err := service.EnsurePrivateDir(s.cfg.RuntimeDir); err != nil {
		b.Close()
		return nil, err
	}
	if b.Store, err = store.Open(ctx, store.Options{Dir: s.cfg.StoreDir, Program: "bridge"}); err == nil {
		err = b.Store.Writable()
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	leases, bell, watcher := store.NewKeeper(b.Store, b.log.Logger), store.NewDoorbell(b.Store, b.log.Logger), files.New(b.log.Logger)
	if err := b.desk(s.cfg, captured, leases, bell, watcher); err != nil {
		b.Close()
		return nil, err
	}
	b.Desk.Siblings = b.siblings
	b.Tools, err = catalog.New(catalog.Options{
		Handoff: catalog.Ready(b.Desk), Log: b.log.Logger, Private: append(private, s.cfg.StoreDir, s.cfg.RuntimeDir), Paths: paths,
	})
	if err != nil {
		b.Close()
		return nil, err
	}
	// What runs beside a call outlives its context: a call that was interrupted
	// still leaves the Store in order.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	b.stop = stop
	for _, run := range []func(context.Context) error{leases.Run, bell.Run, watcher.Run} {
		b.runs.Go(func() {
			if err := run(running); err != nil && running.Err() == nil {
				b.log.Warn("beside the call", "err", err)
			}
		})
	}
	return b, nil
}

// OpenLook opens what looking alone needs. A Store that exists is read, none is
// made.
func (s *Settings) OpenLook(ctx context.Context, stderr io.Writer) (*Bench, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	b, err := s.openLog(stderr, profile.Captured{Session: OperatorSession()})
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(s.cfg.StoreDir)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && len(entries) == 0:
	case err != nil:
		err = fault.New(fault.StoreUnavailable, "read the Store directory: %w", err)
	default:
		b.Store, err = store.Open(ctx, store.Options{Dir: s.cfg.StoreDir, Program: "bridge", ReadOnly: true})
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		b.Close()
		return nil, err
	}
	if err := b.desk(s.cfg, profile.Captured{Session: OperatorSession()}, nil, nil, nil); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// Agents gives the adapters, for a screen that no pane shows any more.
func (s *Settings) Agents(log io.Writer) ([]agent.Adapter, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	b, err := s.openLog(log, profile.Captured{Session: OperatorSession()})
	if err != nil {
		return nil, err
	}
	defer b.Close()
	if err := b.desk(s.cfg, profile.Captured{Session: OperatorSession()}, nil, nil, nil); err != nil {
		return nil, err
	}
	return b.Desk.Agents, nil
}

// capture says as whom the tools act, and what no answer may hold.
func (s *Settings) capture() (c profile.Captured, private, paths []string, err error) {
	if s.cfg.profile == "" {
		c.Session = s.Session
		if c.Session == "" {
			c.Session = OperatorSession()
		} else if len(c.Session) > maxSession || fault.CleanLine(c.Session) != c.Session {
			return c, nil, nil, fault.New(fault.ControllerSession, "--session is not one clean line of at most %d bytes", maxSession)
		}
		return c, nil, nil, nil
	}
	prof, captured, err := freeze(s.cfg)
	if err != nil {
		return c, nil, nil, err
	}
	return captured, []string{captured.Session}, []string{prof.Executable(), captured.Selection}, nil
}

// maxSession bounds a controller session (host-profile §4).
const maxSession = 1024

func (s *Settings) openLog(stderr io.Writer, captured profile.Captured) (*Bench, error) {
	paths := map[string]string{service.StateRoot(): "<state>"}
	if home, err := os.UserHomeDir(); err == nil {
		paths[home] = "<home>"
	}
	r := redact.New(redact.Options{Paths: paths})
	if captured.Route.Schema != "" {
		r.Learn(captured.Session)
	}
	log, err := service.OpenLog(service.LogOptions{
		Program: "bridge", Stderr: stderr, Level: s.cfg.LogLevel, Format: s.cfg.LogFormat, Redactor: r,
	})
	if err != nil {
		return nil, err
	}
	return &Bench{log: log}, nil
}

// desk builds what host-bridge builds, without a route where no Profile gives one.
func (b *Bench) desk(cfg config, captured profile.Captured, leases *store.Keeper, bell *store.Doorbell, watcher *files.Watcher) error {
	h, err := newDesk(cfg, captured, b.Store, leases, bell, watcher, nil, b.log.Logger)
	if err != nil {
		return err
	}
	d, ok := h.(*handoff.Desk)
	if !ok {
		return fmt.Errorf("build the tools: they are a %T", h)
	}
	if captured.Route.Schema == "" {
		d.Route = nil // record only: nobody is called back
	}
	b.Desk = d
	return nil
}

// siblings says which of the programs serve the Store, by their leases: nobody
// supervises them from here.
func (b *Bench) siblings() map[string]string {
	out := map[string]string{}
	for _, name := range Siblings {
		out[name] = "failed"
		rows, err := b.Store.Leases(context.Background(), name+"/")
		if err != nil {
			continue
		}
		for _, r := range rows {
			if r.Live {
				out[name] = "up"
			}
		}
	}
	return out
}

// Siblings are the programs that a Store needs beside bridge.
var Siblings = []string{"watchd", "outboxd"}

// StartCommand is the command that starts a sibling on the Store by hand.
func (s *Settings) StartCommand(name string) string {
	exe, err := os.Executable()
	if err == nil {
		name = filepath.Join(filepath.Dir(exe), name)
	}
	line := fmt.Sprintf("%s serve -store-dir %s -runtime-dir %s", name, s.cfg.StoreDir, s.cfg.RuntimeDir)
	if filepath.Base(name) == "outboxd" {
		line += " --profile FILE --host HOST --host-version VERSION"
	}
	return line
}

// Close ends what runs beside the calls and closes the Store.
func (b *Bench) Close() {
	if b.stop != nil {
		b.stop()
	}
	b.runs.Wait()
	if b.Store != nil {
		if err := b.Store.Close(); err != nil {
			b.log.Warn("close the Store", "err", err)
		}
	}
	b.log.Close()
}

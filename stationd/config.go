package main

import (
	"flag"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/stationd/internal/egress"
	"drawbridge/stationd/internal/gate"
	"drawbridge/stationd/internal/launch"
	"drawbridge/stationd/internal/lease"
	"drawbridge/stationd/internal/station"
)

// Bounds of settings.
const (
	leastOrphan = time.Second
	mostOrphan  = time.Hour
	leastGrace  = time.Second // station §12
	mostGrace   = time.Minute
)

// inheritedName is what a listener of socket activation has to be called.
const inheritedName = "bridge"

// serveConfig is what serve, and doctor, were told.
type serveConfig struct {
	service.Common
	stateDir, listen, onExit string
	orphan, grace            time.Duration
	egressFile, profilesFile string
	providersFile            string
	egressProfiles           egress.Profiles
	stationProfiles          launch.Profiles
	remotes                  []lease.Remote
}

func (c *serveConfig) register(fs *flag.FlagSet) {
	c.Common.Register(fs, station.DefaultDrain)
	fs.StringVar(&c.stateDir, "state-dir", defaultStateDir(), "`directory` of workspaces and logs")
	fs.StringVar(&c.listen, "listen", "", "where the bridge listens: a loopback `address` and port, or unix:PATH (default "+gate.DefaultListen+")")
	fs.StringVar(&c.onExit, "on-exit", station.OnExitStop, "what becomes of attempts at the end: stop or keep")
	fs.DurationVar(&c.orphan, "orphan", station.DefaultOrphan, "how long an attempt lives without a stationd")
	fs.DurationVar(&c.grace, "grace", 0, "between SIGTERM and SIGKILL where a spec says nothing (default 10s)")
	c.registerFiles(fs)
}

func (c *serveConfig) registerFiles(fs *flag.FlagSet) {
	fs.StringVar(&c.egressFile, "egress-profiles", "", "JSON `file` of ways out")
	fs.StringVar(&c.profilesFile, "profiles", "", "JSON `file` of station profiles, beside station and agent")
	fs.StringVar(&c.providersFile, "providers", "", "JSON `file` of lease providers, beside local")
}

func defaultStateDir() string {
	root := service.StateRoot()
	if root == "" {
		return ""
	}
	return filepath.Join(root, "station")
}

// check refuses what cannot work, before anything is opened, and reads the files of
// the administrator.
func (c *serveConfig) check() error {
	if err := c.Common.Check(); err != nil {
		return err
	}
	if c.stateDir == "" {
		return fault.New(fault.Usage, "-state-dir is empty and has no default: this user has no home directory")
	}
	abs, err := filepath.Abs(c.stateDir)
	if err != nil {
		return fault.New(fault.Usage, "-state-dir: %w", err)
	}
	c.stateDir = abs
	switch {
	case c.onExit != station.OnExitStop && c.onExit != station.OnExitKeep:
		return fault.New(fault.Usage, "-on-exit is %q, not %s or %s", c.onExit, station.OnExitStop, station.OnExitKeep)
	case c.orphan < leastOrphan || c.orphan > mostOrphan:
		return fault.New(fault.Usage, "-orphan is %v, not between %v and %v", c.orphan, leastOrphan, mostOrphan)
	case c.grace != 0 && (c.grace < leastGrace || c.grace > mostGrace):
		return fault.New(fault.Usage, "-grace is %v, not between %v and %v", c.grace, leastGrace, mostGrace)
	}
	return c.readFiles()
}

// readFiles reads what only an administrator may change.
func (c *serveConfig) readFiles() (err error) {
	c.stationProfiles = launch.BuiltIn()
	if c.profilesFile != "" {
		if c.stationProfiles, err = launch.LoadProfiles(c.profilesFile); err != nil {
			return err
		}
	}
	if c.egressFile != "" {
		if c.egressProfiles, err = egress.Load(c.egressFile); err != nil {
			return err
		}
	}
	if c.providersFile != "" {
		if c.remotes, err = lease.LoadRemotes(c.providersFile); err != nil {
			return err
		}
	}
	return nil
}

// listener opens the bridge where it was told, or takes the one that is inherited.
func (c *serveConfig) listener() (net.Listener, error) {
	named, err := activation.ListenersWithNames()
	if err != nil {
		return nil, fault.New(fault.ListenerUnavailable, "use inherited listeners: %w", err)
	}
	var inherited []net.Listener
	strange := ""
	for name, all := range named {
		inherited = append(inherited, all...)
		if name != inheritedName {
			strange = name
		}
	}
	refuse := func(code fault.Code, format string, args ...any) (net.Listener, error) {
		for _, l := range inherited {
			if l != nil {
				_ = l.Close()
			}
		}
		return nil, fault.New(code, format, args...)
	}
	switch {
	case len(inherited) == 0:
		return openListener(c.listen)
	case c.listen != "":
		return refuse(fault.Usage, "-listen is given, and a listener is inherited; it must be one of them")
	case strange != "":
		return refuse(fault.ListenerUnavailable, "use inherited listeners: one is named %.40q, not %s", strange, inheritedName)
	case len(inherited) > 1 || inherited[0] == nil:
		return refuse(fault.ListenerUnavailable, "use inherited listeners: one stream listener is needed")
	}
	if err := gate.CheckListener(inherited[0]); err != nil {
		_ = inherited[0].Close()
		return nil, err
	}
	return inherited[0], nil
}

func openListener(where string) (net.Listener, error) {
	path, unix := strings.CutPrefix(where, "unix:")
	switch {
	case where == "":
		return gate.Listen(gate.DefaultListen)
	case !unix:
		return gate.Listen(where)
	case !filepath.IsAbs(path):
		return nil, fault.New(fault.Usage, "-listen: the path behind unix: is not absolute")
	}
	// A socket that nobody serves any more is in the way; a served one is left alone.
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == os.ModeSocket {
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			return nil, fault.New(fault.ListenerUnavailable, "listen on socket %s: another program answers there", path)
		}
		_ = os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fault.New(fault.ListenerUnavailable, "listen on socket %s: %w", path, err)
	}
	// Like a port, it takes every local user; who may do what is decided behind it.
	if err := os.Chmod(path, 0o666); err != nil {
		_ = l.Close()
		return nil, fault.New(fault.ListenerUnavailable, "listen on socket %s: %w", path, err)
	}
	return l, nil
}

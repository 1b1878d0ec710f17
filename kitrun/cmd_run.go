package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"drawbridge/kitrun/internal/execution"
	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/workernet"
)

// runCommands are the commands on runs of kits.
func runCommands(stdout, stderr io.Writer) []*service.Command {
	return []*service.Command{runCommand(stdout, stderr), runsCommand(stdout)}
}

// Values of flags of run.
const (
	networkIsolated    = "isolated"
	networkAsRequested = "as-requested"
	portsEmbedded      = "embedded"
	portsNPM           = "npm"
)

// runConfig is what run was told.
type runConfig struct {
	service.Common
	execution.Options
	dockerHost, network, workerNetwork, hostPorts string
}

func (c *runConfig) register(fs *flag.FlagSet) {
	c.Common.Register(fs, 0)
	// The outcome says what happened; the log says what is wrong.
	c.LogLevel, fs.Lookup("log-level").DefValue = "warn", "warn"
	fs.StringVar(&c.Dest, "dest", "", "`workspace` that the kit is in")
	service.Argument(fs, &c.RequestFile, "request", "JSON `file` with the request")
	service.Argument(fs, &c.ControllerRoot, "controller-root", "private `directory` of the run, made when it is missing")
	service.Argument(fs, &c.AuthFile, "auth-file", "credential `file` for the kit's capabilities; only brokerd reads it")
	fs.StringVar(&c.Node, "node", "node", "Node `executable`, 20.6 or newer")
	fs.StringVar(&c.dockerHost, "docker-host", "", "`address` of the container engine (default DOCKER_HOST, else "+worker.DefaultHost+")")
	fs.StringVar(&c.network, "network", workernet.DefaultName, "`name` of the network of the workers")
	fs.StringVar(&c.workerNetwork, "worker-network", networkIsolated, "isolated: a worker that asks for the network bridge gets the isolated one; or as-requested")
	fs.StringVar(&c.hostPorts, "host-ports", portsEmbedded, "embedded: kitrun serves the host modules of the kits' public package; npm: the installed package does")
	fs.DurationVar(&c.Grace, "grace", nodehost.DefaultGrace, "how long a cancelled kit has to end")
	fs.Func("env", "`name` of a further variable that the kit sees; may be repeated", func(name string) error {
		if name == "" || bytes.ContainsAny([]byte(name), "=\x00") {
			return errors.New("is no name of a variable")
		}
		if execution.Never(name) {
			return errors.New("is never passed to a kit")
		}
		c.Env = append(c.Env, name)
		return nil
	})
}

func runCommand(stdout, stderr io.Writer) *service.Command {
	var c runConfig
	return &service.Command{
		Name: "run", Args: "<id>", MinArgs: 1, Short: "Verify an installed kit and run its entry in a fresh Node process",
		Long: "run proves that the installed copy is what was installed, starts its entry, serves what the kit\n" +
			"asks for, and prints the result as one line of JSON. Exit status 0 means that its status is\n" +
			"completed or waiting. Without a result stdout stays empty and stderr says why.\n\n" +
			"Interrupted once, run tells the kit to end and kills it after --grace; interrupted twice, at\n" +
			"once. Its workers are removed in either case.",
		Flags: c.register, OtherSettings: true,
		Run: func(ctx context.Context, args []string) error {
			c.KitID = args[0]
			if err := c.check(); err != nil {
				return err
			}
			return c.run(ctx, stdout, stderr)
		},
	}
}

func (c *runConfig) check() error {
	if err := c.Common.Check(); err != nil {
		return err
	}
	for _, needed := range []struct{ flag, value string }{
		{"dest", c.Dest}, {"request", c.RequestFile}, {"controller-root", c.ControllerRoot},
	} {
		if needed.value == "" {
			return fault.New(fault.Usage, "run: --%s is missing", needed.flag).WithHint("kitrun run -h shows the flags; nothing was run")
		}
	}
	switch {
	case c.workerNetwork != networkIsolated && c.workerNetwork != networkAsRequested:
		return fault.New(fault.Usage, "run: --worker-network is %q, not isolated or as-requested", c.workerNetwork)
	case c.hostPorts != portsEmbedded && c.hostPorts != portsNPM:
		return fault.New(fault.Usage, "run: --host-ports is %q, not embedded or npm", c.hostPorts)
	case c.Grace <= 0:
		return fault.New(fault.Usage, "run: --grace is %v, not more than 0", c.Grace)
	}
	c.AsRequested, c.NoHooks = c.workerNetwork == networkAsRequested, c.hostPorts == portsNPM
	return nil
}

// run opens what a run needs, runs and prints.
func (c *runConfig) run(ctx context.Context, stdout, stderr io.Writer) error {
	log, err := service.OpenLog(service.LogOptions{Program: "kitrun", Stderr: stderr, Level: c.LogLevel, Format: c.LogFormat})
	if err != nil {
		return err
	}
	defer log.Close()
	var out execution.Outcome
	err = c.execute(ctx, stderr, log, &out)
	switch {
	case err != nil:
		complain(stderr, err, out.Stderr)
		return service.Status(service.ExitFail)
	}
	if err := printLine(stdout, out.Result); err != nil {
		complain(stderr, fmt.Errorf("print the result: %w", err), nil)
		return service.Status(service.ExitFail)
	}
	if !out.Succeeded() {
		return service.Status(service.ExitFail)
	}
	return nil
}

func (c *runConfig) execute(ctx context.Context, stderr io.Writer, log *service.Log, out *execution.Outcome) error {
	ctx, kill, ignore := interrupts(ctx, func() {
		fmt.Fprintln(stderr, "kitrun: cancelling the run; a second signal kills the kit at once")
	})
	defer ignore()
	db, err := openStore(ctx, c.StoreDir)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := service.EnsurePrivateDir(c.RuntimeDir); err != nil {
		return err
	}
	host := execution.Host{
		Store: db, StoreDir: c.StoreDir, RuntimeDir: c.RuntimeDir, DockerHost: c.dockerHost, NetworkName: c.network,
		Log: log.Logger, Progress: (&steps{out: stderr}).see,
	}
	c.Kill = kill
	*out, err = host.Execute(ctx, c.Options)
	return err
}

func openStore(ctx context.Context, dir string) (*store.Store, error) {
	db, err := store.Open(ctx, store.Options{Dir: dir, Program: "kitrun"})
	if err != nil {
		return nil, err
	}
	if err := db.Writable(); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// interrupts gives a context that the first signal ends, and a channel that the
// second one closes. A third one is the operating system's.
func interrupts(ctx context.Context, first func()) (_ context.Context, second <-chan struct{}, ignore func()) {
	ctx, cancel := context.WithCancel(ctx)
	caught := make(chan os.Signal, 2)
	kill, quit, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	signal.Notify(caught, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		defer close(done)
		for _, act := range []func(){
			func() { first(); cancel() },
			func() { signal.Stop(caught); close(kill) },
		} {
			select {
			case <-caught:
				act()
			case <-quit:
				return
			}
		}
	}()
	return ctx, kill, func() {
		signal.Stop(caught)
		close(quit)
		<-done
		cancel()
	}
}

// complain says why there is no result: a message of the kit as it is, however long;
// without one the last of what the kit said on stderr follows.
func complain(stderr io.Writer, err error, tail []byte) {
	f, ok := fault.As(err)
	fmt.Fprintf(stderr, "kitrun: %s\n", err)
	if ok && f.Code == fault.KitThrew {
		return
	}
	if ok && f.Hint != "" {
		fmt.Fprintf(stderr, "kitrun: hint: %s\n", fault.CleanLine(f.Hint))
	}
	if len(tail) > 0 {
		fmt.Fprintf(stderr, "kitrun: the last of what the kit said on stderr:\n%s\n", bytes.TrimRight(tail, "\n"))
	}
}

// printLine prints a result as it came; one that has line ends between its tokens
// is made one line.
func printLine(stdout io.Writer, result json.RawMessage) error {
	line := []byte(result)
	if bytes.ContainsAny(line, "\r\n") {
		var b bytes.Buffer
		if err := json.Compact(&b, result); err != nil {
			return err
		}
		line = b.Bytes()
	}
	_, err := stdout.Write(append(line[:len(line):len(line)], '\n'))
	return err
}

// steps shows what the workers of a run do, a line for each step: several may be
// at work.
type steps struct {
	out  io.Writer
	mu   sync.Mutex
	last map[string]string
}

func (s *steps) see(e worker.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[string]string{}
	}
	if s.last[e.InvocationID] == e.State {
		return
	}
	s.last[e.InvocationID] = e.State
	reason := ""
	if e.Reason != "" {
		reason = " (" + e.Reason + ")"
	}
	fmt.Fprintf(s.out, "kitrun: worker %.8s %s%s after %v\n", e.InvocationID, e.State, reason, e.Elapsed.Round(time.Second/10))
}

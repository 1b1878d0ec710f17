package operator

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"drawbridge/kitrun/internal/lender"
	"drawbridge/kitrun/internal/progress"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/service"
	"drawbridge/shared/sibling"
	"drawbridge/shared/store"
	"drawbridge/shared/workernet"
)

const (
	// defaultDrain lets a container that is hard to remove be removed and its grant
	// be closed.
	defaultDrain = 30 * time.Second
	// lentBeyond is how long a grant outlives the deadline of its run.
	lentBeyond = time.Minute
	// maxOptions bounds the options file; the options bound its parts.
	maxOptions = 64 << 20
)

// runConfig is what worker run was told.
type runConfig struct {
	service.Common
	engineFlags
	options, receipt, capability, auth string
	network                            string
	listen                             []string
	brokerSocket                       string
	requests                           int64
	events                             bool
}

func (c *runConfig) register(fs *flag.FlagSet) {
	c.Common.Register(fs, defaultDrain)
	// The progress says what happens; the log says what is wrong.
	c.LogLevel, fs.Lookup("log-level").DefValue = "warn", "warn"
	c.engineFlags.register(fs)
	service.Argument(fs, &c.options, "options", "JSON `file` that says what to run")
	service.Argument(fs, &c.capability, "capability-file", "private `file` with a capability that was taken out before")
	service.Argument(fs, &c.auth, "auth-file", "credential `file` to take out a capability with; only brokerd reads it")
	fs.StringVar(&c.receipt, "receipt", "-", "`file` to make for the receipt; - prints it on stdout")
	fs.StringVar(&c.network, "network", workernet.DefaultName, "`name` of the network of the workers")
	fs.Int64Var(&c.requests, "max-requests", store.DefaultGrantRequests, "how many requests a capability is good for, with --auth-file")
	fs.StringVar(&c.brokerSocket, "broker-socket", "", "socket `file` of the broker, for the network socket (default that of the Store's brokerd)")
	fs.Func("broker-listen", "where a brokerd listens that is started for this run: `values` of its -listen; may be repeated (default what the worker's network needs)", func(s string) error {
		if s == "" {
			return errors.New("is empty")
		}
		c.listen = append(c.listen, s)
		return nil
	})
	fs.BoolVar(&c.events, "json", false, "print events as lines of JSON on stdout, the receipt as the last of them")
}

func runCommand(stdout, stderr io.Writer) *service.Command {
	var cfg runConfig
	return &service.Command{
		Name: "run", Short: "Run one Codex turn in a locked container and print its receipt",
		Long: "run does what the options file says (docs/worker.md), shows what happens on stderr, and prints\n" +
			"the receipt. The worker reaches its model by a capability: that of --capability-file, or one\n" +
			"that is taken out with the credential of --auth-file and closed after the run; a brokerd is\n" +
			"started for that when none serves the Store. Exit status 0 means that the turn completed.\n\n" +
			"Interrupted once, run kills and removes the container and still writes the receipt;\n" +
			"interrupted twice, it ends at once.",
		Flags: cfg.register,
		Run: func(ctx context.Context, _ []string) error {
			if err := cfg.check(); err != nil {
				return err
			}
			return cfg.run(ctx, stdout, stderr)
		},
	}
}

func (c *runConfig) check() error {
	if err := c.Common.Check(); err != nil {
		return err
	}
	switch {
	case c.options == "":
		return fault.New(fault.Usage, "worker run: --options is missing").WithHint("docs/worker.md shows a file to start from")
	case (c.capability == "") == (c.auth == ""):
		return fault.New(fault.Usage, "worker run: exactly one of --auth-file and --capability-file is needed").
			WithHint("--auth-file takes a file like Codex's auth.json; the worker never sees it")
	case c.receipt == "":
		return fault.New(fault.Usage, "worker run: --receipt is empty")
	case c.receipt != "-":
		if _, err := os.Lstat(c.receipt); err == nil {
			return fault.New(fault.OutputExists, "worker run: the file of --receipt exists already").WithHint("nothing was run")
		}
	}
	switch {
	case c.requests < 1 || c.requests > store.MaxGrantRequests:
		return fault.New(fault.Usage, "worker run: --max-requests is %d, not 1 to %d", c.requests, store.MaxGrantRequests)
	}
	return nil
}

// session is one run of worker run.
type session struct {
	*runConfig
	stdout, stderr io.Writer
	log            *slog.Logger
	deps           worker.Deps
	options        worker.Options
	keeper         *store.Keeper
	lender         *lender.Lender // nil: the capability is somebody else's
	reach          lender.Reach
	progress       *progress.Progress
	loan           *lender.Loan
	lent           chan *lender.Loan // for the progress; holds the loan once it is out
	grant          string            // what was lent; "": nothing was

	began   time.Time
	receipt worker.Receipt
}

// run reads, opens, builds, and runs the turn between what shows it and what
// carries it.
func (c *runConfig) run(ctx context.Context, stdout, stderr io.Writer) error {
	s := &session{runConfig: c, stdout: stdout, stderr: stderr, lent: make(chan *lender.Loan, 1)}
	if err := s.readOptions(); err != nil {
		return err
	}
	s.show()
	format, out := c.LogFormat, stderr
	if progress.ModeFor(stderr, c.events) == progress.Terminal {
		if out = s.progress.Log(); format == "auto" {
			format = "text"
		}
	}
	red := redact.New(redact.Options{Paths: map[string]string{service.StateRoot(): "<state>"}})
	if p := s.options.ProviderProxy; p != nil {
		red.Learn(p.Capability.Reveal())
	}
	log, err := service.OpenLog(service.LogOptions{Program: program, Stderr: out, Level: c.LogLevel, Format: format, Redactor: red})
	if err != nil {
		return err
	}
	defer log.Close()
	s.log = log.Logger
	return s.open(ctx)
}

// readOptions reads the options file and the capability.
func (s *session) readOptions() error {
	f, err := os.Open(s.runConfig.options)
	if err != nil {
		return fault.New(fault.Usage, "worker run: --options: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxOptions))
	if err != nil {
		return fault.New(fault.Usage, "worker run: --options: %w", err)
	}
	if s.options, err = worker.ParseOptions(data); err != nil {
		return err
	}
	if s.options.InvocationID == "" {
		s.options.InvocationID = uuid.NewString()
	}
	if s.auth != "" {
		return s.readAuth()
	}
	lent, err := readCapability(s.capability)
	if err != nil {
		return err
	}
	if p := s.options.ProviderProxy; p != nil {
		if p.Capability.Reveal() != "" {
			return capabilityInOptions()
		}
		p.Capability = lent.Capability
		return nil
	}
	if lent.BaseURL == "" {
		return fault.New(fault.OptionInvalid, "worker run: neither the options nor the capability file say where the broker is").
			With("option", "providerProxy").WithHint(`give "providerProxy": {"baseUrl": …, "model": …}, or the whole output of brokerd grant as the capability file`)
	}
	s.options.ProviderProxy = &lent
	return nil
}

// readAuth prepares for a capability that is taken out here. No container may see
// the credential.
func (s *session) readAuth() error {
	if s.options.ProviderProxy != nil {
		return fault.New(fault.OptionInvalid, "worker run: the options have a providerProxy of their own, and --auth-file makes one").
			With("option", "providerProxy").WithHint("leave providerProxy out, or use --capability-file")
	}
	abs, err := filepath.Abs(s.auth)
	if err != nil {
		return fault.New(fault.Usage, "worker run: --auth-file: %w", err)
	}
	written := s.auth
	s.auth = abs
	if _, err := os.Lstat(abs); err != nil {
		return fault.New(fault.CredentialUnavailable, "worker run: --auth-file %s: there is no such file", written).
			WithHint("codex login makes ~/.codex/auth.json")
	}
	s.options.ForbiddenRoots = append(s.options.ForbiddenRoots, worker.ForbiddenRoot{Kind: worker.KindCredentials, Path: abs})
	return nil
}

func capabilityInOptions() error {
	return fault.New(fault.OptionInvalid, "worker run: the options file holds a capability").
		With("option", "providerProxy.capability").WithHint("a capability is read from --capability-file alone")
}

// show chooses how the operator sees what happens.
func (s *session) show() {
	o := progress.Options{Mode: progress.ModeFor(s.stderr, s.events), Out: s.stderr}
	if s.events {
		o.Out = s.stdout
	}
	if s.auth != "" {
		o.Lent = s.counted
	}
	s.progress = progress.New(o)
}

// counted asks the broker's rows what the run has used so far.
func (s *session) counted(ctx context.Context) (progress.Lent, bool) {
	if s.loan == nil {
		select {
		case s.loan = <-s.lent:
		default:
			return progress.Lent{}, false
		}
	}
	g, err := s.loan.Look(ctx)
	if err != nil {
		return progress.Lent{}, false
	}
	return progress.Lent{Requests: g.Forwarded, Refused: g.Refused, InputTokens: g.MeasuredInput, OutputTokens: g.MeasuredOutput}, true
}

// open opens Store and engine and runs the group.
func (s *session) open(ctx context.Context) error {
	if err := service.EnsurePrivateDir(s.RuntimeDir); err != nil {
		return err
	}
	db, err := store.Open(ctx, store.Options{Dir: s.StoreDir, Program: program})
	if err != nil {
		return err
	}
	defer db.Close()
	if err := db.Writable(); err != nil {
		return err
	}
	engine, err := s.engine()
	if err != nil {
		return err
	}
	defer engine.Close()
	s.deps = worker.Deps{
		Engine: engine, Store: db, Log: s.log, Progress: s.progress.Event, RuntimeDir: s.RuntimeDir, NetworkName: s.runConfig.network,
	}
	if relay, err := sibling.Beside("station-shim"); err == nil {
		s.deps.Relay = relay
	}
	if err := worker.Check(s.options, s.deps); err != nil {
		return err
	}
	s.keeper = store.NewKeeper(db, s.log)
	creator, err := db.Acquire(ctx, "kitrun/"+s.options.InvocationID, store.LeaseTTL)
	if err != nil {
		return err
	}
	defer func() { _ = db.Release(context.WithoutCancel(ctx), creator) }() // its process ends anyway
	_, unkeep := s.keeper.Keep(ctx, creator)
	defer unkeep()
	if s.auth != "" {
		if err := s.prepareLender(ctx, creator); err != nil {
			return err
		}
	}
	return s.group(ctx)
}

// prepareLender finds out how the worker will reach the broker.
func (s *session) prepareLender(ctx context.Context, creator *store.Lease) (err error) {
	sum := sha256.Sum256([]byte(s.StoreDir))
	socket := filepath.Join(s.RuntimeDir, "broker-"+hex.EncodeToString(sum[:4]), "s")
	if s.reach, err = lender.ReachOf(ctx, s.deps, s.options.Network, socket); err != nil {
		return err
	}
	if len(s.listen) == 0 {
		s.listen = s.reach.Listen
	}
	beside, err := lender.Beside(s.StoreDir, s.RuntimeDir, s.listen)
	if err != nil {
		return err
	}
	beside.Args = append(beside.Args, "-network", s.runConfig.network, "-docker-host", s.deps.Engine.Host(), "-log-level", s.LogLevel)
	s.lender = lender.New(lender.Options{Store: s.deps.Store, Creator: creator, Program: beside, Log: s.log})
	return nil
}

// group runs the turn and what it needs; the end of the turn ends all.
func (s *session) group(ctx context.Context) error {
	var turned atomic.Bool
	g := service.Group{Log: s.log, Drain: s.Drain, Stacks: io.Discard, Stopping: func() {
		if !turned.Load() {
			s.log.Warn("cancelling the run; a second signal ends kitrun at once, and leaves the rest to kitrun worker sweep")
		}
	}}
	var result error
	g.Add("turn", func(ctx context.Context) error {
		result = s.turn(ctx)
		turned.Store(true)
		return nil
	})
	if s.lender != nil {
		g.Add("broker", s.lender.Run)
	}
	g.Add("progress", s.progress.Run)
	g.Add("leases", s.keeper.Run)
	err := g.Run(ctx)
	if errors.Is(err, service.ErrDrain) {
		return fault.New(fault.DrainExpired, "worker run: ended before the container was proven gone").
			WithHint("kitrun worker sweep removes what is left")
	}
	if err != nil {
		return err
	}
	return s.finish(result)
}

// turn sweeps, borrows, runs and gives back.
func (s *session) turn(ctx context.Context) error {
	if swept, err := worker.Sweep(ctx, s.deps); err != nil {
		s.log.Warn("what an earlier run left is not swept", "err", err)
	} else if swept.Containers+swept.Rows > 0 {
		s.log.Warn("removed what an earlier run left", "containers", swept.Containers, "rows", swept.Rows)
	}
	giveBack, err := s.borrow(ctx)
	if err != nil {
		return err
	}
	s.began = time.Now()
	s.receipt, err = worker.Run(ctx, s.options, s.deps)
	return errors.Join(err, giveBack())
}

// borrow takes out a capability when there is none yet.
func (s *session) borrow(ctx context.Context) (giveBack func() error, err error) {
	nothing := func() error { return nil }
	if s.lender == nil {
		return nothing, s.findSocket(ctx)
	}
	loan, err := s.lender.Lend(ctx, lender.Ask{
		// The grant is bound to an effort that was named. To models that it does not
		// know Codex names none, whatever it was told.
		AuthFile: s.auth, Model: s.options.Model, ReasoningEffort: s.options.ReasoningEffort, MaxRequests: s.requests,
		Endpoint: s.reach.Endpoint, RemoteCIDR: s.reach.CIDR, RunID: s.options.RunID, OwnerID: s.options.OwnerID,
		Life: min(s.options.Timeout+lentBeyond, store.GrantLifeMost),
	})
	if err != nil {
		if ctx.Err() != nil {
			err = fault.New(fault.WorkerNotStarted, "worker run: cancelled before the worker started")
		}
		return nothing, err
	}
	s.grant = loan.ID
	s.lent <- loan
	giveBack = func() error { return loan.Close(ctx) }
	if err := s.reach.Check(loan); err != nil {
		return nothing, errors.Join(err, giveBack())
	}
	s.options.ProviderProxy = &worker.ProviderProxy{BaseURL: loan.BaseURL, Capability: loan.Capability, Model: loan.Model}
	s.options.BrokerSocket = loan.Socket()
	return giveBack, nil
}

// findSocket finds the broker's socket for a capability that somebody else took out.
func (s *session) findSocket(ctx context.Context) error {
	s.options.BrokerSocket = s.brokerSocket
	if s.options.Network != worker.NetworkSocket || s.brokerSocket != "" {
		return nil
	}
	all, err := s.deps.Store.Endpoints(ctx)
	if err != nil {
		return err
	}
	for _, e := range all {
		if e.Kind() == store.EndpointUnix {
			s.options.BrokerSocket = e.BindAddress[len("unix:"):]
		}
	}
	return nil
}

// finish prints the receipt and says how it ended.
func (s *session) finish(result error) error {
	if s.receipt.Schema == "" {
		if result == nil {
			result = fault.New(fault.WorkerNotStarted, "worker run: cancelled before the worker started")
		}
		return result
	}
	if err := s.print(); err != nil {
		result = errors.Join(result, err)
	}
	if !s.events {
		kept := filepath.Join(s.options.ArtifactRoot, s.options.InvocationID)
		output := ""
		if !s.receipt.Completed {
			output = "; output " + kept + ".stdout.jsonl"
		}
		grant := ""
		if s.grant != "" {
			grant = "; grant " + s.grant
		}
		say(s.stderr, "%s%s; receipt %s%s", progress.Outcome(s.receipt, time.Since(s.began)), output, kept+".receipt.json", grant)
	}
	if result == nil && !s.receipt.Completed {
		return service.Status(service.ExitFail)
	}
	return result
}

func (s *session) print() error {
	if s.runConfig.receipt != "-" {
		f, err := os.OpenFile(s.runConfig.receipt, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return fault.New(fault.OutputExists, "worker run: --receipt: %w", err).WithHint("the receipt itself is in the artifact root")
		}
		return errors.Join(printJSON(f, s.receipt, true), f.Close())
	}
	if s.events {
		return printJSON(s.stdout, struct {
			Event   string         `json:"event"`
			Receipt worker.Receipt `json:"receipt"`
		}{"receipt", s.receipt}, false)
	}
	return printJSON(s.stdout, s.receipt, true)
}

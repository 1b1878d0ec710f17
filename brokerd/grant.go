package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"time"

	"drawbridge/brokerd/internal/broker"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/secretfile"
	"drawbridge/shared/service"
	"drawbridge/shared/store"
	"drawbridge/shared/strictjson"
)

// storeFlags are the settings of the commands that work on a Store.
type storeFlags struct{ service.StoreFlags }

func (f *storeFlags) register(fs *flag.FlagSet) { f.Register(fs) }

// open opens a Store that is there; none is made by looking for grants.
func (f *storeFlags) open(ctx context.Context, readOnly bool) (*store.Store, error) {
	dir, err := f.Path()
	if err != nil {
		return nil, err
	}
	return store.OpenExisting(ctx, store.Options{Dir: dir, Program: "brokerd", ReadOnly: readOnly})
}

// grantFlags are what a grant is asked for with.
type grantFlags struct {
	storeFlags
	authFile, model, effort, origin, endpoint string
	basePath, run, owner, cidr                string
	digest, ledger                            string
	requests, tokens                          int64
	life                                      time.Duration
	initialize, strict, asJSON                bool
}

func (f *grantFlags) register(fs *flag.FlagSet) {
	f.storeFlags.register(fs)
	fs.StringVar(&f.authFile, "auth-file", "", "credential `file`, read by brokerd alone")
	fs.StringVar(&f.model, "model", "", "the one `model` that requests may name")
	fs.StringVar(&f.effort, "reasoning-effort", "", "the one reasoning `effort` that requests may name (default any)")
	fs.StringVar(&f.origin, "upstream-origin", "", "`URL` of the provider (default that of the credential)")
	fs.StringVar(&f.endpoint, "endpoint", store.EndpointTCP, "tcp or unix: the listener that the worker reaches")
	fs.Int64Var(&f.requests, "max-requests", store.DefaultGrantRequests, "how many requests may be forwarded")
	fs.Func("max-total-tokens", "no request is forwarded once so many `tokens` were reported (default no ceiling)", f.setTokens)
	fs.BoolVar(&f.strict, "strict-usage", false, "close the grant at the first response that does not say what it cost")
	f.life = store.GrantLife
	fs.Var((*life)(&f.life), "ttl", "how `long` the grant lives, as 30m")
	fs.StringVar(&f.basePath, "base-path", "", "empty or /v1")
	fs.StringVar(&f.run, "run", "", "`label` of the run in the evidence")
	fs.StringVar(&f.owner, "owner", "", "`label` of the owner in the evidence")
	fs.StringVar(&f.cidr, "remote-cidr", "", "`range` of addresses that may use it (default any)")
	fs.StringVar(&f.digest, "request-binding-digest", "", "sha256:<hex> of a registered run, whose sessions share a budget")
	fs.StringVar(&f.ledger, "ledger-file", "", "absolute `path` of the ledger file of a registered run")
	fs.BoolVar(&f.initialize, "initialize", false, "this is the first session of the registered run")
	fs.BoolVar(&f.asJSON, "json", false, "print a failure as one JSON object, too")
}

// setTokens takes a ceiling: none is what no flag means, not 0.
func (f *grantFlags) setTokens(s string) error {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		return errors.New("is no number from 1 on")
	}
	f.tokens = n
	return nil
}

// check refuses a value out of range that was given, before the Store would take a 0
// for the default.
func (f *grantFlags) check() error {
	switch {
	case f.authFile == "":
		return fault.New(fault.Usage, "grant: --auth-file is missing")
	case f.requests < 1 || f.requests > store.MaxGrantRequests:
		return fault.New(fault.Usage, "grant: --max-requests is %d, not 1 to %d", f.requests, store.MaxGrantRequests)
	case f.life < store.GrantLifeLeast || f.life > store.GrantLifeMost:
		return fault.New(fault.Usage, "grant: --ttl is %s, not %s to %s", f.life, store.GrantLifeLeast, store.GrantLifeMost)
	}
	return nil
}

// life is a duration that knows what is meant by a bare number.
type life time.Duration

func (l *life) String() string { return time.Duration(*l).String() }

func (l *life) Set(s string) error {
	d, err := time.ParseDuration(s)
	if _, bare := strconv.ParseUint(s, 10, 32); err != nil && bare == nil {
		return fmt.Errorf("it has no unit; did you mean %sm?", s)
	}
	if err != nil {
		return errors.New("it is no time like 30m or 2h")
	}
	*l = life(d)
	return nil
}

func grantCommand(stdout io.Writer) *service.Command {
	var f grantFlags
	return &service.Command{
		Name: "grant", Short: "Take out a grant at the brokerd that serves the Store",
		Long: "grant prints one JSON object with the base URL and the capability. The capability is shown\n" +
			"this one time; the Store keeps its hash.",
		Flags:         f.register,
		OtherSettings: true,
		Run: func(ctx context.Context, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if err := secretfile.Check("credential file", f.authFile); err != nil {
				return err
			}
			path, err := broker.CanonicalPath(f.authFile)
			if err != nil {
				return err
			}
			db, err := f.open(ctx, false)
			if err != nil {
				return err
			}
			defer db.Close()
			return f.take(ctx, db, path, stdout)
		},
	}
}

// take asks, waits, and prints what a worker needs. A grant that nobody took up is
// withdrawn: nobody would know its capability.
func (f *grantFlags) take(ctx context.Context, db *store.Store, path string, stdout io.Writer) error {
	capability, hash := redact.NewCapability()
	g, err := db.CreateGrant(ctx, store.NewGrant{
		CapabilitySHA256: hash, CredentialRef: path, BasePath: f.basePath, RemoteCIDR: f.cidr, RunID: f.run, OwnerID: f.owner, Life: f.life,
		Request: store.GrantRequest{
			Model: f.model, ReasoningEffort: f.effort, UpstreamOrigin: f.origin, Endpoint: f.endpoint, MaxRequests: f.requests,
			MaxTotalTokens: f.tokens, StrictUsage: f.strict, RequestBindingDigest: f.digest, LedgerFile: f.ledger, Initialize: f.initialize,
		},
	})
	if err != nil {
		return err
	}
	id := g.ID
	if g, err = db.AwaitGrant(ctx, id, store.GrantWait); err != nil {
		return withdraw(ctx, db, id, secretfile.Blame(err, f.authFile))
	}
	err = printJSON(stdout, strictjson.Object{
		{Name: "base_url", Value: g.BaseURL}, {Name: "capability", Value: capability.Reveal()}, {Name: "model", Value: g.Request.Model},
		{Name: "grant_id", Value: g.ID}, {Name: "transport_mode", Value: g.TransportMode}, {Name: "expires_at", Value: g.ExpiresAt},
	})
	if err != nil { // nobody has seen the capability
		return withdraw(ctx, db, id, fmt.Errorf("print grant %s: %w", id, err))
	}
	return nil
}

// withdraw asks for the end of a grant whose capability nobody has, because of err.
func withdraw(ctx context.Context, db *store.Store, id string, err error) error {
	if _, closeErr := db.RequestClose(context.WithoutCancel(ctx), id, "not_taken_out"); closeErr != nil {
		return fmt.Errorf("%w (and it could not be withdrawn: %s)", err, closeErr)
	}
	return err
}

func revokeCommand(stdout io.Writer) *service.Command {
	var f storeFlags
	run, all := "", false
	return &service.Command{
		Name: "revoke", Short: "End a grant, those of a run, or all", Args: "[<grant id>]", MaxArgs: 1,
		Long: "From the moment revoke writes its wish the capability opens nothing. A brokerd that serves\n" +
			"the Store then ends what is under way; revoke waits for it.",
		Flags: func(fs *flag.FlagSet) {
			f.register(fs)
			fs.StringVar(&run, "run", "", "every open grant with this `label`")
			fs.BoolVar(&all, "all", false, "every open grant of the Store")
		},
		OtherSettings: true,
		Run: func(ctx context.Context, args []string) error {
			given := len(args)
			if run != "" {
				given++
			}
			if all {
				given++
			}
			if given != 1 {
				return fault.New(fault.Usage, "revoke: give one of a grant id, -run and -all")
			}
			db, err := f.open(ctx, false)
			if err != nil {
				return err
			}
			defer db.Close()
			return revoke(ctx, db, args, run, stdout)
		},
	}
}

// revoke asks for the end of all first, then waits for each.
func revoke(ctx context.Context, db *store.Store, ids []string, run string, stdout io.Writer) error {
	if len(ids) == 0 {
		var err error
		if ids, err = openGrants(ctx, db, run); err != nil {
			return err
		}
		if len(ids) == 0 {
			_, err = fmt.Fprintln(stdout, "no grant is open that this names")
			return err
		}
	}
	ended := map[string]store.Grant{}
	for _, id := range ids {
		g, err := db.RequestClose(ctx, id, store.CloseRevoked)
		if err != nil {
			return err
		}
		if !g.Open() {
			ended[id] = g
		}
	}
	serving, err := served(ctx, db)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if g, ok := ended[id]; ok {
			fmt.Fprintf(stdout, "%s was at its end before: %s\n", id, howEnded(g))
			continue
		}
		if !serving {
			fmt.Fprintf(stdout, "%s opens nothing any more; no brokerd serves the Store, the next one ends it\n", id)
			continue
		}
		g, err := db.AwaitClosed(ctx, id, store.CloseWait)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "%s %s\n", g.ID, g.State)
	}
	return nil
}

// howEnded is the state of a grant at its end, and why.
func howEnded(g store.Grant) string {
	why := g.CloseReason
	if g.State == store.GrantRefused {
		why = g.RefusalCode
	}
	if why == "" || why == g.State {
		return g.State
	}
	return g.State + " (" + why + ")"
}

func openGrants(ctx context.Context, db *store.Store, run string) (ids []string, err error) {
	all, err := db.OpenGrants(ctx)
	for _, g := range all {
		if run == "" || g.RunID == run {
			ids = append(ids, g.ID)
		}
	}
	return ids, err
}

// served reports whether a live brokerd has the Store.
func served(ctx context.Context, db *store.Store) (bool, error) {
	rows, err := db.Leases(ctx, store.BrokerdLease())
	return len(rows) > 0 && rows[0].Live, err
}

func printJSON(w io.Writer, o strictjson.Object) error {
	data, err := o.JSON()
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

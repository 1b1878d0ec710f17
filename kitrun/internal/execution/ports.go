package execution

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"drawbridge/kitrun/internal/nodehost"
	"drawbridge/kitrun/internal/storage"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// Bounds of one run.
const (
	maxWorkers  = 8  // at once; more wait
	maxLooks    = 4  // inspections of storage at once; more wait
	maxWatches  = 64 // of storage; more are refused
	watchAtMost = 20 * time.Millisecond
)

// Calls that stand for something that runs.
const (
	callWorker = "worker.run"
	callNested = "kit.execute"
)

// ports serve what the kit of one run asks for (kit §8).
type ports struct {
	*run
	slots chan struct{} // of workers
	looks chan struct{} // of inspections

	mu          sync.Mutex
	grants      map[string]*grant
	watches     map[string]context.CancelFunc
	credentials []string // files of the grants, the run's own apart
	used        bool     // a worker was asked for
	wg          sync.WaitGroup
}

func newPorts(r *run) *ports {
	return &ports{run: r, slots: make(chan struct{}, maxWorkers), looks: make(chan struct{}, maxLooks), grants: map[string]*grant{}, watches: map[string]context.CancelFunc{}}
}

// Call serves one call.
func (p *ports) Call(ctx context.Context, peer *nodehost.Peer, method string, params json.RawMessage) (any, error) {
	switch method {
	case callWorker:
		return p.worker(ctx, peer, params)
	case "worker.identity":
		engine, err := p.engine()
		if err != nil {
			return nil, err
		}
		return worker.IdentityOf(ctx, engine)
	case "broker.start":
		return p.lend(ctx, peer, params)
	case "broker.close":
		return p.giveBack(ctx, params)
	case "storage.inspect":
		return p.storage(ctx, params, storage.Inspect)
	case "storage.admit":
		return p.storage(ctx, params, storage.Admit)
	case "storage.watch":
		return p.watch(ctx, peer, params)
	case "storage.unwatch":
		return p.unwatch(params)
	case callNested:
		return p.nested(ctx, params)
	}
	return nil, fault.New(fault.KitProtocol, "kitrun has no service %.64q", method)
}

// decode reads params strictly.
func decode(method string, params json.RawMessage, v any) error {
	err := strictjson.Decode(params, v, strictjson.Limits{MaxBytes: nodehost.MaxFrame, MaxDepth: maxDepth})
	if err != nil {
		return fault.New(fault.OptionInvalid, "%s: %w", method, err)
	}
	return nil
}

// worker runs one worker under the policy of a run: its owner, its forbidden
// roots, its time.
func (p *ports) worker(ctx context.Context, peer *nodehost.Peer, params json.RawMessage) (any, error) {
	engine, err := p.engine()
	if err != nil {
		return nil, err
	}
	params, handle, err := withoutCallback(params)
	if err != nil {
		return nil, err
	}
	o, err := worker.ParseOptions(params)
	if err != nil {
		return nil, err
	}
	if handle != "" {
		if o.Setup == nil {
			o.Setup = &worker.Setup{}
		}
		o.Setup.Prepare = func(ctx context.Context, in worker.PrepareInput) error {
			_, err := peer.Back(ctx, handle, in)
			return err
		}
	}
	o.OwnerID = p.owner
	for _, root := range p.forbidden() {
		if !slices.Contains(o.ForbiddenRoots, root) { // a kit may name them itself
			o.ForbiddenRoots = append(o.ForbiddenRoots, root)
		}
	}
	if o.Network == worker.NetworkBridge && !p.AsRequested {
		o.Network = "" // isolated, where the engine runs on this machine's kernel
	}
	g := p.use(o.ProviderProxy)
	if g != nil {
		o.BrokerSocket = g.loan.Socket()
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return nil, fault.New(fault.WorkerNotStarted, "run a worker: cancelled before it started")
	}
	if left := time.Until(p.deadline); o.Timeout > left {
		o.Timeout = max(left, time.Millisecond)
	}
	receipt, err := worker.Run(ctx, o, p.workerDeps(engine))
	if g != nil {
		g.flush(ctx) // what the worker caused is told before its end is
	}
	if err != nil {
		return nil, err
	}
	return receipt, nil
}

// use notes that a worker was asked for, and finds the grant that it uses, nil when
// that is none of this run.
func (p *ports) use(proxy *worker.ProviderProxy) *grant {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = true
	if proxy == nil {
		return nil
	}
	for _, g := range p.grants {
		if g.loan.Capability.Reveal() == proxy.Capability.Reveal() {
			return g
		}
	}
	return nil
}

// forbidden are the boundaries that every worker of a run is checked against: the
// controller root, and the credentials that it was given or has named.
func (p *ports) forbidden() []worker.ForbiddenRoot {
	roots := []worker.ForbiddenRoot{{Kind: worker.KindController, Path: p.root}}
	if p.auth != "" {
		roots = append(roots, worker.ForbiddenRoot{Kind: worker.KindCredentials, Path: p.auth})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, path := range p.credentials {
		roots = append(roots, worker.ForbiddenRoot{Kind: worker.KindCredentials, Path: path})
	}
	return roots
}

// withoutCallback takes the handle of workspaceSetup.prepare out of options: the
// rest is what an options file holds.
func withoutCallback(params json.RawMessage) (rest json.RawMessage, handle string, err error) {
	var options, setup map[string]json.RawMessage
	bad := fault.New(fault.OptionInvalid, "worker.run: its options are no object")
	if json.Unmarshal(params, &options) != nil || options == nil {
		return nil, "", bad
	}
	raw, ok := options["workspaceSetup"]
	if !ok || json.Unmarshal(raw, &setup) != nil || setup["prepare"] == nil {
		return params, "", nil
	}
	var callback struct {
		Callback string `json:"callback"`
	}
	if err := decode("workspaceSetup.prepare", setup["prepare"], &callback); err != nil {
		return nil, "", err
	}
	delete(setup, "prepare")
	if options["workspaceSetup"], err = json.Marshal(setup); err != nil {
		return nil, "", bad
	}
	if rest, err = json.Marshal(options); err != nil {
		return nil, "", bad
	}
	return rest, callback.Callback, nil
}

// budget is a storage budget as kits write it.
type budget struct {
	Roots        []string `json:"roots"`
	MaxBytes     *int64   `json:"max_bytes"`
	MaxEntries   *int64   `json:"max_entries"`
	MaxFileBytes *int64   `json:"max_file_bytes"`
	MinFreeBytes *int64   `json:"min_free_bytes"`
}

// open gives the canonical roots and the bounds, the defaults where none are given.
func (b budget) open() ([]string, storage.Budget, error) {
	out := storage.DefaultBudget()
	for _, f := range []struct{ to, from *int64 }{
		{&out.MaxBytes, b.MaxBytes}, {&out.MaxEntries, b.MaxEntries}, {&out.MaxFileBytes, b.MaxFileBytes}, {&out.MinFreeBytes, b.MinFreeBytes},
	} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	if err := out.Check(); err != nil {
		return nil, out, err
	}
	roots, err := storage.Roots(b.Roots)
	return roots, out, err
}

type look func(ctx context.Context, roots []string, b storage.Budget) (storage.Observation, error)

func (p *ports) storage(ctx context.Context, params json.RawMessage, look look) (any, error) {
	var in struct {
		Budget budget `json:"budget"`
	}
	if err := decode("storage", params, &in); err != nil {
		return nil, err
	}
	roots, bounds, err := in.Budget.open()
	if err != nil {
		return nil, err
	}
	select {
	case p.looks <- struct{}{}:
		defer func() { <-p.looks }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	return look(ctx, roots, bounds)
}

// watch begins a watch that outlives its call.
func (p *ports) watch(_ context.Context, peer *nodehost.Peer, params json.RawMessage) (any, error) {
	var in struct {
		ID         string  `json:"id"`
		Budget     budget  `json:"budget"`
		IntervalMs float64 `json:"intervalMs"`
	}
	if err := decode("storage.watch", params, &in); err != nil {
		return nil, err
	}
	roots, bounds, err := in.Budget.open()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(p.ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, twice := p.watches[in.ID]
	switch {
	case twice || in.ID == "":
		stop()
		return nil, fault.New(fault.OptionInvalid, "storage.watch: its id is another watch's")
	case len(p.watches) == maxWatches:
		stop()
		return nil, fault.New(fault.OptionInvalid, "storage.watch: more than %d watches at once", maxWatches)
	}
	every := time.Duration(in.IntervalMs * float64(time.Millisecond)) // not more than 0: the usual
	if every > 0 {
		every = max(every, watchAtMost)
	}
	p.watches[in.ID] = stop
	p.wg.Go(func() {
		defer stop()
		var last storage.Observation
		_ = storage.Watcher{
			Roots: roots, Budget: bounds, Every: every,
			Seen: func(o storage.Observation) { last = o },
			Violated: func(reason string) {
				last.Allowed, last.Reason = false, reason
				peer.Push("storage.violation", in.ID, last)
			},
		}.Run(ctx) // it ends by ctx alone
	})
	return struct{}{}, nil
}

func (p *ports) unwatch(params json.RawMessage) (any, error) {
	var in struct {
		ID string `json:"id"`
	}
	if err := decode("storage.unwatch", params, &in); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if stop := p.watches[in.ID]; stop != nil {
		stop()
		delete(p.watches, in.ID)
	}
	return struct{}{}, nil
}

// nested runs another kit, or the same again, for this one.
func (p *ports) nested(ctx context.Context, params json.RawMessage) (any, error) {
	var in struct {
		KitID          string `json:"kitId"`
		Dest           string `json:"dest"`
		RequestFile    string `json:"requestFile"`
		ControllerRoot string `json:"controllerRoot"`
		AuthFile       string `json:"authFile"`
	}
	if err := decode("kit.execute", params, &in); err != nil {
		return nil, err
	}
	if p.depth >= maxDepthOfRuns {
		return nil, fault.New(fault.OptionInvalid, "kit.execute: runs nest at most %d deep", maxDepthOfRuns)
	}
	o := p.Options // Node, environment and the like are the operator's choice for all
	o.KitID, o.Dest, o.RequestFile, o.ControllerRoot, o.AuthFile = in.KitID, in.Dest, in.RequestFile, in.ControllerRoot, in.AuthFile
	ctx, stop := context.WithCancelCause(ctx) // it is told to end when this run is, not when the process has
	defer stop(nil)
	defer context.AfterFunc(p.limited, func() { stop(context.Cause(p.limited)) })()
	out, err := p.Host.execute(ctx, o, p.depth+1)
	if err != nil {
		return nil, err
	}
	return out.Result, nil
}

// close ends what outlived its call; grants are closed by end.
func (p *ports) close() {
	p.mu.Lock()
	for _, stop := range p.watches {
		stop()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

package execution

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"path/filepath"
	"strconv"
	"sync"

	"drawbridge/kitrun/internal/lender"
	"drawbridge/kitrun/internal/worker"
	"drawbridge/shared/sibling"
	"drawbridge/shared/store"
	"drawbridge/shared/workernet"
)

// broking is a run's connection to a broker, made when the first grant is asked for.
type broking struct {
	lease *store.Lease
	mu    sync.Mutex
	l     *lender.Lender
	reach lender.Reach
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// keep renews the run's lease until what it gives is called.
func (r *run) keep(lease *store.Lease) (stop func()) {
	r.lease = lease
	keeper := store.NewKeeper(r.Store, r.Log)
	ctx, cancel := context.WithCancel(context.Background())
	_, unkeep := keeper.Keep(ctx, lease)
	var wg sync.WaitGroup
	wg.Go(func() { _ = keeper.Run(ctx) }) // ends by ctx alone
	return func() {
		unkeep()
		cancel()
		wg.Wait()
	}
}

// broker gives the lender of the run, and how a worker reaches what it lends.
// listen is where a brokerd listens that is started for it, "" for the usual.
func (r *run) broker(ctx context.Context, listen string) (*lender.Lender, lender.Reach, error) {
	engine, err := r.engine()
	if err != nil {
		return nil, lender.Reach{}, err
	}
	r.broking.mu.Lock()
	defer r.broking.mu.Unlock()
	if r.l != nil {
		return r.l, r.reach, nil
	}
	mode := ""
	if r.AsRequested {
		mode = worker.NetworkBridge
	}
	sum := sha256.Sum256([]byte(r.StoreDir))
	socket := filepath.Join(r.RuntimeDir, "broker-"+hex.EncodeToString(sum[:4]), "s")
	reach, err := lender.ReachOf(ctx, r.workerDeps(engine), mode, socket)
	if err != nil {
		return nil, reach, err
	}
	at := reach.Listen
	if listen != "" {
		at = []string{listen}
	}
	beside, err := lender.Beside(r.StoreDir, r.RuntimeDir, at)
	if err != nil {
		return nil, reach, err
	}
	beside.Path = r.program("brokerd")
	beside.Args = append(beside.Args, "-network", r.networkName(), "-docker-host", engine.Host())
	r.l, r.reach = lender.New(lender.Options{Store: r.Store, Creator: r.lease, Program: beside, Log: r.Log}), reach
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.broking.stop = stop
	r.done.Go(func() { _ = r.l.Run(run) }) // ends by its context alone
	return r.l, r.reach, nil
}

// stopBroker lets a brokerd go that was started for this run.
func (r *run) stopBroker() {
	r.broking.mu.Lock()
	defer r.broking.mu.Unlock()
	if r.broking.stop != nil {
		r.broking.stop()
		r.done.Wait()
	}
}

func (r *run) networkName() string {
	if r.NetworkName == "" {
		return workernet.DefaultName
	}
	return r.NetworkName
}

// workerDeps are those of every worker of the run.
func (r *run) workerDeps(engine worker.Engine) worker.Deps {
	d := worker.Deps{Engine: engine, Store: r.Store, Log: r.Log, Progress: r.Progress, RuntimeDir: r.RuntimeDir, NetworkName: r.NetworkName}
	d.Relay = r.program("station-shim")
	return d
}

// program gives the path of another program of ours.
func (r *run) program(name string) string {
	if r.Programs != "" {
		return filepath.Join(r.Programs, name)
	}
	path, err := sibling.Beside(name)
	if err != nil {
		r.Log.Warn("the programs beside this one cannot be found", "err", err)
	}
	return path
}

func joinPort(host string, port int64) string {
	return net.JoinHostPort(host, strconv.FormatInt(port, 10))
}

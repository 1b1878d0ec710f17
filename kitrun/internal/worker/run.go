package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"drawbridge/kitrun/internal/storage"
	"drawbridge/shared/crashpoint"
	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/shared/store"
)

// keptOfViolator is how much output is kept of a worker that broke its budget.
const keptOfViolator = 64 << 10

func (d Deps) withDefaults() Deps {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.NewID == nil {
		d.NewID = uuid.NewString
	}
	return d
}

func (d Deps) log() *slog.Logger {
	if d.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return d.Log
}

// run is one invocation under way.
type run struct {
	Deps
	*job
	red       *redact.Redactor
	id        identity
	net       network
	arts      *artifacts
	admitted  storage.Observation
	fork      string
	row       store.WorkerRun
	container string // "": none was made
	seen      Observed
	sources   []source  // of seen's mounts
	begun     time.Time // of the container
	stdout    *capture
	stderr    *capture
	overflow  chan struct{}

	digests struct{ context, stdin string }

	mu     sync.Mutex // serialises Progress
	event  Event
	since  time.Time
	events eventTail
}

// Run runs one turn and blocks until its container is gone. The receipt is valid
// when its Schema is set, which is so whenever codex was started; the error then
// says what could not be done about it besides (removal_unverified,
// receipt_unwritten). A turn that failed, was cancelled or ran out of time is no
// error: see Completed and Terminal.
func Run(ctx context.Context, o Options, d Deps) (Receipt, error) {
	d = d.withDefaults()
	j, err := check(o, d)
	if err != nil {
		return Receipt{}, err
	}
	r := &run{Deps: d, job: j, red: redactor(j.ProviderProxy.Capability), since: d.Now(), overflow: make(chan struct{}, 2)}
	r.event = Event{InvocationID: j.InvocationID, InputTokens: -1, OutputTokens: -1, ObservedBytes: -1, ObservedEntries: -1}
	ctx, stop := context.WithTimeoutCause(ctx, j.Timeout, errDeadline)
	defer stop()
	receipt, err := r.do(ctx)
	return receipt, r.clean(err)
}

func (r *run) do(ctx context.Context) (_ Receipt, err error) {
	if err := r.qualify(ctx); err != nil {
		return Receipt{}, err
	}
	if r.arts, err = openArtifacts(r.ArtifactRoot, r.InvocationID); err != nil {
		return Receipt{}, err
	}
	defer r.arts.Close()
	if err := r.admit(ctx); err != nil {
		return Receipt{}, err
	}
	if err := r.create(ctx); err != nil {
		return Receipt{}, errors.Join(err, r.never())
	}
	end, err := r.start(ctx)
	if err != nil {
		return Receipt{}, errors.Join(err, r.never())
	}
	defer r.stdout.Close()
	defer r.stderr.Close()
	return r.finish(ctx, end)
}

// qualify asks the engine what it is and whether it has the image.
func (r *run) qualify(ctx context.Context) error {
	info, err := Ask(ctx, r.Engine)
	if err != nil {
		return r.outOfTime(ctx, "ask the container engine", err)
	}
	if r.id, err = qualify(info); err != nil {
		return err
	}
	r.limits.CPUs = min(r.limits.CPUs, float64(max(info.CPUs, 1))) // an engine refuses more than it has
	if r.id.native && !slices.ContainsFunc(r.id.security, func(opt string) bool { return strings.HasPrefix(opt, "name=seccomp") }) {
		r.Log.Warn("the container engine has no seccomp: containers may make every system call", "options", r.id.security)
	}
	if r.User != "" && !r.id.native {
		return invalid("user", "it can be chosen only where the engine runs on this machine's kernel")
	}
	id, err := r.Engine.Image(ctx, r.Image)
	switch {
	case errors.Is(err, errNoImage), err == nil && id != r.Image:
		return fault.New(fault.ImageUnknown, "look for the image: the engine has none of the id %s", r.Image).
			WithHint("nothing is pulled; load the image first (scripts/worker-image)")
	case err != nil:
		return r.outOfTime(ctx, "look for the image", unavailable("look for the image", err))
	}
	if r.id.native {
		return r.ownedBy()
	}
	return nil
}

// admit is steps 3 and 4.
func (r *run) admit(ctx context.Context) (err error) {
	if r.admitted, err = storage.Admit(ctx, r.roots, r.budget); err != nil {
		return r.outOfTime(ctx, "admit the storage", err)
	}
	r.emit(func(e *Event) {
		e.State, e.ObservedBytes, e.ObservedEntries = StateAdmitted, r.admitted.ObservedBytes, r.admitted.ObservedEntries
	})
	if r.Setup.Prepare == nil {
		return nil
	}
	if err := prepare(ctx, r.Setup.Prepare, r.prepareInput()); err != nil {
		return err
	}
	if r.admitted, err = storage.Admit(ctx, r.roots, r.budget); err != nil {
		return r.outOfTime(ctx, "admit the prepared storage", err)
	}
	r.emit(func(e *Event) {
		e.State, e.ObservedBytes, e.ObservedEntries = StatePrepared, r.admitted.ObservedBytes, r.admitted.ObservedEntries
	})
	return nil
}

// create makes the container and verifies it; steps 5 and 6.
func (r *run) create(ctx context.Context) (err error) {
	if r.net, err = r.connect(ctx, r.Deps, r.id); err != nil {
		return r.outOfTime(ctx, "connect the worker", err)
	}
	if r.fork, err = forkDigest(ctx, r.Workspace); err != nil {
		return r.outOfTime(ctx, "digest the workspace", err)
	}
	if ctx.Err() != nil {
		return notStarted(ctx, "make the container")
	}
	deadline, _ := ctx.Deadline()
	r.row, err = r.Store.AdmitWorker(ctx, store.NewWorkerRun{InvocationID: r.InvocationID, RunID: r.RunID, OwnerID: r.OwnerID,
		Image: r.Image, ArtifactRoot: r.ArtifactRoot, DeadlineAt: deadline.UnixMilli()})
	if err != nil {
		return r.outOfTime(ctx, "record the worker", err)
	}
	// From here on no end of ctx cuts a call in the middle: what was begun is known.
	calls, done := context.WithTimeout(context.WithoutCancel(ctx), startWait)
	defer done()
	spec := r.spec(r.Store.ID(), r.net)
	if !r.id.native {
		spec.User = ""
	}
	if r.container, err = r.Engine.Create(calls, spec); err != nil {
		return r.notMade("make", err)
	}
	crashpoint.At("worker_made")
	row, err := r.Store.WorkerCreated(calls, r.InvocationID, r.container)
	if err != nil {
		return err
	}
	r.row = row
	if r.seen, err = r.Engine.Inspect(calls, r.container); err != nil {
		return r.notMade("inspect", err)
	}
	if err := differs(r.seen, spec, r.id); err != nil {
		return err
	}
	if r.sources, err = realSources(r.seen.Mounts); err != nil {
		return err
	}
	if err := forbid(r.seen.Mounts, r.forbidden); err != nil {
		return err
	}
	r.emit(func(e *Event) { e.State = StateCreated })
	if ctx.Err() != nil {
		return notStarted(ctx, "start the container")
	}
	return nil
}

// start writes the copies of what goes in and runs the turn; steps 7 to 9.
func (r *run) start(ctx context.Context) (end ending, err error) {
	if r.digests.context, err = r.arts.keep(contextSuffix, bytes.NewReader(r.context)); err != nil {
		return end, err
	}
	if r.digests.stdin, err = r.arts.keep(stdinSuffix, bytes.NewReader(r.prompt)); err != nil {
		return end, err
	}
	over := func() { r.overflow <- struct{}{} }
	r.events.see = r.codexEvent
	if r.stdout, err = newCapture(r.ArtifactRoot, r.red, over, r.events.write); err != nil {
		return end, r.notMade("keep the output of", err)
	}
	if r.stderr, err = newCapture(r.ArtifactRoot, r.red, over, nil); err != nil {
		r.stdout.Close()
		return end, r.notMade("keep the output of", err)
	}
	end, err = r.runTurn(ctx)
	if err != nil {
		r.stdout.Close()
		r.stderr.Close()
	}
	return end, err
}

// never cleans up after a container that did not start. Its error hides no other.
func (r *run) never() error {
	if r.row.InvocationID == "" {
		return nil // nothing was begun
	}
	r.arts.discard()
	err := r.remove()
	r.ended(err, "")
	return err
}

// remove removes the container and whatever else carries the invocation.
func (r *run) remove() error {
	ids := []string{r.container}
	if r.container == "" { // the engine may have made it nevertheless
		calls, done := context.WithTimeout(context.Background(), removeWait)
		defer done()
		found, err := r.Engine.List(calls, labelInvocation+"="+r.InvocationID, labelStore+"="+r.Store.ID())
		if err != nil {
			return unverified(r.InvocationID, err)
		}
		ids = ids[:0]
		for _, f := range found {
			ids = append(ids, f.ID)
		}
	}
	for _, id := range ids {
		if err := removeVerified(r.Engine, id); err != nil {
			return unverified(r.InvocationID, err)
		}
	}
	crashpoint.At("worker_gone")
	return nil
}

// ended settles the row. A row that cannot be settled is found by the next sweep.
func (r *run) ended(removal error, receiptDigest string) {
	state := store.WorkerRemoved
	if removal != nil {
		state = store.WorkerUnverified
	}
	if _, err := r.Store.WorkerEnded(context.Background(), r.row, state, receiptDigest); err != nil {
		r.Log.Warn("the end of a worker was not recorded", "invocation", r.InvocationID, "err", err)
	}
}

// finish is steps 10 to 13.
func (r *run) finish(ctx context.Context, end ending) (Receipt, error) {
	removal := r.remove()
	if removal == nil {
		r.emit(func(e *Event) { e.State = StateRemoved })
	}
	ended := r.Now()
	r.lastLook(&end)
	harness := r.harness(ctx)

	receipt := r.receipt(end, harness, ended)
	receipt.ContainerRemoved = removal == nil
	kept := r.outputs(&receipt, end)
	if kept != nil { // a full disk has room again without what was captured
		r.stdout.Close()
		r.stderr.Close()
	}
	digest, err := r.arts.receipt(receipt) // also when the output could not be kept
	if err == nil {
		crashpoint.At("worker_receipt")
	}
	r.ended(removal, digest)
	r.emit(func(e *Event) {
		if e.State = StateFailed; receipt.Completed {
			e.State = StateCompleted
		}
	})
	return receipt, errors.Join(kept, err, removal)
}

// lastLook inspects the storage once more: what was written just before the end
// counts, too.
func (r *run) lastLook(end *ending) {
	seen, err := storage.Inspect(context.Background(), r.roots, r.budget)
	switch {
	case end.violation != "":
	case err != nil:
		end.violation = storage.InspectionFailed
	case !seen.Allowed:
		end.violation = seen.Reason
	}
	if err == nil {
		r.emit(func(e *Event) { e.ObservedBytes, e.ObservedEntries = seen.ObservedBytes, seen.ObservedEntries })
	}
}

// outputs keeps what the worker wrote and reads the turn from it.
func (r *run) outputs(receipt *Receipt, end ending) error {
	most := int64(-1)
	if end.violation != "" {
		most = keptOfViolator
	}
	stdout, err := r.stdout.end(most)
	if err != nil {
		return err
	}
	stderr, err := r.stderr.end(most)
	if err != nil {
		return err
	}
	if receipt.StdoutDigest, err = r.arts.keep(stdoutSuffix, stdout); err != nil {
		return err
	}
	if receipt.StderrDigest, err = r.arts.keep(stderrSuffix, stderr); err != nil {
		return err
	}
	if end.violation != "" || end.timeout || end.overflow || end.cancelled || end.status == nil {
		return nil
	}
	again, err := r.stdout.end(most)
	if err != nil {
		return err
	}
	sum, err := ParseEvents(again)
	// The texts may hold what an escape of JSON had hidden in the bytes.
	receipt.Failure = r.red.Text(sum.Failure)
	switch {
	case *end.status != 0:
		return nil // whatever it wrote
	case err != nil:
		r.Log.Info("the worker's output is not one complete turn", "invocation", r.InvocationID, "err", err)
		return nil
	}
	thread := r.red.Text(sum.ThreadID)
	receipt.Completed, receipt.ProviderThreadID, receipt.Usage = true, &thread, sum.Usage
	if sum.Final != nil {
		final := r.red.Text(*sum.Final)
		receipt.Final = &final
	}
	return nil
}

// receipt is what can be said before the output is read.
func (r *run) receipt(end ending, h harness, ended time.Time) Receipt {
	user := r.seen.User
	if !r.id.native {
		user = "unverified"
	}
	out := Receipt{
		Schema: ReceiptSchema, Version: ReceiptVersion,
		Observed: Facts{
			ExecutionOwner: orNil(r.OwnerID), InvocationID: r.InvocationID, ContainerID: r.container, Image: r.seen.Image,
			ArgvModel: r.Model, ReasoningEffort: r.ReasoningEffort,
			ReasoningObservation: "requested by argv and private configuration; what was applied is not observed",
			ModelObservation:     "requested by argv and private configuration; the physical model is unverified",
			Provider:             "openai",
			ProviderObservation:  "the scoped host proxy was the only provider configured; the identity of the upstream needs the broker's own evidence",
			Harness:              "codex", HarnessVersion: orNil(h.version), EntrypointDigest: orNil(h.digest),
			StorageAdmission: r.admitted, CanonicalWorkspace: r.member("canonical_workspace"), UnitScope: r.member("unit_scope"),
			SourceForkDigest: r.fork, SourceForkAlgorithm: forkAlgorithm, ReadOnlyWorkspace: r.ReadOnlyWorkspace,
			ContextDigest: r.digests.context, InitialPromptDigest: digestBytes(r.prompt), StdinDigest: r.digests.stdin,
			HostSetup: r.Setup.Metadata, Mounts: mountsOf(r.seen), Network: r.seen.Network, NetworkMode: r.net.mode,
			NetworkHostServices: r.net.hostServices(), ExtraHosts: r.seen.ExtraHosts, ReadOnlyRoot: r.seen.ReadOnlyRoot,
			HostIdentity: HostIdentity{UID: os.Geteuid(), GID: os.Getegid(), ContainerUser: user, UsernsMode: r.seen.UsernsMode,
				SecurityOptions: r.id.security},
			ForbiddenRoots: r.forbidden,
		},
		Terminal:         Terminal{Status: end.status, Timeout: end.timeout, Overflow: end.overflow, Cancelled: end.cancelled, OOM: end.oom},
		StorageViolation: orNil(end.violation),
		StartedAt:        r.begun.UTC().Format(time.RFC3339Nano), EndedAt: ended.UTC().Format(time.RFC3339Nano),
	}
	if end.status != nil && *end.status == 137 {
		out.Terminal.Signal = orNil("SIGKILL")
	}
	if out.Observed.HostSetup == nil {
		out.Observed.HostSetup = json.RawMessage("null")
	}
	if out.Observed.ForbiddenRoots == nil {
		out.Observed.ForbiddenRoots = []ForbiddenRoot{}
	}
	out.Observed.ControllerMounted = r.cleared(KindController)
	out.Observed.HiddenOraclesMounted = r.cleared(KindHiddenOracle)
	out.Observed.CredentialsMounted = r.cleared(KindCredentials)
	return out
}

// cleared gives false when a root of that kind was listed, and nil when nobody
// said where there is one. It is never true: that is a refusal.
func (r *run) cleared(kind string) *bool {
	for _, f := range r.forbidden {
		if f.Kind == kind {
			return new(bool)
		}
	}
	return nil
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// emit changes what is known and tells it.
func (r *run) emit(change func(*Event)) {
	if r.Progress == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.event)
	r.event.At = r.Now()
	r.event.Elapsed = r.event.At.Sub(r.since)
	r.Progress(r.event)
}

// codexEvent takes note of one line of the turn.
func (r *run) codexEvent(e tailEvent) {
	crashpoint.At("worker_turn")
	r.emit(func(ev *Event) {
		ev.Events++
		ev.Codex, ev.Item = e.kind, e.item
		if e.usage.Complete {
			ev.InputTokens, ev.OutputTokens = e.usage.InputTokens, e.usage.OutputTokens
		}
	})
}

// Package catalog is the nineteen tools as a controller model sees them: names,
// descriptions, reviewed schemas, annotations, argument rules, and the form of
// results and refusals (tools §1–§4, §8). Package mcpserver puts it on the wire;
// package handoff does the work.
//
// A call goes through in three steps. Accept checks the arguments against the
// published schema and fails before any tool code runs. Run applies the rules
// that no schema can express and calls handoff. What comes back, result or
// error, passes one scrubber that removes whatever proves freshness or
// authority, because no tool may be trusted to leave it out (tools §3).
//
// The package keeps no state between calls and writes nothing.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sort"

	"drawbridge/shared/fault"
	"drawbridge/shared/handoff"
	"drawbridge/shared/strictjson"
)

// Prefix of every tool name.
const Prefix = "agent_knock_knock_"

// maxArguments bounds the arguments of one call in bytes.
const maxArguments = 1 << 20

// Handoff does the work behind the tools.
type Handoff interface {
	List(context.Context, handoff.ListInput) (handoff.Outcome, error)
	Status(context.Context, handoff.StatusInput) (handoff.Outcome, error)
	Watch(context.Context, handoff.Call, handoff.WatchInput) (handoff.Outcome, error)
	Unwatch(context.Context, handoff.Call, handoff.UnwatchInput) (handoff.Outcome, error)
	Send(context.Context, handoff.Call, handoff.SendInput) (handoff.Outcome, error)
	Renew(context.Context, handoff.Call, handoff.RenewInput) (handoff.Outcome, error)
	RetryCallback(context.Context, handoff.Call, handoff.RetryCallbackInput) (handoff.Outcome, error)
	Cancel(context.Context, handoff.Call, handoff.CancelInput) (handoff.Outcome, error)
	Close(context.Context, handoff.Call, handoff.CloseInput) (handoff.Outcome, error)
	Approve(context.Context, handoff.Call, handoff.ApproveInput) (handoff.Outcome, error)
	Respond(context.Context, handoff.Call, handoff.RespondInput) (handoff.Outcome, error)
	RespondInteraction(context.Context, handoff.Call, handoff.RespondInteractionInput) (handoff.Outcome, error)
	NativeInspect(context.Context, handoff.Call, handoff.NativeInspectInput) (handoff.Outcome, error)
	IdentifyForeground(context.Context, handoff.Call, handoff.IdentifyForegroundInput) (handoff.Outcome, error)
	IdentifyAndSend(context.Context, handoff.Call, handoff.IdentifyAndSendInput) (handoff.Outcome, error)
	ListResumableThreads(context.Context, handoff.Call, handoff.ListResumableThreadsInput) (handoff.Outcome, error)
	NewThread(context.Context, handoff.Call, handoff.NewThreadInput) (handoff.Outcome, error)
	ResumeThread(context.Context, handoff.Call, handoff.ResumeThreadInput) (handoff.Outcome, error)
	ReconcileBinding(context.Context, handoff.Call, handoff.ReconcileBindingInput) (handoff.Outcome, error)
}

// Options of a Catalog. Handoff is required.
type Options struct {
	// Handoff is asked for at every call: it may still be in the making when
	// the first client looks at the tools.
	Handoff func(context.Context) (Handoff, error)
	Log     *slog.Logger
	// Private values are exact texts that no result may hold: the controller
	// session, the directories of the Store.
	Private []string
	// Paths are withheld from texts that explain a failure, and left alone where
	// an agent or a user may well have written them: the callback executable.
	Paths []string
}

// Catalog holds the tools with their compiled schemas. It is immutable and
// safe for concurrent use.
type Catalog struct {
	handoff func(context.Context) (Handoff, error)
	log     *slog.Logger
	scrub   scrubber
	tools   map[string]*tool
	listed  []Tool
}

// Tool is what tools/list shows of one.
type Tool struct {
	Name        string
	Title       string
	Description string
	InputSchema []byte // compact JSON, members as reviewed

	// Annotations (MCP). Hosts decide by them what a person must confirm.
	ReadOnly    bool // changes nothing but bookkeeping of its own
	Destructive bool // may end or change work, or give a record up
	Idempotent  bool // the same call again has no further effect
	OpenWorld   bool // sets an agent or the Host's executable in motion
}

// New compiles the schemas. An error means a schema that was built in is wrong.
func New(o Options) (*Catalog, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	c := &Catalog{handoff: o.Handoff, log: o.Log, scrub: newScrubber(o.Private, o.Paths), tools: map[string]*tool{}}
	for i := range tools {
		t := &tools[i]
		schema, published, err := loadSchema(t.name, t.form)
		if err != nil {
			return nil, fmt.Errorf("read the schema of %s: %w", t.name, err)
		}
		name := Prefix + t.name
		c.tools[name] = &tool{spec: t, schema: schema}
		c.listed = append(c.listed, Tool{
			Name: name, Title: t.title, Description: t.description, InputSchema: published,
			ReadOnly: t.readOnly, Destructive: t.destructive, Idempotent: t.idempotent, OpenWorld: t.openWorld,
		})
	}
	sort.Slice(c.listed, func(i, j int) bool { return c.listed[i].Name < c.listed[j].Name })
	return c, nil
}

// Tools lists all tools, sorted by name.
func (c *Catalog) Tools() []Tool { return append([]Tool(nil), c.listed...) }

// tool is one entry with its compiled schema.
type tool struct {
	spec   *spec
	schema *schema
}

// A Request is one call whose arguments fit the schema.
type Request struct {
	catalog *Catalog
	tool    *tool
	args    []byte
}

// ErrUnknownTool says that no tool has the name.
var ErrUnknownTool = errors.New("unknown tool")

// Accept checks name and arguments. Missing arguments and null mean {}. The
// error is for a protocol error -32602 and carries no value of the arguments
// that was not in the call itself.
func (c *Catalog) Accept(name string, args []byte) (*Request, error) {
	t, ok := c.tools[name]
	if !ok {
		return nil, fmt.Errorf("%w %q", ErrUnknownTool, name)
	}
	if len(args) == 0 || string(args) == "null" {
		args = []byte("{}")
	}
	if err := t.schema.validate(args); err != nil {
		return nil, fmt.Errorf("invalid arguments of %s: %w", name, err)
	}
	return &Request{c, t, args}, nil
}

// Result is the answer to one call, ready for the wire.
type Result struct {
	Text       string // pretty JSON of Structured
	Structured []byte // one JSON object
	IsError    bool
	Code       fault.Code // of a refusal, for the log
}

// Run executes the call. Failures are results too: a model must be able to
// read them.
func (r *Request) Run(ctx context.Context, call handoff.Call) Result {
	res, err := r.run(ctx, call)
	if err != nil {
		return r.catalog.refuse(r.tool.spec, err)
	}
	return res
}

func (r *Request) run(ctx context.Context, call handoff.Call) (Result, error) {
	h, err := r.catalog.handoff(ctx)
	if err != nil {
		return Result{}, err
	}
	out, err := r.tool.spec.run(ctx, h, call, r.args)
	if err != nil {
		return Result{}, err
	}
	return r.catalog.render(out)
}

// Ready makes the option Handoff of one that is there.
func Ready(h Handoff) func(context.Context) (Handoff, error) {
	return func(context.Context) (Handoff, error) { return h, nil }
}

// decode fills v with arguments that the schema has already passed.
func decode(args []byte, v any) error {
	err := strictjson.Decode(args, v, strictjson.Limits{MaxBytes: maxArguments})
	if err != nil {
		return fault.New(fault.InvalidArguments, "read the arguments: %w", err).Safe()
	}
	return nil
}

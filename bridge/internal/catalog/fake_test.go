package catalog_test

import (
	"context"
	"encoding/json"
	"sync"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/shared/handoff"
)

// fake is a Handoff that records and answers what a test wants.
type fake struct {
	mu    sync.Mutex
	calls []executed
	out   handoff.Outcome
	err   error
}

// executed is one call that reached the tool code.
type executed struct {
	Tool  string
	Call  handoff.Call
	Input any
}

func (f *fake) run(tool string, call handoff.Call, in any) (handoff.Outcome, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, executed{tool, call, in})
	return f.out, f.err
}

func (f *fake) count() int { f.mu.Lock(); defer f.mu.Unlock(); return len(f.calls) }

func (f *fake) List(_ context.Context, in handoff.ListInput) (handoff.Outcome, error) {
	return f.run("list", handoff.Call{}, in)
}

func (f *fake) Status(_ context.Context, in handoff.StatusInput) (handoff.Outcome, error) {
	return f.run("status", handoff.Call{}, in)
}

func (f *fake) Watch(_ context.Context, c handoff.Call, in handoff.WatchInput) (handoff.Outcome, error) {
	return f.run("watch", c, in)
}

func (f *fake) Unwatch(_ context.Context, c handoff.Call, in handoff.UnwatchInput) (handoff.Outcome, error) {
	return f.run("unwatch", c, in)
}

func (f *fake) Send(_ context.Context, c handoff.Call, in handoff.SendInput) (handoff.Outcome, error) {
	return f.run("send", c, in)
}

func (f *fake) Renew(_ context.Context, c handoff.Call, in handoff.RenewInput) (handoff.Outcome, error) {
	return f.run("renew", c, in)
}

func (f *fake) RetryCallback(_ context.Context, c handoff.Call, in handoff.RetryCallbackInput) (handoff.Outcome, error) {
	return f.run("retry_callback", c, in)
}

func (f *fake) Cancel(_ context.Context, c handoff.Call, in handoff.CancelInput) (handoff.Outcome, error) {
	return f.run("cancel", c, in)
}

func (f *fake) Close(_ context.Context, c handoff.Call, in handoff.CloseInput) (handoff.Outcome, error) {
	return f.run("close", c, in)
}

func (f *fake) Approve(_ context.Context, c handoff.Call, in handoff.ApproveInput) (handoff.Outcome, error) {
	return f.run("approve", c, in)
}

func (f *fake) Respond(_ context.Context, c handoff.Call, in handoff.RespondInput) (handoff.Outcome, error) {
	return f.run("respond", c, in)
}

func (f *fake) RespondInteraction(_ context.Context, c handoff.Call, in handoff.RespondInteractionInput) (handoff.Outcome, error) {
	return f.run("respond_interaction", c, in)
}

func (f *fake) NativeInspect(_ context.Context, c handoff.Call, in handoff.NativeInspectInput) (handoff.Outcome, error) {
	return f.run("native_inspect", c, in)
}

func (f *fake) IdentifyForeground(_ context.Context, c handoff.Call, in handoff.IdentifyForegroundInput) (handoff.Outcome, error) {
	return f.run("identify_foreground", c, in)
}

func (f *fake) IdentifyAndSend(_ context.Context, c handoff.Call, in handoff.IdentifyAndSendInput) (handoff.Outcome, error) {
	return f.run("identify_and_send", c, in)
}

func (f *fake) ListResumableThreads(_ context.Context, c handoff.Call, in handoff.ListResumableThreadsInput) (handoff.Outcome, error) {
	return f.run("list_resumable_threads", c, in)
}

func (f *fake) NewThread(_ context.Context, c handoff.Call, in handoff.NewThreadInput) (handoff.Outcome, error) {
	return f.run("new_thread", c, in)
}

func (f *fake) ResumeThread(_ context.Context, c handoff.Call, in handoff.ResumeThreadInput) (handoff.Outcome, error) {
	return f.run("resume_thread", c, in)
}

func (f *fake) ReconcileBinding(_ context.Context, c handoff.Call, in handoff.ReconcileBindingInput) (handoff.Outcome, error) {
	return f.run("reconcile_binding", c, in)
}

// tester is what the helpers ask of a *testing.T or a *rapid.T.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
}

func open(t tester, f *fake, private ...string) *catalog.Catalog {
	t.Helper()
	if f.out.Body == nil {
		f.out.Body = struct{}{}
	}
	c, err := catalog.New(catalog.Options{Handoff: catalog.Ready(f), Private: private})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run makes one call that the schema lets through.
func run(t tester, c *catalog.Catalog, tool, args string) catalog.Result {
	t.Helper()
	req, err := c.Accept(catalog.Prefix+tool, []byte(args))
	if err != nil {
		t.Fatalf("%s(%s): %v", tool, args, err)
	}
	return req.Run(context.Background(), handoff.Call{ToolCallID: "id", Tool: catalog.Prefix + tool})
}

func object(t tester, res catalog.Result) map[string]any {
	t.Helper()
	var text, structured map[string]any
	if err := json.Unmarshal([]byte(res.Text), &text); err != nil {
		t.Fatalf("text %q: %v", res.Text, err)
	}
	if err := json.Unmarshal(res.Structured, &structured); err != nil {
		t.Fatalf("structured %q: %v", res.Structured, err)
	}
	return structured
}

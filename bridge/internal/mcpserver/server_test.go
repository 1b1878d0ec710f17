package mcpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"drawbridge/bridge/internal/catalog"
	"drawbridge/bridge/internal/mcpserver"
	"drawbridge/shared/fault"
)

// Proves core 19.60 and tools 11.39: a call in progress when the server is told to
// stop is answered; one sent later is not executed.
func TestServer_Stop_AnswersAcceptedCalls(t *testing.T) {
	r := serve(t, nil)
	r.initialize()
	r.call(`7`, "wait")
	eventually(t, "the call runs", func() bool { return r.tools.running.Load() == 1 })
	r.stop()
	<-r.server.Stopping()
	r.call(`8`, "later")
	close(r.tools.gate)
	line, _ := r.next()
	if a := parse(t, line); string(a.ID) != "7" || a.Result == nil || a.Result.IsError {
		t.Errorf("answer %s", line)
	}
	if line, ok := r.next(); ok {
		t.Errorf("one more line: %s", line)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := r.tools.total.Load(); got != 1 {
		t.Errorf("%d calls were executed", got)
	}
}

// The end of input is a stop like any other: everything in front of it is
// answered, also what had not begun.
func TestServer_EndOfInput_AnswersEverythingRead(t *testing.T) {
	r := serve(t, func(o *mcpserver.Options) { o.Parallel = 1 })
	r.initialize()
	const calls = 20
	for i := range calls {
		r.call(fmt.Sprint(i), "short")
	}
	fmt.Fprint(r.in, `{"jsonrpc":"2.0","id":"last","method":"ping"}`) // without a line end
	r.in.Close()
	var got []string
	for line := range r.lines {
		got = append(got, string(parse(t, line).ID))
	}
	want := []string{`"last"`}
	for i := range calls {
		want = append(want, fmt.Sprint(i))
	}
	sort.Strings(got)
	sort.Strings(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := r.tools.most.Load(); got != 1 {
		t.Errorf("%d calls at once, want 1", got)
	}
}

// What the deadline cuts ends with exit 70 and names what was cut.
func TestServer_Drain_Expires(t *testing.T) {
	r := serve(t, func(o *mcpserver.Options) { o.Drain = 100 * time.Millisecond })
	r.initialize()
	r.call(`1`, "wait")
	eventually(t, "the call runs", func() bool { return r.tools.running.Load() == 1 })
	begun := time.Now()
	r.in.Close()
	err := r.wait()
	if !fault.Is(err, fault.DrainExpired) || fault.ExitCode(err) != 70 {
		t.Fatalf("Run: %v", err)
	}
	if !strings.Contains(err.Error(), "1 calls were not answered") || !strings.Contains(err.Error(), "tools/call") {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(begun); took < 100*time.Millisecond || took > 5*time.Second {
		t.Errorf("drained for %v", took)
	}
	if r.tools.ended.Load() != 1 {
		t.Error("the context of the call did not end")
	}
	if line, ok := r.next(); ok {
		t.Errorf("the cut call was answered: %s", line)
	}
}

// A tool that does not end cannot hold the process: Run returns without it.
func TestServer_Drain_StubbornTool(t *testing.T) {
	r := serve(t, func(o *mcpserver.Options) { o.Drain = 50 * time.Millisecond })
	r.initialize()
	r.call(`1`, "stubborn")
	eventually(t, "the call runs", func() bool { return r.tools.running.Load() == 1 })
	r.stop()
	if err := r.wait(); !fault.Is(err, fault.DrainExpired) {
		t.Fatalf("Run: %v", err)
	}
	close(r.tools.gate) // lets the goroutine end
	eventually(t, "the tool ends", func() bool { return r.tools.running.Load() == 0 })
}

// A cancelled call ends, frees its slot, and no message with its id follows;
// the process goes on. The id may be written another way.
func TestServer_Cancelled(t *testing.T) {
	r := serve(t, func(o *mcpserver.Options) { o.Parallel = 1 })
	r.initialize()
	r.call(`1`, "wait")
	eventually(t, "the call runs", func() bool { return r.tools.running.Load() == 1 })
	r.call(`2`, "wait") // waits for the slot
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"1","reason":"another id"}}`)
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}`)
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`)
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"init"}}`)
	r.send(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	if line, _ := r.next(); string(parse(t, line).ID) != "3" {
		t.Fatalf("not the ping: %s", line)
	}
	if r.tools.ended.Load() != 0 {
		t.Error("the id 1 was taken for \"1\"")
	}
	r.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1.0,"reason":"user"}}`)
	eventually(t, "the call ends", func() bool { return r.tools.ended.Load() == 1 })
	r.call(`4`, "short")
	if line, _ := r.next(); string(parse(t, line).ID) != "4" {
		t.Fatalf("not the call 4: %s", line)
	}
	r.in.Close()
	if line, ok := r.next(); ok {
		t.Errorf("one more line: %s", line)
	}
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := r.tools.total.Load(); got != 2 {
		t.Errorf("%d calls were executed, want 1 and 4", got)
	}
}

// Proves tools 11.10 and 11.12 as far as the front is concerned: an id used
// again is the same call, at the same time or later, and each is answered.
func TestServer_RepeatedID(t *testing.T) {
	r := serve(t, nil)
	r.initialize()
	r.call(`1`, "wait")
	r.call(`1.0`, "wait")
	eventually(t, "both run", func() bool { return r.tools.running.Load() == 2 })
	close(r.tools.gate)
	first, _ := r.next()
	second, _ := r.next()
	got := []string{string(parse(t, first).ID), string(parse(t, second).ID)}
	sort.Strings(got)
	if diff := cmp.Diff([]string{"1", "1.0"}, got); diff != "" {
		t.Error(diff)
	}
	r.call(`"1"`, "short")
	r.next()
	r.call(`1e0`, "short")
	r.next()
	var ids []string
	r.tools.mu.Lock()
	defer r.tools.mu.Unlock()
	for _, c := range r.tools.calls {
		ids = append(ids, c.ToolCallID)
	}
	want := []string{`host-bridge:["instance",1]`, `host-bridge:["instance",1]`, `host-bridge:["instance","1"]`, `host-bridge:["instance",1]`}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Error(diff)
	}
}

// Proves tools 11.5: nothing but whole frames on stdout, under load, on panics
// and through a stop in the middle of it; and no more than Parallel at once.
func TestServer_StdoutPurity(t *testing.T) {
	r := serve(t, func(o *mcpserver.Options) { o.Parallel = 8; o.Drain = 10 * time.Second })
	r.initialize()
	const calls = 600
	kinds := []string{"short", "panic", "refuse", "pending", strings.Repeat("é<&> ", 3000)}
	go func() {
		for i := range calls {
			switch {
			case i%50 == 7:
				fmt.Fprintln(r.in, `{"broken`)
			case i%50 == 9:
				fmt.Fprintln(r.in, `{"jsonrpc":"2.0","id":`+fmt.Sprint(i)+`,"method":"tools/call","params":{"name":"nothing"}}`)
			default:
				fmt.Fprintf(r.in, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"agent_knock_knock_send","arguments":{"request":%q}}}`+"\n", i, kinds[i%len(kinds)])
			}
		}
		r.in.Close()
	}()
	seen, null := map[string]int{}, 0
	codes := map[int]int{}
	for line := range r.lines {
		a := parse(t, line)
		if (a.Result == nil) == (a.Error == nil) {
			t.Fatalf("neither result nor error alone: %.200s", line)
		}
		if strings.Contains(line, "secret detail") || strings.Contains(line, "canary") {
			t.Fatalf("a secret came out: %.200s", line)
		}
		if a.Error != nil {
			codes[a.Error.Code]++
		}
		if string(a.ID) == "null" {
			null++
			continue
		}
		seen[string(a.ID)]++
	}
	if err := r.wait(); err != nil {
		t.Fatalf("Run: %v", err)
	}
	if len(seen)+null != calls || null != calls/50 {
		t.Errorf("%d answers and %d with a null id for %d lines", len(seen), null, calls)
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("id %s was answered %d times", id, n)
		}
	}
	if codes[-32700] != calls/50 || codes[-32602] != calls/50 || codes[-32603] == 0 {
		t.Errorf("codes %v", codes)
	}
	if most := r.tools.most.Load(); most > 8 || most < 2 {
		t.Errorf("%d calls at once, want 2 to 8", most)
	}
	if !strings.Contains(r.log.String(), "panic in a call") {
		t.Error("the panics are not in the log")
	}
}

// Reading goes on while all slots are taken: a ping is answered.
func TestServer_ReadsWhileBusy(t *testing.T) {
	r := serve(t, func(o *mcpserver.Options) { o.Parallel = 2 })
	r.initialize()
	for i := range 10 {
		r.call(fmt.Sprint(i), "wait")
	}
	eventually(t, "two run", func() bool { return r.tools.running.Load() == 2 })
	r.send(`{"jsonrpc":"2.0","id":"p","method":"ping"}`)
	if line, _ := r.next(); string(parse(t, line).ID) != `"p"` {
		t.Fatalf("not the ping: %s", line)
	}
	close(r.tools.gate)
	for range 10 {
		r.next()
	}
}

func TestServer_TooManyCalls(t *testing.T) {
	r := serve(t, nil)
	r.initialize()
	for i := range 1025 {
		r.call(fmt.Sprint(i), "wait")
	}
	line, _ := r.next()
	if a := parse(t, line); string(a.ID) != "1024" || a.Error == nil || a.Error.Code != -32603 {
		t.Fatalf("answer %s", line)
	}
	close(r.tools.gate)
	for range 1024 {
		r.next()
	}
}

// Messages of several MiB pass in both directions; one over the limit is
// answered and skipped.
func TestServer_LongMessages(t *testing.T) {
	r := serve(t, nil)
	r.initialize()
	long := strings.Repeat("x", 8<<20)
	r.send(`{"jsonrpc":"2.0","id":%q,"method":"ping","params":{"_meta":{"pad":"%s"}}}`, "long", long)
	if line, _ := r.next(); string(parse(t, line).ID) != `"long"` {
		t.Fatalf("not the long ping: %.100s", line)
	}
	r.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"agent_knock_knock_status","arguments":{"turn_id":"%s"}}}`, long[:1<<20-100])
	if line, _ := r.next(); parse(t, line).Result == nil {
		t.Fatalf("long id: %.200s", line)
	}
	r.send(`{"jsonrpc":"2.0","id":2,"method":"ping","params":{"_meta":{"pad":"%s%s"}}}`, long, long)
	if line, _ := r.next(); string(parse(t, line).ID) != "null" || parse(t, line).Error.Code != -32700 {
		t.Fatalf("over the limit: %.200s", line)
	}
	r.send(`{"jsonrpc":"2.0","id":3,"method":"ping"}`)
	if line, _ := r.next(); string(parse(t, line).ID) != "3" {
		t.Fatalf("after it: %.100s", line)
	}
}

// A client that stops reading delays nobody else's work and cannot hold the
// process longer than the drain.
func TestServer_ClientDoesNotRead(t *testing.T) {
	r := connect(t, func(o *mcpserver.Options) { o.Drain = 200 * time.Millisecond })
	r.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	const calls = 300
	for i := range calls { // answers beyond what a pipe holds
		r.call(fmt.Sprint(i), strings.Repeat("x", 2000))
	}
	eventually(t, "all calls ran", func() bool { return r.tools.total.Load() == calls && r.tools.running.Load() == 0 })
	r.in.Close()
	if err := r.wait(); !fault.Is(err, fault.DrainExpired) {
		t.Errorf("Run: %v", err)
	}
}

// An output that is gone is a stop; accepted work is finished all the same.
func TestServer_OutputGone(t *testing.T) {
	r := connect(t, nil)
	r.send(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	lines := bufio.NewReader(r.out)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	r.call(`1`, "wait")
	r.call(`2`, "short")
	eventually(t, "the first runs", func() bool { return r.tools.running.Load() == 1 && r.tools.total.Load() == 2 })
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	r.out.Close()
	r.call(`3`, "short") // its answer finds nobody
	<-r.server.Stopping()
	close(r.tools.gate)
	if err := r.wait(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if r.tools.ended.Load() != 0 {
		t.Error("accepted work was cut")
	}
}

// The official client, in both styles of protocol.
func TestServer_OfficialClient(t *testing.T) {
	for _, version := range []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"} {
		t.Run(version, func(t *testing.T) {
			r := connect(t, nil)
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
			session, err := client.Connect(ctx, &mcp.IOTransport{Reader: io.NopCloser(r.out), Writer: r.in}, &mcp.ClientSessionOptions{ProtocolVersion: version})
			if err != nil {
				t.Fatal(err)
			}
			info := session.InitializeResult()
			if info.ProtocolVersion != version || info.ServerInfo.Name != mcpserver.ServerName || info.ServerInfo.Version != "test" {
				t.Errorf("initialized with %s, %+v", info.ProtocolVersion, info.ServerInfo)
			}
			if got, _ := json.Marshal(info.Capabilities); string(got) != `{"prompts":{},"tools":{}}` {
				t.Errorf("capabilities %s", got)
			}
			list, err := session.ListTools(ctx, nil)
			if err != nil || len(list.Tools) != 19 || list.NextCursor != "" {
				t.Fatalf("tools/list: %d tools, %v", len(list.Tools), err)
			}
			requireSkill(t, ctx, session)
			res, err := session.CallTool(ctx, &mcp.CallToolParams{Name: catalog.Prefix + "send", Arguments: map[string]any{"request": "hi"}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(map[string]any{"turn_id": "turn-1", "request": "hi", "delivered": true}, res.StructuredContent); diff != "" {
				t.Error(diff)
			}
			var wire interface{ Error() string }
			_, err = session.CallTool(ctx, &mcp.CallToolParams{Name: "nothing"})
			if !errors.As(err, &wire) || !strings.Contains(err.Error(), "unknown tool") {
				t.Errorf("unknown tool: %v", err)
			}
			short, end := context.WithTimeout(ctx, 50*time.Millisecond)
			defer end()
			if _, err := session.CallTool(short, &mcp.CallToolParams{Name: catalog.Prefix + "send", Arguments: map[string]any{"request": "wait"}}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("cancelled call: %v", err)
			}
			eventually(t, "the call ends", func() bool { return r.tools.ended.Load() == 1 })
			if err := session.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if err := r.wait(); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
	}
}

// Readers that are no files work too, as in other programs' tests.
func TestServer_PlainStreams(t *testing.T) {
	var out sink
	tools, err := catalog.New(catalog.Options{Handoff: catalog.Ready(newFake())})
	if err != nil {
		t.Fatal(err)
	}
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`)
	s, err := mcpserver.New(mcpserver.Options{Tools: tools, In: in, Out: &out})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), `"supportedVersions":["2026-07-28"`) {
		t.Errorf("wrote %s", out.String())
	}
}

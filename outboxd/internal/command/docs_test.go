package command_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"drawbridge/outboxd/internal/command"
	"drawbridge/outboxd/internal/fakehost"
	"drawbridge/shared/callback"
	"drawbridge/shared/profile"
)

// The example program of docs/host-integration.md does what the page says, under
// the example Profile with the page's two changes.
func TestDocs_CallbackExample(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "host-integration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "<!-- tested: my-agent-callback -->\n```sh\n")
	script, _, ok2 := strings.Cut(rest, "```\n")
	if !ok || !ok2 {
		t.Fatal("the example is not in the page")
	}
	dir := t.TempDir()
	program := filepath.Join(dir, "my-agent-callback")
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(profile.Starter(), &doc); err != nil {
		t.Fatal(err)
	}
	cb := doc["callback"].(map[string]any)
	cb["executable"] = program
	cb["environment"] = map[string]any{"allow": []string{"MY_AGENT_INBOX", "PATH"}}
	data, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(); err != nil {
		t.Fatal(err)
	}
	inbox := filepath.Join(dir, "inbox")
	tr := command.Transport{
		Profile: p, Session: session, Now: time.Now,
		Environ: fakehost.Environ(session, "MY_AGENT_INBOX="+inbox),
	}
	route := callback.Route{
		Schema: profile.RouteSchema, Version: profile.RouteVersion, Transport: p.Transport(), ProfileID: p.ID(),
		ProfileRevision: p.Revision(), ControllerSessionID: session,
	}
	a := command.Attempt{Number: 1, ID: "attempt-1", Route: route, Envelope: callback.TurnEnvelope(route,
		callback.TurnSource("s", "t"), callback.Event{ID: "msg-1", Type: callback.EventDone, Body: "line one\n$(line two)\n"})}
	for range 2 { // twice: it keeps one message
		if out := run(t, tr, a); out.Disposition != callback.Accepted || out.AcceptanceID != a.Envelope.DeliveryID {
			t.Fatalf("got %+v", out)
		}
	}
	body, err := os.ReadFile(filepath.Join(inbox, a.Envelope.DeliveryID, "body"))
	if err != nil || string(body) != "line one\n$(line two)\n" {
		t.Errorf("got %q, %v", body, err)
	}
}

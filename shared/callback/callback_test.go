package callback_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/callback"
	"drawbridge/shared/strictjson"
)

func route() callback.Route {
	yes := true
	return callback.Route{
		Schema: "agent-knock-knock/callback-route", Version: 1, Transport: "command_json_v1",
		ProfileID: "my-agent-command", ProfileRevision: "2026.08.25-1", ControllerSessionID: "trusted-session-id",
		Capabilities: &callback.Capabilities{Wake: &yes, Respond: &yes},
	}
}

func done(body string) callback.Envelope {
	return callback.TurnEnvelope(route(), callback.TurnSource("session-1", "turn-1"),
		callback.Event{ID: "msg-1", Type: callback.EventDone, Body: body})
}

// Proves core 19.49 (the digest): the fixture of core §15.2.
func TestTurnEnvelope_Fixture(t *testing.T) {
	e := done("finished")
	const digest = "75c8cb6de2f0ecf498710398de9ddac5867de982301fa77a56cfd2bd8794022f"
	if got, want := e.DeliveryID, "callback-delivery-"+digest; got != want {
		t.Errorf("delivery id: got %s, want %s", got, want)
	}
	if got, want := e.IdempotencyKey, "agent-knock-knock:"+digest; got != want {
		t.Errorf("idempotency key: got %s, want %s", got, want)
	}
}

// The canonical form does not escape what HTML would (core §15.2).
func TestCanonical_Fixture(t *testing.T) {
	data, err := strictjson.Canonical(map[string]any{"a": "<&>\u2028é"})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	if got, want := hex.EncodeToString(sum[:]), "78bbc592c6504285064069ea5115b931ca2a68226e68bc52337a39e971b04231"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTurnEnvelope_DigestDependsOnEveryPart(t *testing.T) {
	base := done("finished").DeliveryID
	r2 := route()
	r2.ProfileRevision = "2"
	src := callback.TurnSource("session-1", "turn-1")
	ev := callback.Event{ID: "msg-1", Type: callback.EventDone, Body: "finished"}
	for name, e := range map[string]callback.Envelope{
		"body":     done("finished."),
		"revision": callback.TurnEnvelope(r2, src, ev),
		"source":   callback.TurnEnvelope(route(), callback.TurnSource("session-1", "turn-2"), ev),
		"metadata": callback.TurnEnvelope(route(), src, callback.Event{ID: "msg-1", Type: callback.EventDone, Body: "finished", Metadata: map[string]any{"reason": "x"}}),
		"response": callback.TurnEnvelope(route(), src, callback.Event{ID: "msg-1", Type: callback.EventDone, Body: "finished", RequiresResponse: true}),
	} {
		if e.DeliveryID == base {
			t.Errorf("%s: the delivery id did not change", name)
		}
	}
	// Capabilities are no part of the identity.
	r3 := route()
	r3.Capabilities = nil
	if got := callback.TurnEnvelope(r3, src, ev).DeliveryID; got != base {
		t.Errorf("capabilities changed the delivery id")
	}
}

// The fixture of core §6.
func TestTerminalMessageID_Fixture(t *testing.T) {
	got := callback.TerminalMessageID("turn-1", "msg-1", strings.Repeat("b", 64), "success")
	if want := "msg-terminal-ed2bb0fd8935b9122809b76fa3b77c13"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Proves core 19.36 (the id): the fixture of core §7.
func TestWatchNotificationID_Fixture(t *testing.T) {
	got := callback.WatchNotificationID("terminal-watch-1", "completed", strings.Repeat("a", 64))
	if want := "terminal-watch-notification-ae352a06ad15d680c68387d21a414b27ae89093a20cd7af6e0f10845a3c57c63"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestWatchEnvelope_IDs(t *testing.T) {
	id := callback.WatchNotificationID("terminal-watch-1", "completed", strings.Repeat("a", 64))
	e := callback.WatchEnvelope(route(), callback.WatchSource("terminal-watch-1", "terminal-x"),
		callback.Event{ID: id, Type: callback.EventCompleted, Body: "b", RequiresResponse: true})
	if e.DeliveryID != id {
		t.Errorf("delivery id: got %s, want the notification id", e.DeliveryID)
	}
	if got, want := e.IdempotencyKey, "agent-knock-knock:terminal-watch:terminal-watch-1:"+id; got != want {
		t.Errorf("idempotency key: got %s, want %s", got, want)
	}
}

// The members and their order are the contract; these digests pin them.
func TestEvidence_OrderedDocument(t *testing.T) {
	sum := func(s string) string {
		d := sha256.Sum256([]byte(s))
		return hex.EncodeToString(d[:])
	}
	anchor := strings.Repeat("c", 64)
	want := sum(`{"version":1,"watch_id":"w","kind":"timed_out","deadline_at":1700000000000,"anchor_fingerprint":"` + anchor + `"}`)
	if got := callback.TimeoutEvidence("w", 1700000000000, anchor); got != want {
		t.Errorf("timeout: got %s, want %s", got, want)
	}
	want = sum(`{"version":1,"watch_id":"w","kind":"cancelled","anchor_fingerprint":"` + anchor + `"}`)
	if got := callback.CancelEvidence("w", anchor); got != want {
		t.Errorf("cancel: got %s, want %s", got, want)
	}
}

func TestParseEnvelope_RoundTrip(t *testing.T) {
	turn := callback.TurnEnvelope(route(), callback.TurnSource("s", "t"), callback.Event{
		ID: "m", Type: callback.EventQuestion, Body: "line\n<&>\u2028 \"q\"", RequiresResponse: true,
		Metadata: map[string]any{"reason": "approval_required"},
	})
	watch := callback.WatchEnvelope(route(), callback.WatchSource("w", "x"), callback.Event{ID: "n", Type: callback.EventFailed, Body: "b"})
	for _, want := range []callback.Envelope{turn, watch} {
		got, err := callback.ParseEnvelope(want.Canonical())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("round trip (-want +got):\n%s", d)
		}
	}
}

func TestTurnEnvelope_RepairsInvalidUTF8(t *testing.T) {
	e := done("a\xffb")
	if got, want := e.Event.Body, "a\uFFFDb"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := callback.ParseEnvelope(e.Canonical()); err != nil {
		t.Error(err)
	}
}

func TestParseEnvelope_Refuses(t *testing.T) {
	good := string(done("finished").Canonical())
	for name, doc := range map[string]string{
		"empty":          ``,
		"schema":         strings.Replace(good, "callback-envelope", "other", 1),
		"version":        strings.Replace(good, `"version":1`, `"version":2`, 1),
		"extra member":   strings.Replace(good, `{`, `{"x":1,`, 1),
		"no delivery id": strings.Replace(good, `"delivery_id"`, `"delivery_ie"`, 1),
		"two sources":    strings.Replace(good, `"kind":"managed_turn"`, `"kind":"managed_turn","watch_id":"w"`, 1),
		"unknown source": strings.Replace(good, `"managed_turn"`, `"other"`, 1),
		"null body":      strings.Replace(good, `"body":"finished"`, `"body":null`, 1),
		"trailing":       good + "{}",
		"inexact number": strings.Replace(good, `"event":{`, `"event":{"metadata":{"n":1.5},`, 1),
	} {
		if _, err := callback.ParseEnvelope([]byte(doc)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestParseRoute(t *testing.T) {
	good := string(route().Canonical())
	r, err := callback.ParseRoute([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(route(), r); d != "" {
		t.Errorf("round trip (-want +got):\n%s", d)
	}
	accepted := map[string]string{
		"no capabilities":       `{"schema":"agent-knock-knock/callback-route","version":1,"transport":"command_json_v1","profile_id":"p","profile_revision":"1","controller_session_id":"s"}`,
		"empty capabilities":    strings.Replace(good, `{"respond":true,"wake":true}`, `{}`, 1),
		"another transport":     strings.Replace(good, `command_json_v1`, `other_v2`, 1),
		"capability turned off": strings.Replace(good, `"wake":true`, `"wake":false`, 1),
	}
	for name, doc := range accepted {
		if _, err := callback.ParseRoute([]byte(doc)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused := map[string]string{
		"extra member":      strings.Replace(good, `{`, `{"x":1,`, 1),
		"extra capability":  strings.Replace(good, `"wake":true`, `"wake":true,"sleep":true`, 1),
		"capability string": strings.Replace(good, `"wake":true`, `"wake":"yes"`, 1),
		"no session":        strings.Replace(good, `"controller_session_id":"trusted-session-id",`, ``, 1),
		"null session":      strings.Replace(good, `"trusted-session-id"`, `null`, 1),
		"empty session":     strings.Replace(good, `trusted-session-id`, ``, 1),
		"padded session":    strings.Replace(good, `trusted-session-id`, ` x`, 1),
		"long session":      strings.Replace(good, `trusted-session-id`, strings.Repeat("x", 1025), 1),
		"schema":            strings.Replace(good, `callback-route`, `callback-routes`, 1),
		"version":           strings.Replace(good, `"version":1`, `"version":2`, 1),
		"profile id":        strings.Replace(good, `my-agent-command`, `My`, 1),
		"revision":          strings.Replace(good, `2026.08.25-1`, `.1`, 1),
		"case":              strings.Replace(good, `"transport"`, `"Transport"`, 1),
		"duplicate":         strings.Replace(good, `{`, `{"version":1,`, 1),
	}
	for name, doc := range refused {
		if doc == good {
			t.Fatalf("%s: the case changes nothing", name)
		}
		if _, err := callback.ParseRoute([]byte(doc)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzParseEnvelope(f *testing.F) {
	f.Add(done("finished").Canonical())
	f.Add([]byte(`{"schema":"agent-knock-knock/callback-envelope"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := callback.ParseEnvelope(data)
		if err != nil {
			return
		}
		again, err := callback.ParseEnvelope(e.Canonical())
		if err != nil {
			t.Fatalf("own canonical form refused: %v", err)
		}
		if string(again.Canonical()) != string(e.Canonical()) {
			t.Fatal("canonical form is not stable")
		}
	})
}

func FuzzParseRoute(f *testing.F) {
	f.Add(route().Canonical())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := callback.ParseRoute(data)
		if err != nil {
			return
		}
		if _, err := callback.ParseRoute(r.Canonical()); err != nil {
			t.Fatalf("own canonical form refused: %v", err)
		}
	})
}

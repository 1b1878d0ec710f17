package command_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"drawbridge/outboxd/internal/command"
	"drawbridge/shared/callback"
	"drawbridge/shared/profile"
)

// Whatever a callback prints: accepted needs one document that repeats both ids
// and has an acceptance id, and nothing else is ever taken for it.
func FuzzAcknowledgement(f *testing.F) {
	p, err := profile.Parse(profile.Starter())
	if err != nil {
		f.Fatal(err)
	}
	route := callback.Route{
		Schema: profile.RouteSchema, Version: profile.RouteVersion, Transport: p.Transport(), ProfileID: p.ID(),
		ProfileRevision: p.Revision(), ControllerSessionID: session,
	}
	env := callback.TurnEnvelope(route, callback.TurnSource("s", "t"), callback.Event{ID: "msg-1", Type: callback.EventDone})
	call, out := command.Transport{Profile: p, Session: session, Now: time.Now}.Prepare(command.Attempt{Number: 1, ID: "a", Route: route, Envelope: env})
	if call == nil {
		f.Fatal(out)
	}
	good := `{"result":{"status":"accepted","acceptance_id":"x"},"request":{"delivery_id":"` + env.DeliveryID + `","message_id":"msg-1"}}`
	f.Add([]byte(good), 0)
	f.Add([]byte(good+"\n"), 7)
	f.Add([]byte(strings.Replace(good, "accepted", "retry", 1)), 1)
	f.Add([]byte(strings.Replace(good, `"x"`, `" "`, 1)), 0)
	f.Add([]byte(good+good), 0)
	f.Add([]byte(strings.Replace(good, "msg-1", "msg-2", 1)), 0)
	f.Add([]byte(`{"result":[],"request":null}`), 0)
	f.Add([]byte(nil), 3)
	f.Fuzz(func(t *testing.T, stdout []byte, exit int) {
		got := call.Judge(stdout, exit)
		if (got.Disposition == callback.Accepted) != (got.Code == "") {
			t.Fatalf("got %+v", got)
		}
		if got.Disposition == callback.Uncertain {
			return
		}
		// Maps: struct fields would match names in any case.
		var doc map[string]map[string]any
		if err := json.Unmarshal(stdout, &doc); err != nil {
			var typeError *json.UnmarshalTypeError
			if errors.As(err, &typeError) {
				return // another member of another shape
			}
			t.Fatalf("%s from no document: %v", got.Disposition, err)
		}
		if doc["request"]["delivery_id"] != env.DeliveryID || doc["request"]["message_id"] != "msg-1" {
			t.Fatalf("%s with other ids", got.Disposition)
		}
		if got.Disposition == callback.Accepted && (doc["result"]["status"] != "accepted" || got.AcceptanceID == "") {
			t.Fatalf("accepted by %v", doc["result"]["status"])
		}
	})
}

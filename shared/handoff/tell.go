package handoff

import (
	"drawbridge/shared/callback"
	"drawbridge/shared/store"
)

// tellTurn makes the callback row of a Turn's event; nil for a Turn that keeps
// a record only. The route is the Turn's own, fixed when it was made.
func tellTurn(t store.Turn, lane, kind string, ev callback.Event) (*store.NewCallback, error) {
	if t.Route == nil {
		return nil, nil
	}
	route, err := callback.ParseRoute(t.Route)
	if err != nil {
		return nil, err
	}
	row := outboxRow(callback.TurnEnvelope(route, callback.TurnSource(t.SessionID, t.ID), ev), lane, kind)
	return &row, nil
}

// tellWatch makes one notification of a Watch with its callback row.
func tellWatch(w store.Watch, kind, event, evidence, reason, body string) (store.NewNotification, error) {
	route, err := callback.ParseRoute(w.Route)
	if err != nil {
		return store.NewNotification{}, err
	}
	id := callback.WatchNotificationID(w.ID, kind, evidence)
	env := callback.WatchEnvelope(route, callback.WatchSource(w.ID, w.TerminalID), callback.Event{
		ID: id, Type: event, Body: body, RequiresResponse: true,
	})
	return store.NewNotification{
		NotificationID: id, Kind: kind, EvidenceFingerprint: evidence, ReasonCode: reason,
		Callback: outboxRow(env, store.LaneWatch, kind),
	}, nil
}

func outboxRow(env callback.Envelope, lane, kind string) store.NewCallback {
	return store.NewCallback{
		DeliveryID: env.DeliveryID, IdempotencyKey: env.IdempotencyKey, Lane: lane, Kind: kind,
		MessageID: env.Event.ID, EventType: env.Event.Type, RequiresResponse: env.Event.RequiresResponse,
		Body: env.Event.Body, Envelope: env.Canonical(),
		RouteTransport: env.Route.Transport, RouteProfileID: env.Route.ProfileID,
		RouteProfileRevision: env.Route.ProfileRevision, RouteControllerSessionID: env.Route.ControllerSessionID,
	}
}

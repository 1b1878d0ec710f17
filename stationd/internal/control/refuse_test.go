package control_test

import (
	"errors"
	"strings"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/stationd/internal/control"
)

// What the API does not take, and with which status.
func TestRefusals(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	for _, tc := range []struct {
		method, target, body string
		status               int
		code                 fault.Code
	}{
		{"GET", "/", "", 404, fault.NotFound},
		{"GET", "/v1/stations/", "", 404, fault.NotFound},
		{"GET", "/v1//stations", "", 404, fault.NotFound},
		{"GET", "/v2/stations", "", 404, fault.NotFound},
		{"GET", "/s/" + id + "/a/1/", "", 404, fault.NotFound},
		{"PATCH", "/v1/stations", "", 405, fault.MethodNotAllowed},
		{"GET", "/v1/stations/" + id + "/stop", "", 405, fault.MethodNotAllowed},
		{"GET", "/v1/stations?x=1", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?wait=ready&wait=ended", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?wait=soon", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?attempt=0", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "?%zz", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "/logs?follow=maybe", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "/evidence?export&verify", "", 400, fault.InvalidArguments},
		{"GET", "/v1/stations/" + id + "/evidence?attempt=7", "", 404, fault.NotFound},
		{"GET", "/v1/stations", "{}", 400, fault.InvalidArguments},
		{"POST", "/v1/stations/" + id + "/stop", "{}", 400, fault.InvalidArguments},
		{"POST", "/v1/stations/" + id + "/tickets", "", 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","prefix":"/"}`, 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","more":1}`, 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/"} x`, 400, fault.JSONInvalid},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"v1"}`, 400, fault.TicketScope},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","ttl":"1s"}`, 400, fault.TicketScope},
		{"POST", "/v1/stations/" + id + "/tickets", `{"prefix":"/","ttl":"-5m"}`, 400, fault.TicketScope},
		{"POST", "/v1/stations/" + id + "/tickets", `{"methods":[" "]}`, 400, fault.TicketScope},
		{"POST", "/v1/stations/" + id + "/tickets", `{"methods":["GET","CONNECT"]}`, 400, fault.TicketScope},
		{"POST", "/v1/principals", `{"name":"x","secret":"y"}`, 400, fault.JSONInvalid},
		{"DELETE", "/v1/tickets/tkt_none", "", 404, fault.NotFound},
		{"POST", "/v1/leases/lse_none/release", "{}", 404, fault.NotFound},
		{"POST", "/v1/leases/" + w.leaseOf(id) + "/release", `{"force":true}`, 400, fault.ForceReason},
		{"POST", "/v1/leases/" + w.leaseOf(id) + "/release", `{"reason":"why"}`, 400, fault.InvalidArguments},
		{"POST", "/v1/stations", strings.Repeat("x", control.MaxBody+1), 413, fault.InputTooLarge},
	} {
		status, h, body := w.raw(tc.method, tc.target, tc.body)
		if status != tc.status || errorOf(t, body) != string(tc.code) {
			t.Errorf("%s %s %.40s: got %d %s, want %d %s", tc.method, tc.target, tc.body, status, body, tc.status, tc.code)
		}
		if h.Get("Cache-Control") != "no-store" || h.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: headers %v", tc.method, tc.target, h)
		}
	}
	if status, h, _ := w.raw("GET", "/v1/stations", ""); status != 200 || h.Get("Cache-Control") != "no-store" {
		t.Errorf("got %d, %v", status, h)
	}
	if len(w.manager.asked) != 0 {
		t.Errorf("a release reached the manager: %v", w.manager.asked)
	}
}

// An unexpected error says nothing of itself to a client, and no error a path; a
// stationd that does not act writes nothing.
func TestRefusals_Hidden(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	for _, tc := range []struct {
		err    error
		status int
		code   fault.Code
	}{
		{errors.New("select from secret_table"), 500, fault.Internal},
		{fault.New(fault.WorkspaceRefused, "copy /private/place/x: no repository").WithHint("look at /private/place"), 409, fault.WorkspaceRefused},
		{fault.New(fault.StoreBusy, "busy"), 503, fault.StoreBusy},
		{fault.New(fault.ModelAccess, "no"), 422, fault.ModelAccess},
		{fault.New(fault.SpecInvalid, "no"), 400, fault.SpecInvalid},
	} {
		w.manager.fail = tc.err
		status, _, body := w.raw("POST", "/v1/stations", spec)
		if status != tc.status || errorOf(t, body) != string(tc.code) || strings.Contains(body, "secret_table") || strings.Contains(body, "/private") {
			t.Errorf("%v: got %d %s", tc.err, status, body)
		}
	}
	w.manager.standby = true
	_, err := w.Ticket(t.Context(), id, control.TicketRequest{Prefix: "/"})
	wantCode(t, err, fault.LeaseHeld)
}

// Where the Store cannot be used, the error says what was being done to what.
func TestRefusals_NameWhatWasDone(t *testing.T) {
	w := newWorld(t)
	id := w.begun()
	w.manager.fail = fault.New(fault.StoreUnavailable, "write to the Store: database or disk is full").WithHint("free space")
	for doing, err := range map[string]error{
		"start a station":    errorOnly(w.Start(t.Context(), []byte(spec), "")),
		"stop station " + id: errorOnly(w.Stop(t.Context(), id)),
	} {
		f, ok := fault.As(err)
		if !ok || f.Code != fault.StoreUnavailable || f.Message != doing+": write to the Store: database or disk is full" || f.Hint != "free space" {
			t.Errorf("%s: got %+v", doing, f)
		}
	}
}

func errorOnly[T any](_ T, err error) error { return err }

// The client's errors have the code of the server, and its hint.
func TestClient_Errors(t *testing.T) {
	w := newWorld(t)
	w.manager.fail = fault.New(fault.AttemptExists, "it runs").WithHint("stop it")
	_, err := w.Start(t.Context(), []byte(spec), "")
	f, ok := fault.As(err)
	if !ok || f.Code != fault.AttemptExists || f.Message != "it runs" || f.Hint != "stop it" || fault.ExitCode(err) != 1 {
		t.Errorf("got %+v", f)
	}
	w.stop()
	_, err = w.List(t.Context())
	wantCode(t, err, fault.StationdUnavailable)
	if fault.ExitCode(err) != 69 {
		t.Errorf("exit %d", fault.ExitCode(err))
	}
}

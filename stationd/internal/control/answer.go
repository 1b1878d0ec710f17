package control

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"drawbridge/shared/fault"
	"drawbridge/shared/strictjson"
)

// statuses are the HTTP statuses of codes; the others follow from the exit status.
var statuses = map[fault.Code]int{
	fault.NotFound:         http.StatusNotFound,
	fault.ProfileUnknown:   http.StatusNotFound,
	fault.ProviderUnknown:  http.StatusNotFound,
	fault.MethodNotAllowed: http.StatusMethodNotAllowed,
	fault.PeerRefused:      http.StatusForbidden,
	fault.RoleDenied:       http.StatusForbidden,
	fault.InvalidArguments: http.StatusBadRequest,
	fault.JSONInvalid:      http.StatusBadRequest,
	fault.InputTooLarge:    http.StatusRequestEntityTooLarge,
	fault.StationEnded:     http.StatusGone,
	fault.TooManyTickets:   http.StatusTooManyRequests,

	// Refused by policy, whatever the state.
	fault.ModelAccess:         http.StatusUnprocessableEntity,
	fault.SecretInArguments:   http.StatusUnprocessableEntity,
	fault.SecretEnvRefused:    http.StatusUnprocessableEntity,
	fault.EnvRefused:          http.StatusUnprocessableEntity,
	fault.ArtifactUnpinned:    http.StatusUnprocessableEntity,
	fault.ProfileRefused:      http.StatusUnprocessableEntity,
	fault.ProviderUnsupported: http.StatusUnprocessableEntity,
	fault.RunAsRequired:       http.StatusUnprocessableEntity,
	fault.RootRefused:         http.StatusUnprocessableEntity,
	fault.ContainmentMissing:  http.StatusUnprocessableEntity,
	fault.EgressUnenforceable: http.StatusUnprocessableEntity,
}

func statusOf(err error) int {
	if status, ok := statuses[fault.CodeOf(err)]; ok {
		return status
	}
	switch fault.ExitCode(err) {
	case 1:
		return http.StatusConflict
	case 2:
		return http.StatusBadRequest
	case 69, 73, 75:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// refuse answers with the error object. What an unexpected error says stays in the
// log; paths of this machine leave neither.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody listens
	}
	o := strictjson.Object{{Name: "error", Value: string(fault.CodeOf(err))}}
	if f, ok := fault.As(err); ok && f.Code != fault.Internal {
		o = append(o, strictjson.Member{Name: "message", Value: s.shown(err.Error())})
		if f.Hint != "" {
			o = append(o, strictjson.Member{Name: "hint", Value: s.shown(f.Hint)})
		}
	} else {
		o = append(o, strictjson.Member{Name: "message", Value: "an unexpected error; the log of stationd says what happened"})
	}
	data, jsonErr := o.JSON()
	if jsonErr != nil {
		data = []byte(`{"error":"internal","message":"an error that has no JSON form"}`)
	}
	s.write(w, statusOf(err), data)
}

// shown is a text as clients may see it.
func (s *Server) shown(text string) string { return fault.CleanLine(s.opts.Redactor.Text(text)) }

// reply answers with v as JSON.
func (s *Server) reply(q *request, v any) error {
	data, err := marshal(v)
	if err != nil {
		return err
	}
	s.write(q.w, http.StatusOK, data)
	return nil
}

// marshal writes JSON in one line. Documents in it keep their bytes, if they are in
// one line too.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fault.New(fault.Internal, "write an answer: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func (s *Server) write(w http.ResponseWriter, status int, data []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // whoever left does not need it
}

// note logs a request: who, what, on what, and the code. Looking is not worth a line.
func (s *Server) note(q *request, r route, err error) {
	args := []any{"by", q.by.ID, "request", r.method + " " + r.path}
	for name, value := range q.vars {
		args = append(args, name, value)
	}
	switch {
	case err != nil && statusOf(err) == http.StatusInternalServerError:
		s.opts.Log.Error("control request failed", append(args, "err", err)...)
	case err != nil:
		s.opts.Log.Info("control request refused", append(args, "err", err)...)
	case r.method != http.MethodGet:
		s.opts.Log.Info("control request", args...)
	}
}

// poll runs look after every commit to the Store, and now and then besides, until it
// says that it is done, or ctx ends, which is no error.
func (s *Server) poll(ctx context.Context, look func() (done bool, err error)) error {
	wake, cancel := s.opts.Bell.Subscribe()
	defer cancel()
	slow := time.NewTicker(slowPoll)
	defer slow.Stop()
	for {
		if done, err := look(); done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-slow.C:
		}
	}
}

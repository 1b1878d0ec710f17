package upstream

import (
	"errors"
	"net/http"
)

// A Refusal is why a request was not answered by the provider; it is the value of
// the header x-drawbridge-refusal (broker §12).
type Refusal string

// The refusals.
const (
	Capability      Refusal = "capability"
	Target          Refusal = "target"
	BindingMismatch Refusal = "binding_mismatch"
	Body            Refusal = "body"
	Size            Refusal = "size"
	Encoding        Refusal = "encoding"
	Budget          Refusal = "budget"
	Concurrency     Refusal = "concurrency"
	Unreachable     Refusal = "upstream"
	StoreFailed     Refusal = "store"
)

// refusalHeader names the refusal to whoever runs the worker.
const refusalHeader = "X-Drawbridge-Refusal"

// refusalBody is the one body of all refusals: a worker learns nothing from it.
const refusalBody = `{"error":{"message":"Provider capability request refused"}}`

// ErrClosed, wrapped in an error of Credentials, says that the grant serves no
// more.
var ErrClosed = errors.New("the grant is closed")

// Status gives the HTTP status of a refusal.
func (r Refusal) Status() int {
	switch r {
	case Capability:
		return http.StatusUnauthorized
	case Target, BindingMismatch:
		return http.StatusForbidden
	case Body:
		return http.StatusBadRequest
	case Size:
		return http.StatusRequestEntityTooLarge
	case Encoding:
		return http.StatusUnsupportedMediaType
	case Budget, Concurrency:
		return http.StatusTooManyRequests
	case Unreachable:
		return http.StatusBadGateway
	}
	return http.StatusServiceUnavailable
}

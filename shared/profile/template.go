package profile

import (
	"regexp"
	"strings"

	"drawbridge/shared/fault"
)

// Placeholders of command_json_v1.
const (
	sessionPlaceholder     = "controller.session_id"
	deliveryPlaceholder    = "envelope.delivery_id"
	messagePlaceholder     = "envelope.message_id"
	idempotencyPlaceholder = "envelope.idempotency_key"
	bodyPlaceholder        = "envelope.body"
)

var (
	placeholder = regexp.MustCompile(`\$\{([^{}]*)\}`)
	required    = []string{sessionPlaceholder, deliveryPlaceholder, messagePlaceholder}
	known       = map[string]bool{
		sessionPlaceholder: true, deliveryPlaceholder: true, messagePlaceholder: true,
		idempotencyPlaceholder: true, bodyPlaceholder: true,
	}
)

// checkTemplate is host-profile §5.2 for one argument, in its order.
func checkTemplate(path, text string) error {
	bad := func(why string) error { return refuse(fault.ProfileTemplate, path, "%s", why) }
	if strings.ContainsRune(text, 0) {
		return bad("must not contain NUL")
	}
	names := placeholder.FindAllStringSubmatch(text, -1)
	for _, n := range names {
		if !known[n[1]] {
			return bad("unsupported placeholder")
		}
	}
	rest := placeholder.ReplaceAllLiteralString(text, "")
	if strings.Contains(rest, "$") {
		return bad("malformed or unsupported interpolation")
	}
	if strings.ContainsAny(rest, "\r\n;`<>|") || strings.Contains(rest, "&&") {
		return bad("shell syntax")
	}
	for _, n := range names {
		if n[1] == bodyPlaceholder {
			return bad("the body goes to stdin, never into an argument")
		}
	}
	return nil
}

func checkRequired(path string, arguments []string) error {
	for _, name := range required {
		found := false
		for _, a := range arguments {
			found = found || strings.Contains(a, "${"+name+"}")
		}
		if !found {
			return refuse(fault.ProfileTemplate, path, "${%s} must be used", name)
		}
	}
	return nil
}

// Values are what the placeholders of one delivery stand for.
type Values struct {
	SessionID, DeliveryID, MessageID, IdempotencyKey string
}

// Arguments renders the argument templates in one pass: an inserted value is
// not scanned again. It fails when a result holds NUL or still "${".
func (p Profile) Arguments(v Values) ([]string, error) {
	by := map[string]string{
		sessionPlaceholder: v.SessionID, deliveryPlaceholder: v.DeliveryID,
		messagePlaceholder: v.MessageID, idempotencyPlaceholder: v.IdempotencyKey,
	}
	out := make([]string, len(p.doc.arguments))
	for i, a := range p.doc.arguments {
		if err := checkTemplate(argumentPath(i), a); err != nil {
			return nil, err
		}
		out[i] = placeholder.ReplaceAllStringFunc(a, func(m string) string { return by[m[2:len(m)-1]] })
		if strings.ContainsRune(out[i], 0) || strings.Contains(out[i], "${") {
			return nil, refuse(fault.ProfileTemplate, argumentPath(i), "the rendered argument holds NUL or an open interpolation")
		}
	}
	return out, nil
}

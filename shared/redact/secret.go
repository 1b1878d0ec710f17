package redact

import (
	"fmt"
	"io"
	"log/slog"
)

// Hidden is what every way of printing a Secret shows.
const Hidden = "[secret]"

// Secret is a value that no formatting, logging or marshalling shows. Reveal is
// the one way to read it, easy to search for.
type Secret struct {
	value string // unexported, so that reflection-based printers need Format, which hides it
}

// NewSecret wraps value.
func NewSecret(value string) Secret { return Secret{value} }

// Reveal gives the value. Every call is a place to review.
func (s Secret) Reveal() string { return s.value }

// IsZero reports whether there is no value.
func (s Secret) IsZero() bool { return s.value == "" }

// String hides the value.
func (s Secret) String() string { return Hidden }

// GoString hides the value from %#v.
func (s Secret) GoString() string { return Hidden }

// Format hides the value from every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Hidden) }

// LogValue hides the value from slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Hidden) }

// MarshalText hides the value from encoders of text and of map keys.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Hidden), nil }

// MarshalJSON hides the value.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Hidden + `"`), nil }

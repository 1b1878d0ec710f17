package evidence

// Write is Document with any redactor.
func Write(f Facts, r interface {
	JSON([]byte) ([]byte, error)
	Verify([]byte) error
}) ([]byte, error) {
	return write(f, r)
}

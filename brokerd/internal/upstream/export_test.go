package upstream

// Observe reads a response in the given pieces and gives what is known of it then.
func Observe(contentType string, pieces ...[]byte) (*Usage, *string) {
	o := newObserver(contentType)
	for _, p := range pieces {
		o.take(p)
	}
	o.end()
	return o.usage, o.model
}

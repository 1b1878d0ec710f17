package redact

// escape steps over an escape of JSON or a shell, so that its letter is not
// taken for the beginning of the word behind it.
func (s *scan) escape(i int) int {
	for i < len(s.buf) && s.buf[i] == '\\' {
		i++
	}
	if i == len(s.buf) {
		return i
	}
	switch s.buf[i] {
	case 'n', 'r', 't', 'b', 'f':
		if s.secretWord(i) {
			return i
		}
		return i + 1
	case 'u':
		for n := range 4 {
			if i+1+n >= len(s.buf) || !isHex(s.buf[i+1+n]) {
				return i
			}
		}
		return i + 5
	}
	return i
}

// secretWord reports whether what looks like an escape is rather the beginning of a
// token or of a scheme's name.
func (s *scan) secretWord(i int) bool {
	if forms := formsBy[s.buf[i]]; forms != nil && tokenAt(s.buf, i, forms) > 0 {
		return true
	}
	const long = len("bearer")
	end := run(s.buf[:min(len(s.buf), i+long+1)], i, wordly)
	return kindOf(s.buf[i:end]) == schemeName
}

package redact

import "bytes"

// path replaces a known directory at the beginning of a path: from / on, or from its
// escaped form. It gives 0 when none is there.
func (s *scan) path(i int) int {
	if s.noPaths || len(s.red.paths) == 0 || !s.absolute(i) {
		return 0
	}
	rest := s.buf[i:]
	for _, p := range s.red.paths {
		if !bytes.HasPrefix(rest, p.form) {
			if bytes.HasPrefix(p.form, rest) {
				s.wait(i)
			}
			continue
		}
		end := i + len(p.form)
		if end < len(s.buf) && (wordly[s.buf[end]] || s.buf[end] == '.') {
			continue
		}
		s.spans = append(s.spans, span{start: i, end: end, label: p.label, lead: i})
		return end
	}
	return 0
}

// absolute reports whether a path that begins at i is no part of another one or of a
// URL's authority.
func (s *scan) absolute(i int) bool {
	at := i
	for at > 0 && s.buf[at-1] == '/' {
		at--
	}
	if at < i && i+1 < len(s.buf) && s.buf[i+1] == '/' {
		return false // the last of several slashes decides
	}
	if at == 0 {
		return true
	}
	if n := len(s.spans); n > 0 && s.spans[n-1].end == at {
		return true // behind what is hidden
	}
	switch c := s.buf[at-1]; {
	case c == ':':
		return i-at != 1 // not behind ://, but behind :///
	case c == '.':
		return false
	case wordly[c]: // -I/usr/include is a flag and its value
		return alnum[c] && at > 1 && s.buf[at-2] == '-' && (at == 2 || !wordly[s.buf[at-3]])
	}
	return true
}

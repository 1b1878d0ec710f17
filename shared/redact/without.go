package redact

import (
	"slices"
	"sort"
)

// without looks at the line once more, as it is when known values are gone: what
// touched one has new neighbours then. Names that are part of a known value still count,
// so this comes besides, not instead.
func (s *scan) without(known []span) {
	word := s.red.word
	at := make([]int, len(known)) // where each word begins
	buf := make([]byte, 0, len(s.buf))
	from := 0
	for i, k := range known {
		buf = append(buf, s.buf[from:k.start]...)
		at[i], from = len(buf), k.end
		buf = append(buf, word...)
	}
	buf = append(buf, s.buf[from:]...)

	// back gives the place in the line of one in buf; inside of a word, the begin or the
	// end of its value.
	back := func(p int, end bool) int {
		i := sort.Search(len(at), func(i int) bool { return at[i]+len(word) > p })
		if i < len(at) && p > at[i] {
			if end {
				return known[i].end
			}
			return known[i].start
		}
		if i == 0 {
			return p
		}
		return p - at[i-1] - len(word) + known[i-1].end
	}
	t := scan{red: s.red, buf: buf, final: s.final, worded: s.worded, noPaths: s.noPaths, firstWord: -1, firstAt: len(buf), open: len(buf)}
	if s.firstWord >= 0 {
		t.firstAt = forth(s.firstWord, known, at, len(word))
	}
	t.run()
	hidden := merge(slices.Clone(s.spans))
	for _, sp := range t.spans {
		sp = span{start: back(sp.start, false), end: back(sp.end, true), label: sp.label, lead: back(sp.lead, false)}
		// A name that is hidden itself gives nothing away.
		if i := sort.Search(len(hidden), func(i int) bool { return hidden[i].end > sp.lead }); i == len(hidden) || sp.lead <= hidden[i].start {
			s.spans = append(s.spans, sp)
		}
	}
	s.open = min(s.open, back(t.open, false))
	s.folded, s.pem = s.folded || t.folded, s.pem || t.pem
	if s.scheme == 0 {
		s.scheme = t.scheme
	}
}

// forth is the inverse of back for a place outside of known values; inside of one, that
// of its word.
func forth(p int, known []span, at []int, word int) int {
	i := sort.Search(len(known), func(i int) bool { return known[i].end > p })
	switch {
	case i < len(known) && p >= known[i].start:
		return at[i]
	case i == 0:
		return p
	}
	return p - known[i-1].end + at[i-1] + word
}

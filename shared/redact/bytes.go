package redact

import "bytes"

var digits = charset("0123456789")

func isHex(c byte) bool {
	return digits[c] || ('a' <= lower(c) && lower(c) <= 'f')
}

func hasDigit(b []byte) bool {
	for _, c := range b {
		if digits[c] {
			return true
		}
	}
	return false
}

// isProse reports whether b could be ordinary words: letters, at most the first
// of them a capital, and dots or dashes.
func isProse(b []byte) bool {
	for i, c := range b {
		if c == '.' || c == '-' {
			continue
		}
		if lower(c) < 'a' || lower(c) > 'z' || (i > 0 && c != lower(c)) {
			return false
		}
	}
	return true
}

// until gives how many bytes come before the first of ends.
func until(b []byte, ends string) int {
	if i := bytes.IndexAny(b, ends); i >= 0 {
		return i
	}
	return len(b)
}

// skip steps over bytes of set.
func skip(b []byte, i int, set string) int {
	for i < len(b) && bytes.IndexByte([]byte(set), b[i]) >= 0 {
		i++
	}
	return i
}

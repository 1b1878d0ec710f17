package strictjson

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a JSON Pointer (host-profile §6.1).
const (
	MaxPointerRunes  = 256
	MaxPointerTokens = 16
)

// ValidPointer reports why ptr is not a pointer this product accepts: RFC 6901
// text that starts with "/", at most 16 tokens and 256 characters, "~" only
// before 0 or 1, no control character and no white space at either end.
func ValidPointer(ptr string) error {
	switch {
	case !strings.HasPrefix(ptr, "/"):
		return errors.New("pointer does not start with /")
	case !utf8.ValidString(ptr):
		return errors.New("pointer is not valid UTF-8")
	case utf8.RuneCountInString(ptr) > MaxPointerRunes:
		return fmt.Errorf("pointer is longer than %d characters", MaxPointerRunes)
	case strings.Count(ptr, "/") > MaxPointerTokens:
		return fmt.Errorf("pointer has more than %d tokens", MaxPointerTokens)
	case TrimSpace(ptr) != ptr:
		return errors.New("pointer ends in white space")
	}
	for i := 0; i < len(ptr); i++ {
		c := ptr[i]
		if c < ' ' || c == 0x7f {
			return errors.New("pointer holds a control character")
		}
		if c == '~' && (i+1 == len(ptr) || (ptr[i+1] != '0' && ptr[i+1] != '1')) {
			return errors.New("pointer holds ~ that is not ~0 or ~1")
		}
	}
	return nil
}

// Pointer walks tree, a value of Parse, along ptr. A step that is missing, goes
// into a scalar, or is an array index in any form but the canonical decimal one
// gives ok false, and so does a pointer that is not valid.
func Pointer(tree any, ptr string) (value any, ok bool) {
	if ValidPointer(ptr) != nil {
		return nil, false
	}
	for token := range strings.SplitSeq(ptr[1:], "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch at := tree.(type) {
		case map[string]any:
			if tree, ok = at[token]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(at) || strconv.Itoa(i) != token {
				return nil, false
			}
			tree = at[i]
		default:
			return nil, false
		}
	}
	return tree, true
}

// TrimSpace removes the white space of ECMAScript at both ends: unlike
// strings.TrimSpace it knows U+FEFF and leaves U+0085 alone (host-profile §2.8).
func TrimSpace(s string) string { return strings.TrimFunc(s, IsSpace) }

// IsSpace reports whether r is white space or a line end of ECMAScript.
func IsSpace(r rune) bool {
	switch r {
	case '\t', '\n', '\v', '\f', '\r', ' ', 0x00A0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF:
		return true
	}
	return r >= 0x2000 && r <= 0x200A
}

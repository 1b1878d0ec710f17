package strictjson

import (
	"bytes"
	"strconv"
	"strings"
)

// MaxExact is the largest integer that every JSON reader keeps exactly (2^53−1).
const MaxExact = 1<<53 - 1

// Number is a JSON number as it was written. 8000, 8000.0 and 8e3 are one
// integer written in three ways.
type Number string

// Int64 gives the exact integer; ok is false when the number is not integral or
// does not fit.
func (n Number) Int64() (value int64, ok bool) {
	digits, exp, ok := n.split()
	if !ok {
		return 0, false
	}
	neg := strings.HasPrefix(digits, "-")
	digits = strings.TrimLeft(strings.TrimPrefix(digits, "-"), "0")
	trimmed := strings.TrimRight(digits, "0")
	exp += len(digits) - len(trimmed)
	if trimmed == "" {
		return 0, true
	}
	const maxDigits = 19 // of an int64
	if exp < 0 || exp > maxDigits || len(trimmed)+exp > maxDigits {
		return 0, false
	}
	text := trimmed + strings.Repeat("0", exp)
	if neg {
		text = "-" + text
	}
	value, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, false
	}
	return value, true
}

// Float64 gives the nearest float; ok is false when the number is out of range.
func (n Number) Float64() (value float64, ok bool) {
	value, err := strconv.ParseFloat(string(n), 64)
	return value, err == nil
}

// MarshalJSON writes the number as it was read.
func (n Number) MarshalJSON() ([]byte, error) {
	if _, _, ok := n.split(); !ok {
		return nil, &Error{Kind: Type, Detail: "not a number"}
	}
	return []byte(n), nil
}

// UnmarshalJSON keeps the literal; null empties it.
func (n *Number) UnmarshalJSON(data []byte) error {
	if bytes.Equal(data, []byte("null")) {
		*n = ""
		return nil
	}
	if _, _, ok := Number(data).split(); !ok {
		return &Error{Kind: Type, Detail: "value where a number is wanted"}
	}
	*n = Number(data)
	return nil
}

// split gives the signed digits without a point and the power of ten they are
// to be multiplied with. ok is false when n is not a JSON number or its exponent
// is beyond anything that fits.
func (n Number) split() (digits string, exp int, ok bool) {
	rest := string(n)
	sign := ""
	if strings.HasPrefix(rest, "-") {
		sign, rest = "-", rest[1:]
	}
	mantissa, exponent := rest, ""
	if i := strings.IndexAny(rest, "eE"); i >= 0 {
		mantissa, exponent = rest[:i], rest[i+1:]
		unsigned := strings.TrimLeft(exponent, "+-")
		if len(exponent)-len(unsigned) > 1 || !allDigits(unsigned) {
			return "", 0, false
		}
	}
	whole, frac, point := strings.Cut(mantissa, ".")
	if !allDigits(whole) || (point && !allDigits(frac)) || (len(whole) > 1 && whole[0] == '0') {
		return "", 0, false
	}
	digits = sign + whole + frac
	if exponent != "" {
		e, err := strconv.Atoi(exponent)
		const beyond = 1 << 24 // a longer number would not fit any limit of this package
		if err != nil || e > beyond || e < -beyond {
			if strings.Trim(digits, "-0") == "" {
				return "0", 0, true
			}
			e = -beyond // neither integral nor representable
			if !strings.HasPrefix(exponent, "-") {
				e = beyond
			}
		}
		exp = e
	}
	return digits, exp - len(frac), true
}

func allDigits(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

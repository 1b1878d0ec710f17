package screen

import (
	"fmt"
	"strconv"
	"strings"
)

// Attr is a set of ways in which a character is drawn.
type Attr uint16

// The attributes.
const (
	Bold Attr = 1 << iota
	Dim
	Italic
	Underline
	Blink
	Reverse
	Hidden
	Strike
	Overline
	Charset // the line drawing set
)

// Color is a foreground or background colour; the zero Color is the terminal's
// own.
type Color uint32

const (
	palette Color = 1 << 24
	direct  Color = 2 << 24
)

// Palette is colour n of 256.
func Palette(n uint8) Color { return palette | Color(n) }

// RGB is a colour by its parts.
func RGB(r, g, b uint8) Color { return direct | Color(r)<<16 | Color(g)<<8 | Color(b) }

// String gives "default", "75" or "#98c379".
func (c Color) String() string {
	switch {
	case c&direct != 0:
		return fmt.Sprintf("#%06x", uint32(c&0xffffff))
	case c&palette != 0:
		return strconv.Itoa(int(c & 0xff))
	}
	return "default"
}

// ParseColor reads the form that String gives.
func ParseColor(s string) (Color, error) {
	if s == "default" {
		return 0, nil
	}
	if hex, ok := strings.CutPrefix(s, "#"); ok && len(hex) == 6 {
		n, err := strconv.ParseUint(hex, 16, 24)
		if err == nil {
			return direct | Color(n), nil
		}
	}
	n, err := strconv.ParseUint(s, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("colour %q is neither default, 0–255 nor #rrggbb", s)
	}
	return Palette(uint8(n)), nil
}

// Style is how one cell is drawn.
type Style struct {
	Attr   Attr
	FG, BG Color
}

// Has reports whether all of a are set.
func (s Style) Has(a Attr) bool { return s.Attr&a == a }

// Visible reports whether the style shows on a blank.
func (s Style) Visible() bool {
	return s.BG != 0 || s.Attr&(Reverse|Underline|Strike|Overline) != 0
}

// String is for people: "bold dim fg=75".
func (s Style) String() string {
	var w []string
	for i, name := range attrNames {
		if s.Attr&(1<<i) != 0 {
			w = append(w, name)
		}
	}
	if s.FG != 0 {
		w = append(w, "fg="+s.FG.String())
	}
	if s.BG != 0 {
		w = append(w, "bg="+s.BG.String())
	}
	if len(w) == 0 {
		return "plain"
	}
	return strings.Join(w, " ")
}

var attrNames = [...]string{"bold", "dim", "italic", "underline", "blink", "reverse", "hidden", "strike", "overline", "charset"}

// codes of the attributes, in the order of attrNames; the line drawing set has
// no SGR code and is written as 10, which no capture holds.
var attrCodes = [...]string{"1", "2", "3", "4", "5", "7", "8", "9", "53", "10"}

// append writes the style as one SGR sequence that owes nothing to the state
// before it.
func (s Style) append(b []byte) []byte {
	b = append(b, "\x1b[0"...)
	for i, code := range attrCodes {
		if s.Attr&(1<<i) != 0 {
			b = append(b, ';')
			b = append(b, code...)
		}
	}
	b = s.FG.append(b, "38")
	b = s.BG.append(b, "48")
	return append(b, 'm')
}

func (c Color) append(b []byte, code string) []byte {
	switch {
	case c&direct != 0:
		return fmt.Appendf(b, ";%s;2;%d;%d;%d", code, c>>16&0xff, c>>8&0xff, c&0xff)
	case c&palette != 0:
		return fmt.Appendf(b, ";%s;5;%d", code, c&0xff)
	}
	return b
}

// maxParams bounds the numbers of one SGR sequence that are looked at.
const maxParams = 64

// apply obeys the parameters of one SGR sequence. Numbers are separated by ';';
// ':' makes the parts of one number, as in 4:3 and 38:2::1:2:3.
func (s *Style) apply(params string) {
	groups := strings.SplitN(params, ";", maxParams+1)
	if len(groups) > maxParams {
		groups = groups[:maxParams]
	}
	for i := 0; i < len(groups); i++ {
		parts := strings.Split(groups[i], ":")
		n := number(parts[0])
		switch n {
		case 38, 48, 58:
			var c Color
			ok := false
			if len(parts) > 1 {
				c, ok = colonColor(parts[1:])
			} else {
				var used int
				c, used, ok = semicolonColor(groups[i+1:])
				i += used
			}
			if ok && n == 38 {
				s.FG = c
			} else if ok && n == 48 {
				s.BG = c
			}
		case 4:
			if len(parts) > 1 && number(parts[1]) == 0 {
				s.Attr &^= Underline
			} else {
				s.Attr |= Underline
			}
		default:
			s.one(n)
		}
	}
}

// one obeys a parameter that stands alone.
func (s *Style) one(n int) {
	switch {
	case n == 0:
		s.Attr &= Charset // SGR does not end the line drawing set
		s.FG, s.BG = 0, 0
	case n == 1:
		s.Attr |= Bold
	case n == 2:
		s.Attr |= Dim
	case n == 3:
		s.Attr |= Italic
	case n == 5 || n == 6:
		s.Attr |= Blink
	case n == 7:
		s.Attr |= Reverse
	case n == 8:
		s.Attr |= Hidden
	case n == 9:
		s.Attr |= Strike
	case n == 21:
		s.Attr |= Underline
	case n == 22:
		s.Attr &^= Bold | Dim
	case n == 23:
		s.Attr &^= Italic
	case n == 24:
		s.Attr &^= Underline
	case n == 25:
		s.Attr &^= Blink
	case n == 27:
		s.Attr &^= Reverse
	case n == 28:
		s.Attr &^= Hidden
	case n == 29:
		s.Attr &^= Strike
	case n >= 30 && n <= 37:
		s.FG = Palette(uint8(n - 30))
	case n == 39:
		s.FG = 0
	case n >= 40 && n <= 47:
		s.BG = Palette(uint8(n - 40))
	case n == 49:
		s.BG = 0
	case n == 53:
		s.Attr |= Overline
	case n == 55:
		s.Attr &^= Overline
	case n >= 90 && n <= 97:
		s.FG = Palette(uint8(n - 90 + 8))
	case n >= 100 && n <= 107:
		s.BG = Palette(uint8(n - 100 + 8))
	}
}

// semicolonColor reads "5;n" or "2;r;g;b" behind a 38, 48 or 58 and says how
// many groups it took.
func semicolonColor(rest []string) (c Color, used int, ok bool) {
	if len(rest) == 0 {
		return 0, 0, false
	}
	switch number(rest[0]) {
	case 5:
		if len(rest) < 2 {
			return 0, len(rest), false
		}
		return Palette(uint8(number(rest[1]))), 2, true
	case 2:
		if len(rest) < 4 {
			return 0, len(rest), false
		}
		return RGB(uint8(number(rest[1])), uint8(number(rest[2])), uint8(number(rest[3]))), 4, true
	}
	return 0, 1, false
}

// colonColor reads 5:n, 2:r:g:b or 2:space:r:g:b.
func colonColor(parts []string) (Color, bool) {
	switch number(parts[0]) {
	case 5:
		if len(parts) >= 2 {
			return Palette(uint8(number(parts[1]))), true
		}
	case 2:
		if n := len(parts); n >= 4 {
			at := 1
			if n >= 5 {
				at = 2 // colour space
			}
			return RGB(uint8(number(parts[at])), uint8(number(parts[at+1])), uint8(number(parts[at+2]))), true
		}
	}
	return 0, false
}

// number reads a parameter; an empty one is 0, as ECMA-48 has it.
func number(s string) int {
	n := 0
	for i := 0; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		n = n*10 + int(s[i]-'0')
		if n > 1<<16 {
			return 1 << 16
		}
	}
	return n
}

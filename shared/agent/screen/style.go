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

// params are the numbers of one SGR sequence. Those that stand alone are divided
// by ';'; ':' makes the parts of one, as in 4:3 and 38:2::1:2:3.
type params struct {
	n     int
	value [maxParams]int
	part  [maxParams]bool // belongs to the number before it
}

func readParams(text string) (p params) {
	n, part := 0, false
	for i := 0; i <= len(text) && p.n < maxParams; i++ {
		switch {
		case i < len(text) && text[i] >= '0' && text[i] <= '9':
			n = min(n*10+int(text[i]-'0'), 1<<16)
		case i == len(text) || text[i] == ';' || text[i] == ':':
			p.value[p.n], p.part[p.n] = n, part // an empty one is 0, as ECMA-48 has it
			p.n++
			n, part = 0, i < len(text) && text[i] == ':'
		}
	}
	return p
}

// apply obeys the parameters of one SGR sequence.
func (s *Style) apply(text string) {
	p := readParams(text)
	for i := 0; i < p.n; {
		end := i + 1 // of the parts
		for end < p.n && p.part[end] {
			end++
		}
		switch n := p.value[i]; n {
		case 38, 48, 58:
			var c Color
			ok := false
			if end > i+1 {
				c, ok = colonColor(p.value[i+1 : end])
			} else {
				var used int
				c, used, ok = semicolonColor(p.value[i+1 : p.n])
				end += used
			}
			if ok && n == 38 {
				s.FG = c
			} else if ok && n == 48 {
				s.BG = c
			}
		case 4:
			if end > i+1 && p.value[i+1] == 0 {
				s.Attr &^= Underline
			} else {
				s.Attr |= Underline
			}
		default:
			s.one(n)
		}
		i = end
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
// many numbers it took.
func semicolonColor(rest []int) (c Color, used int, ok bool) {
	switch {
	case len(rest) == 0:
		return 0, 0, false
	case rest[0] == 5 && len(rest) >= 2:
		return Palette(uint8(rest[1])), 2, true
	case rest[0] == 2 && len(rest) >= 4:
		return RGB(uint8(rest[1]), uint8(rest[2]), uint8(rest[3])), 4, true
	case rest[0] == 5 || rest[0] == 2:
		return 0, len(rest), false
	}
	return 0, 1, false
}

// colonColor reads 5:n, 2:r:g:b or 2:space:r:g:b.
func colonColor(parts []int) (Color, bool) {
	switch {
	case parts[0] == 5 && len(parts) >= 2:
		return Palette(uint8(parts[1])), true
	case parts[0] == 2 && len(parts) >= 5: // with a colour space
		return RGB(uint8(parts[2]), uint8(parts[3]), uint8(parts[4])), true
	case parts[0] == 2 && len(parts) == 4:
		return RGB(uint8(parts[1]), uint8(parts[2]), uint8(parts[3])), true
	}
	return 0, false
}

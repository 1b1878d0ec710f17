package redact

import "bytes"

// tokenForm is a well-known form of a token: a prefix and what must follow it.
type tokenForm struct {
	prefix string
	chars  *[256]bool // of the rest
	min    int        // bytes of the rest
	exact  bool       // … and not one more of its characters
}

var (
	alnum    = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
	capitals = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
	wordly   = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
	base64y  = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
	schemely = charset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=._~-")
)

// tokenForms are the patterns of station §6.3(b) with a fixed beginning.
var tokenForms = []tokenForm{
	{"sk-", wordly, 16, false},
	{"ghp_", alnum, 20, false}, {"gho_", alnum, 20, false}, {"ghu_", alnum, 20, false}, {"ghs_", alnum, 20, false}, {"ghr_", alnum, 20, false},
	{"github_pat_", wordly, 20, false},
	{"glpat-", wordly, 16, false},
	{"xoxa-", wordly, 10, false}, {"xoxb-", wordly, 10, false}, {"xoxo-", wordly, 10, false}, {"xoxp-", wordly, 10, false}, {"xoxs-", wordly, 10, false}, {"xoxr-", wordly, 10, false},
	{"AKIA", capitals, 16, true}, {"ASIA", capitals, 16, true},
	{"AIza", wordly, 35, false},
	{"npm_", alnum, 36, false},
	{"hf_", alnum, 30, false},
	{"dbt_", wordly, 43, false}, {"dbp_", wordly, 43, false},
}

// formsBy are the forms by the first byte of their prefix, so that ordinary words
// cost one look.
var formsBy = func() (t [256][]tokenForm) {
	for _, f := range tokenForms {
		t[f.prefix[0]] = append(t[f.prefix[0]], f)
	}
	return t
}()

// tokenIn finds the first token in the word from i to end: it begins where the
// word does or behind a separator in it, and runs to the end of its characters,
// however long.
func tokenIn(buf []byte, i, end int) (start, stop int) {
	jwt := false
	for p := i; p < end; p++ {
		if p > i && alnum[buf[p-1]] {
			continue
		}
		if forms := formsBy[buf[p]]; forms != nil {
			if stop = tokenAt(buf, p, forms); stop > 0 {
				return p, stop
			}
		}
		if buf[p] == 'e' && !jwt && bytes.HasPrefix(buf[p:end], []byte("eyJ")) {
			jwt = true // the parts behind are the same for all places of the word
			if stop = jwtAt(buf, p, end); stop > 0 {
				return p, stop
			}
		}
	}
	return 0, 0
}

// tokenAt gives the end of the token of one of forms at i, 0 for none.
func tokenAt(buf []byte, i int, forms []tokenForm) int {
	for _, f := range forms {
		if i+1 >= len(buf) || buf[i+1] != f.prefix[1] || !bytes.HasPrefix(buf[i:], []byte(f.prefix)) {
			continue
		}
		from := i + len(f.prefix)
		within := buf
		if f.exact { // more than one too many are not counted
			within = buf[:min(len(buf), from+f.min+1)]
		}
		end := run(within, from, f.chars)
		if end-from < f.min || (f.exact && (end-from > f.min || run(buf, end, alnum) > end)) {
			continue
		}
		return run(buf, end, wordly) // never leave a suffix
	}
	return 0
}

// jwtAt recognises three base64url parts with dots, the first two of them JSON
// objects; a is the end of the first.
func jwtAt(buf []byte, i, a int) int {
	const minPart = 8
	if a-i < minPart || !bytes.HasPrefix(buf[a:], []byte(".eyJ")) {
		return 0
	}
	b := run(buf, a+1, wordly)
	if b-a < minPart || b == len(buf) || buf[b] != '.' {
		return 0
	}
	return run(buf, b+1, wordly)
}

// run gives the end of the characters of set from i on.
func run(buf []byte, i int, set *[256]bool) int {
	for i < len(buf) && set[buf[i]] {
		i++
	}
	return i
}

func charset(chars string) *[256]bool {
	var t [256]bool
	for i := range len(chars) {
		t[chars[i]] = true
	}
	return &t
}

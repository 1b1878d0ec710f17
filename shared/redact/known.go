package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"sort"
	"strings"
)

// MinKnown is the length in bytes below which a value is not looked for.
const MinKnown = 8

// formsOf gives the spellings under which a value of one line may turn up.
func formsOf(value string, users []string) []string {
	if len(value) < MinKnown {
		return nil
	}
	return append(oneLineForms(value, users), value)
}

// oneLineForms gives the encoded spellings, none of which holds a line end.
func oneLineForms(value string, users []string) []string {
	query, path := url.QueryEscape(value), url.PathEscape(value)
	forms := []string{query, path, lowerEscapes(query), lowerEscapes(path)}
	if quoted, err := json.Marshal(value); err == nil { // escapes <, > and &
		inner := string(quoted[1 : len(quoted)-1])
		forms = append(forms, inner, strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&").Replace(inner))
	}
	plain := []string{value}
	for _, user := range users {
		plain = append(plain, user+":"+value)
	}
	for _, p := range plain {
		// Without padding: the padded forms begin with it.
		forms = append(forms, base64.RawStdEncoding.EncodeToString([]byte(p)), base64.RawURLEncoding.EncodeToString([]byte(p)))
	}
	low := hex.EncodeToString([]byte(value))
	forms = append(forms, low, strings.ToUpper(low))
	out := forms[:0]
	for _, f := range forms {
		if len(f) >= MinKnown && !strings.Contains(f, "\n") {
			out = append(out, f)
		}
	}
	return out
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			b[i+1], b[i+2] = lower(b[i+1]), lower(b[i+2])
		}
	}
	return string(b)
}

// automaton finds all of its patterns in one pass (Aho and Corasick). It is
// immutable. The root is dense, since most bytes of a text stay there.
type automaton struct {
	root  [256]int32
	nodes []node // nodes[0] is the root
}

type node struct {
	edges []edge
	fail  int32
	depth int32 // length of the prefix that this node stands for
	match int32 // length of the longest pattern that ends here, 0 for none
}

type edge struct {
	b  byte
	to int32
}

func newAutomaton(patterns []string) *automaton {
	a := &automaton{nodes: []node{{}}}
	sort.Strings(patterns) // equal input gives an equal automaton
	for _, p := range patterns {
		at := int32(0)
		for i := range len(p) {
			next := a.edge(at, p[i])
			if next == 0 {
				next = int32(len(a.nodes))
				a.nodes = append(a.nodes, node{depth: int32(i + 1)})
				if at == 0 {
					a.root[p[i]] = next
				} else {
					a.nodes[at].edges = append(a.nodes[at].edges, edge{p[i], next})
				}
			}
			at = next
		}
		a.nodes[at].match = int32(len(p))
	}
	var queue []int32
	for _, n := range a.root {
		if n != 0 {
			queue = append(queue, n)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		for _, e := range a.nodes[at].edges {
			f := a.step(a.nodes[at].fail, e.b)
			a.nodes[e.to].fail = f
			if a.nodes[e.to].match == 0 {
				a.nodes[e.to].match = a.nodes[f].match
			}
			queue = append(queue, e.to)
		}
	}
	return a
}

// edge gives the child of at by b, 0 for none.
func (a *automaton) edge(at int32, b byte) int32 {
	if at == 0 {
		return a.root[b]
	}
	for _, e := range a.nodes[at].edges {
		if e.b == b {
			return e.to
		}
	}
	return 0
}

// step gives the state after b.
func (a *automaton) step(at int32, b byte) int32 {
	for {
		if next := a.edge(at, b); next != 0 {
			return next
		}
		if at == 0 {
			return 0
		}
		at = a.nodes[at].fail
	}
}

// find appends the spans of all patterns in buf. tail is how many bytes at the
// end of buf may be the beginning of one.
func (a *automaton) find(spans []span, buf []byte) (_ []span, tail int) {
	if len(a.nodes) <= 1 {
		return spans, 0
	}
	at := int32(0)
	for i, b := range buf {
		if at == 0 {
			if at = a.root[b]; at == 0 {
				continue
			}
		} else {
			at = a.step(at, b)
		}
		if m := int(a.nodes[at].match); m > 0 {
			spans = append(spans, span{start: i + 1 - m, end: i + 1, lead: i + 1 - m})
		}
	}
	return spans, int(a.nodes[at].depth)
}

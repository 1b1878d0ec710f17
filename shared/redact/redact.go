// Package redact hides secrets and local paths in whatever leaves a program:
// log lines, tool results, events, receipts, the output of daemons. Its policy
// is named redact/1; one engine serves whole texts, JSON and streams that are
// cut anywhere.
//
// Three kinds of secrets are found. Known values are those that the program
// holds: Learn takes each before its first use, and finds it raw, URL-escaped,
// JSON-escaped, in base64 and in hex. Structure gives away others: values of
// JSON members, headers, settings, flags and query parameters with a secret's
// name, user information in URLs, signed URLs. Patterns give away the rest:
// tokens with a well-known form, PEM blocks, bearer and basic credentials.
//
// Names stay, values go, and no length is shown. Where a value's end is in
// doubt, too much is hidden rather than too little. Redacting twice changes
// nothing, and JSON stays JSON.
package redact

import (
	"bytes"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
)

// Policy names the rules of this package in evidence.
const Policy = "redact/1"

// Word replaces what is hidden.
const Word = "[redacted]"

// Options configures New.
type Options struct {
	Word      string            // "" means Word
	KnownOnly bool              // bytes without lines: only known values are looked for
	Paths     map[string]string // absolute directory to what stands for it, "<home>"
}

// Redactor holds what is to be hidden. Its methods may be called from several
// goroutines.
type Redactor struct {
	word      string
	knownOnly bool
	paths     []path // longest first

	mu    sync.Mutex
	forms map[string][]string // learned value to its forms
	auto  atomic.Pointer[automaton]
}

// path is one spelling of a directory.
type path struct {
	form  []byte
	label string
}

// spellings are how a directory stands in a text: as it is, in a URL, in JSON of
// those who escape slashes.
func spellings(dir, label string) (all []path) {
	for _, slash := range []string{"/", "%2F", "%2f", `\/`} {
		all = append(all, path{[]byte(strings.ReplaceAll(dir, "/", slash)), label})
	}
	return all
}

// New makes a Redactor that knows no values yet.
func New(opts Options) *Redactor {
	if opts.Word == "" {
		opts.Word = Word
	}
	r := &Redactor{word: opts.Word, knownOnly: opts.KnownOnly, forms: map[string][]string{}}
	for dir, label := range opts.Paths {
		if dir = filepath.Clean(dir); filepath.IsAbs(dir) && dir != "/" {
			r.paths = append(r.paths, spellings(dir, label)...)
		}
	}
	sort.Slice(r.paths, func(i, j int) bool { return len(r.paths[i].form) > len(r.paths[j].form) })
	r.auto.Store(&automaton{})
	return r
}

// Learn registers a secret value; with users also as the password of each in
// basic credentials. Lines of a longer text count each for itself. Values
// shorter than MinKnown are not taken, since they would hide ordinary text;
// the result says whether anything was.
func (r *Redactor) Learn(value string, users ...string) bool {
	var forms []string
	for line := range strings.SplitSeq(value, "\n") {
		forms = append(forms, formsOf(strings.TrimSuffix(line, "\r"), users)...)
	}
	if strings.Contains(value, "\n") && len(value) >= MinKnown {
		forms = append(forms, oneLineForms(value, users)...)
	}
	if len(forms) == 0 {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forms[value] = append(r.forms[value], forms...)
	r.auto.Store(nil) // built again at the next use
	return true
}

// Forget drops a learned value: its owner is gone and it opens nothing any more.
func (r *Redactor) Forget(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.forms, value)
	r.auto.Store(nil)
}

// known gives the automaton of the learned values.
func (r *Redactor) known() *automaton {
	if a := r.auto.Load(); a != nil {
		return a
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.auto.Load(); a != nil {
		return a
	}
	var all []string
	for _, forms := range r.forms {
		all = append(all, forms...)
	}
	a := newAutomaton(all)
	r.auto.Store(a)
	return a
}

// Text redacts a whole text.
func (r *Redactor) Text(s string) string {
	out, changed := r.bytes([]byte(s))
	if !changed {
		return s
	}
	return string(out)
}

// Bytes redacts a whole text; the result may be data itself.
func (r *Redactor) Bytes(data []byte) []byte {
	out, changed := r.bytes(data)
	if !changed {
		return data
	}
	return out
}

func (r *Redactor) bytes(data []byte) (out []byte, changed bool) {
	e := engine{red: r, auto: r.known()}
	out = make([]byte, 0, len(data))
	for len(data) > 0 {
		n := len(data)
		if !r.knownOnly {
			if i := bytes.IndexByte(data, '\n'); i >= 0 {
				n = i + 1
			}
		}
		out, _ = e.take(out, data[:n], true)
		data = data[n:]
	}
	return out, e.changed
}

// Finds reports whether data holds anything that would be redacted, paths apart.
// It is the last look at a document that must be clean.
func (r *Redactor) Finds(data []byte) bool {
	e := engine{red: r, auto: r.known(), noPaths: true}
	for line := range bytes.Lines(data) {
		if e.take(nil, line, true); e.changed && !e.onlyWord {
			return true
		}
	}
	return false
}

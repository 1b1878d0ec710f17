package catalog

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Withheld replaces a text in which authority may be embedded.
const Withheld = "Details are withheld. Refresh with list or status and use only an action that they advertise."

// masked replaces a private value inside a text that stays.
const masked = "[withheld]"

// minPrivate is the shortest private value that is looked for: a shorter one
// would also hit ordinary words.
const minPrivate = 6

// hiddenEnds and hiddenNames are members that no result may have (tools §3),
// names reduced to lower-case letters and digits.
var hiddenEnds = []string{
	"token", "fingerprint", "hash", "sha256", "digest", "revision", "revisions",
	"bindingid", "bindingids", "bindinggeneration", "bindinggenerations",
}

var hiddenNames = set(
	"generation", "generationid", "nonce", "challenge", "etag", "proof", "snapshotid",
	"selectionhandle", "selectionscope", "selectionsnapshot", "livenativethreadid", "acceptanceevidence",
	"candidaterollouts", "claudetranscriptanchor", "codexrolloutacceptanceanchor", "codexopenrootrolloutinventory",
	"nativesessiontakeover", "leaseepoch", "expectedapprovalfingerprint", "expectedcallbackconversationid",
	"expectedcallbackmessageid", "expectedcallbacksessionid", "expectedcallbackturnid", "epoch", "leaseholder",
	// What tools §3 names in words.
	"route", "callbackroute", "envelope", "callbackenvelope", "profileid", "controllersession", "controllersessionid",
	"attemptid", "executable", "callbackexecutable", "argv", "argvtemplate", "env", "environ", "environment",
	"storedir", "storepath", "storefile", "databasepath", "runtimedir", "rolloutpath", "rolloutfile", "rolloutpaths",
	"transcriptpath", "transcriptfile", "draft", "drafttext", "composertext", "rawscreen", "rawregion",
	"approvalregion", "rawapprovalregion",
)

// scannedEnds are members whose texts explain something, so that authority may
// have slipped into a sentence.
var scannedEnds = []string{
	"reason", "reasons", "error", "errors", "warning", "warnings", "diagnostic", "diagnostics", "hint",
	"reasonmessage", "reasonsmessage", "errormessage", "errorsmessage", "warningmessage", "warningsmessage",
	"diagnosticmessage", "diagnosticsmessage",
}

var (
	// A name in front of = or :, as in token=x, "token": x.
	assigned = regexp.MustCompile(`([A-Za-z][A-Za-z0-9_.-]*)["'\x60]?\s*[=:]`)
	// A long option.
	option = regexp.MustCompile(`--([A-Za-z][A-Za-z0-9_-]*)`)
	// Talk about what only this program may reason with.
	wording = regexp.MustCompile(`(?i)\b(?:tokens?|revisions?|fingerprints?|nonces?|(?:lease|fencing)[ _-]?epochs?|` +
		`binding[ _-]?(?:ids?|generations?)|compare[ _-]and[ _-](?:swap|set)|callback[ _-]?route)\b`)
	// Files of the Store and of the agents.
	privateFile = regexp.MustCompile(`store\.db|rollout-\S*\.jsonl|/\.(?:codex|claude)/|[0-9A-Fa-f-]{36}\.jsonl|/sessions/[0-9]+\.`)
)

// A scrubber is the one way out for results and errors.
type scrubber struct {
	private []string // longest first, so that a path goes before its parent
	paths   []string
}

func newScrubber(private, paths []string) scrubber {
	long := func(list []string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(p string) bool { return len(p) < minPrivate })
	}
	s := scrubber{long(private), long(paths)}
	sort.Slice(s.private, func(i, j int) bool { return len(s.private[i]) > len(s.private[j]) })
	return s
}

// object gives data, which must be one JSON object, without hidden members and
// with withheld texts. Order and numbers stay as they are.
func (s scrubber) object(data []byte) ([]byte, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	if dec.PeekKind() != jsontext.KindBeginObject {
		return nil, errors.New("not a JSON object")
	}
	var buf bytes.Buffer
	enc := jsontext.NewEncoder(&buf)
	if err := s.value(dec, enc, false); err != nil {
		return nil, err
	}
	if _, err := dec.ReadToken(); err != io.EOF {
		return nil, errors.New("bytes after the JSON object")
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// value copies the next value. scan is set below a member that explains.
func (s scrubber) value(dec *jsontext.Decoder, enc *jsontext.Encoder, scan bool) error {
	switch dec.PeekKind() {
	case jsontext.KindBeginObject:
		if err := copyToken(dec, enc); err != nil {
			return err
		}
		for dec.PeekKind() != jsontext.KindEndObject {
			tok, err := dec.ReadToken()
			if err != nil {
				return err
			}
			name := tok.String()
			if s.hides(name) {
				if err := dec.SkipValue(); err != nil {
					return err
				}
				continue
			}
			if err := enc.WriteToken(jsontext.String(name)); err != nil {
				return err
			}
			if err := s.value(dec, enc, scan || explains(name)); err != nil {
				return err
			}
		}
		return copyToken(dec, enc)
	case jsontext.KindBeginArray:
		if err := copyToken(dec, enc); err != nil {
			return err
		}
		for dec.PeekKind() != jsontext.KindEndArray {
			if err := s.value(dec, enc, scan); err != nil {
				return err
			}
		}
		return copyToken(dec, enc)
	case jsontext.KindString:
		tok, err := dec.ReadToken()
		if err != nil {
			return err
		}
		return enc.WriteToken(jsontext.String(s.text(tok.String(), scan)))
	}
	return copyToken(dec, enc)
}

// text gives what may be shown of one text.
func (s scrubber) text(text string, scan bool) string {
	if scan && (embedsAuthority(text) || slices.ContainsFunc(s.paths, func(p string) bool { return strings.Contains(text, p) })) {
		return Withheld
	}
	for _, p := range s.private {
		if !strings.Contains(text, p) {
			continue
		}
		if scan {
			return Withheld
		}
		text = strings.ReplaceAll(text, p, masked)
	}
	return text
}

func (s scrubber) hides(name string) bool {
	if hidden(name) {
		return true
	}
	for _, p := range s.private {
		if strings.Contains(name, p) {
			return true
		}
	}
	return false
}

// hidden is the rule of tools §3 for one member name.
func hidden(name string) bool {
	reduced := reduce(name)
	if hiddenNames[reduced] {
		return true
	}
	for _, end := range hiddenEnds {
		if strings.HasSuffix(reduced, end) {
			return true
		}
	}
	return false
}

func explains(name string) bool {
	reduced := reduce(name)
	for _, end := range scannedEnds {
		if strings.HasSuffix(reduced, end) {
			return true
		}
	}
	return false
}

func embedsAuthority(text string) bool {
	if wording.MatchString(text) || privateFile.MatchString(text) {
		return true
	}
	for _, re := range []*regexp.Regexp{assigned, option} {
		for _, m := range re.FindAllStringSubmatch(text, -1) {
			if hidden(m[1]) {
				return true
			}
		}
	}
	return false
}

// reduce keeps lower-case letters and digits.
func reduce(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + ('a' - 'A')
		}
		return -1
	}, name)
}

func copyToken(dec *jsontext.Decoder, enc *jsontext.Encoder) error {
	tok, err := dec.ReadToken()
	if err != nil {
		return err
	}
	return enc.WriteToken(tok)
}

func set(names ...string) map[string]bool {
	out := make(map[string]bool, len(names))
	for _, n := range names {
		out[n] = true
	}
	return out
}

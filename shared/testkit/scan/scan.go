// Package scan looks for secrets in every byte that a run wrote: files of a Store with
// its WAL, logs, evidence, sockets' directories, what programs printed. It knows nothing
// of the redactor and finds what that should have hidden, in whatever form it was
// written and also where a page or a frame parts it. Only tests import it.
package scan

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"drawbridge/shared/redact"
)

// minHalf is how long a half of a value has to be to prove anything.
const minHalf = 12

// Secrets are what must not be anywhere.
type Secrets struct {
	Values map[string]string // what each is called, and the thing; none shorter than 8 bytes
	Tokens bool              // also everything that has the form of a credential
}

// Found is one finding. It does not quote the thing.
type Found struct {
	Where, What, Form string
}

func (f Found) String() string { return fmt.Sprintf("%s: %s, %s", f.Where, f.What, f.Form) }

// Marks gives n strings that stand nowhere else, to be put into requests, answers and
// settings, each under its name.
func Marks(n int) map[string]string {
	out := make(map[string]string, n)
	for i := range n {
		s, _ := redact.NewCapability()
		out[fmt.Sprintf("mark %d", i+1)] = fmt.Sprintf("mark%02d-%s", i+1, s.Reveal()[:32])
	}
	return out
}

// With adds values.
func (s Secrets) With(name, value string) Secrets {
	s.Values = maps.Clone(s.Values)
	if s.Values == nil {
		s.Values = map[string]string{}
	}
	s.Values[name] = value
	return s
}

// In looks into data.
func (s Secrets) In(where string, data []byte) (all []Found) {
	for _, name := range slices.Sorted(maps.Keys(s.Values)) {
		for form, text := range forms(s.Values[name]) {
			if bytes.Contains(data, []byte(text)) {
				all = append(all, Found{where, name, form})
				break
			}
		}
	}
	if s.Tokens {
		for _, what := range redact.Tokens(data) {
			all = append(all, Found{where, what, "by its form"})
		}
	}
	return all
}

// Below looks into every regular file at and below the directories, and at their
// names, and says how many bytes that were.
func (s Secrets) Below(dirs ...string) (all []Found, seen int64, err error) {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			all = append(all, s.In("the name of "+path, []byte(e.Name()))...)
			if !e.Type().IsRegular() {
				return nil
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			seen += int64(len(data))
			all = append(all, s.In(path, data)...)
			return nil
		})
		if err != nil {
			return all, seen, fmt.Errorf("look below %s: %w", dir, err)
		}
	}
	return all, seen, nil
}

// None fails the test for each finding below the directories, and when there was
// nothing to look at.
func (s Secrets) None(tb testing.TB, dirs ...string) {
	tb.Helper()
	all, seen, err := s.Below(dirs...)
	if err != nil {
		tb.Error(err)
	}
	if seen == 0 {
		tb.Errorf("nothing was written below %s", strings.Join(dirs, ", "))
	}
	for _, f := range all {
		tb.Error(f)
	}
}

// forms are the spellings of a value that are looked for.
func forms(value string) map[string]string {
	quoted, err := json.Marshal(value)
	if err != nil {
		panic(err) // a string always has a form
	}
	low := hex.EncodeToString([]byte(value))
	out := map[string]string{
		"as it is": value, "in JSON": string(quoted[1 : len(quoted)-1]), "in a query": url.QueryEscape(value), "in a path": url.PathEscape(value),
		"in hex": low, "in HEX": strings.ToUpper(low),
	}
	for shift := range 3 {
		for name, e := range map[string]*base64.Encoding{"base64": base64.RawStdEncoding, "base64url": base64.RawURLEncoding} {
			out[fmt.Sprintf("in %s, shifted by %d", name, shift)] = inside(e, value, shift)
		}
	}
	if half := len(value) / 2; half >= minHalf {
		out["its first half"], out["its second half"] = value[:half], value[len(value)-half:]
	}
	return out
}

// inside is what stands in the base64 of a longer text for a value that begins shift
// bytes after a group of three, whatever is around it.
func inside(e *base64.Encoding, value string, shift int) string {
	text := e.EncodeToString([]byte(strings.Repeat("x", shift) + value))
	from := (shift*8 + 5) / 6
	to := (shift + len(value)) * 8 / 6
	return text[from:to]
}

package redact

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
)

// lastLook are the forms of tokens once more, each by itself and without context
// (station §6.3). They share nothing with the engine, so that a mistake there is not
// made twice.
var lastLook = []struct {
	what string
	form *regexp.Regexp
}{
	{"an sk- key", regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{16,}`)},
	{"a GitHub token", regexp.MustCompile(`\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}`)},
	{"a GitLab token", regexp.MustCompile(`\bglpat-[A-Za-z0-9_-]{16,}`)},
	{"a Slack token", regexp.MustCompile(`\bxox[abposr]-[A-Za-z0-9-]{10,}`)},
	{"an AWS key", regexp.MustCompile(`\b(AKIA|ASIA)[0-9A-Z]{16}\b`)},
	{"a Google key", regexp.MustCompile(`\bAIza[0-9A-Za-z_-]{35}`)},
	{"an npm token", regexp.MustCompile(`\bnpm_[A-Za-z0-9]{36}`)},
	{"a Hugging Face token", regexp.MustCompile(`\bhf_[A-Za-z0-9]{30,}`)},
	{"a ticket", regexp.MustCompile(`\bdbt_[A-Za-z0-9_-]{43}`)},
	{"a principal's secret", regexp.MustCompile(`\bdbp_[A-Za-z0-9_-]{43}`)},
	{"a JWT", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{5,}\.eyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]*`)},
	{"a private key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY`)},
	{"a credential", regexp.MustCompile(`(?i)\bbearer[ :=]+[A-Za-z0-9+/._~-][A-Za-z0-9+/=._~-]{15,}`)},
	{"user information in a URL", regexp.MustCompile(`://[^/?#\s"'\\\[]+:[^/?#\s"'\\\[]+@`)},
}

// Tokens says what in data has the form of a credential, without quoting it; nil
// when nothing has.
func Tokens(data []byte) (found []string) {
	for _, l := range lastLook {
		if l.form.Match(data) {
			found = append(found, l.what)
		}
	}
	return found
}

// Verify is the last look at a document that must be clean: no value that was
// learned, in any of its forms, nothing that has the form of a credential, none of
// the directories of Options.Paths. The error says what was found, never the thing.
func (r *Redactor) Verify(data []byte) error {
	if spans, _ := r.known().find(nil, data); len(spans) > 0 {
		return errors.New("verify a document: a known value is in it")
	}
	if found := Tokens(data); found != nil {
		return fmt.Errorf("verify a document: %s is in it", found[0])
	}
	look := scan{red: r, buf: data}
	for _, p := range r.paths {
		for at := 0; ; {
			i := bytes.Index(data[at:], p.form)
			if i < 0 {
				break
			}
			begin, end := at+i, at+i+len(p.form)
			if look.absolute(begin) && (end == len(data) || (!wordly[data[end]] && data[end] != '.')) {
				return fmt.Errorf("verify a document: the directory %s is in it", p.label)
			}
			at = begin + 1
		}
	}
	again, err := r.JSON(data)
	if err != nil {
		again = r.Bytes(data)
	}
	if !bytes.Equal(again, data) {
		return errors.New("verify a document: it is not as the redactor leaves it")
	}
	return nil
}

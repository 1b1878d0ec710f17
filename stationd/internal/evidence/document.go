package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"drawbridge/shared/fault"
	"drawbridge/shared/redact"
	"drawbridge/stationd/internal/egress"
)

// document is Facts as they are written. ModelAccess has no other value in this
// version.
type document struct {
	Schema  string `json:"schema"`
	Version int    `json:"version"`
	Facts
	Artifacts          []File `json:"artifacts"`
	ArtifactsTruncated bool   `json:"artifactsTruncated,omitempty"`
	RedactionPolicy    string `json:"redactionPolicy"`
	RedactionFailed    bool   `json:"redactionFailed"`
	ModelAccess        *bool  `json:"modelAccess"`
}

// minimal is what is written when the whole cannot be trusted.
type minimal struct {
	Schema          string `json:"schema"`
	Version         int    `json:"version"`
	StationID       string `json:"stationId"`
	Attempt         int64  `json:"attempt"`
	LeaseID         string `json:"leaseId"`
	Times           Times  `json:"times"`
	Exit            Exit   `json:"exit"`
	Reason          string `json:"reason"`
	Cleanup         string `json:"cleanup"`
	Events          Events `json:"events"`
	RedactionPolicy string `json:"redactionPolicy"`
	RedactionFailed bool   `json:"redactionFailed"`
	ModelAccess     *bool  `json:"modelAccess"`
}

// cleaner is the redactor.
type cleaner interface {
	JSON(data []byte) ([]byte, error)
	Verify(data []byte) error
}

// Document gives the document of an attempt: built from f, redacted, and looked at
// once more. It is always one that may be kept; why, if not nil, says that it is the
// minimal one because the whole one could not be trusted. why quotes nothing.
func Document(f Facts, r *redact.Redactor) (doc []byte, why error) {
	if r == nil {
		return fallback(f), errors.New("redact evidence: there is no redactor")
	}
	return write(f, r)
}

func write(f Facts, r cleaner) (doc []byte, why error) {
	defer func() {
		if p := recover(); p != nil {
			doc, why = fallback(f), fmt.Errorf("redact evidence: the redactor broke off with %T", p)
		}
	}()
	clean, err := whole(f, r)
	if err != nil {
		return fallback(f), err
	}
	return clean, nil
}

// whole builds, redacts and verifies.
func whole(f Facts, r cleaner) ([]byte, error) {
	data, err := encode(document{Schema: Schema, Version: Version, Facts: bounded(f), Artifacts: list(f.Artifacts.Files),
		ArtifactsTruncated: f.Artifacts.Truncated, RedactionPolicy: redact.Policy})
	if err != nil {
		return nil, fmt.Errorf("write evidence: %w", err)
	}
	clean, err := r.JSON(data)
	switch {
	case err != nil:
		return nil, fmt.Errorf("redact evidence: %w", err)
	case !json.Valid(clean):
		return nil, errors.New("redact evidence: what came out is not JSON")
	case len(clean) > maxDocument:
		return nil, fmt.Errorf("write evidence: it has %d bytes, at most are %d", len(clean), maxDocument)
	}
	if err := r.Verify(clean); err != nil {
		return nil, err
	}
	if found := redact.Tokens(clean); found != nil {
		return nil, fmt.Errorf("verify evidence: %s is in it", found[0])
	}
	return clean, nil
}

// encode writes JSON without escapes for HTML.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// bounded cuts what has no bound of its own, and leaves no list null.
func bounded(f Facts) Facts {
	f.Grounding.Repo = remoteOnly(f.Grounding.Repo)
	f.Command.Redacted = head(f.Command.Redacted, maxCommand)
	f.Command.Workdir = relative(f.Command.Workdir)
	f.Stop.SignalPath = head(f.Stop.SignalPath, maxLeft)
	f.Stop.Cleanup.Left = head(f.Stop.Cleanup.Left, maxLeft)
	if f.Stop.Failure != nil {
		f.Stop.Failure = &Failure{Code: f.Stop.Failure.Code, Message: pathless(f.Stop.Failure.Message)}
	}
	f.Loopback.Findings = head(f.Loopback.Findings, maxLeft)
	f.Egress.Allowed, f.Egress.Denied = rows(f.Egress.Allowed), rows(f.Egress.Denied)
	if f.AgentRuntime != nil {
		a := *f.AgentRuntime
		a.TicketCount = max(a.TicketCount, int64(len(a.Tickets)))
		a.Tickets = head(a.Tickets, MaxTickets)
		if a.Bridge.Refused == nil {
			a.Bridge.Refused = map[fault.Code]int64{}
		}
		f.AgentRuntime = &a
	}
	return f
}

func list[T any](all []T) []T { return append([]T{}, all...) }

func head[T any](all []T, most int) []T { return list(all[:min(len(all), most)]) }

// rows gives the times of a summary the form of all others.
func rows(all []egress.Row) []egress.Row {
	out := list(all)
	for i := range out {
		out[i].First, out[i].Last = out[i].First.UTC().Truncate(ms), out[i].Last.UTC().Truncate(ms)
	}
	return out
}

// remoteOnly leaves the address of another machine. A remote that is a directory of
// this one is a private path.
func remoteOnly(repo string) string {
	scheme, _, isURL := strings.Cut(repo, "://")
	host, _, isSCP := strings.Cut(repo, ":")
	if (isURL && !strings.EqualFold(scheme, "file")) || (!isURL && isSCP && !strings.Contains(host, "/")) {
		return repo
	}
	if repo == "" {
		return ""
	}
	return "<local>"
}

// absolute is a path from the root in a sentence, and what a URL asks for.
var (
	absolute = regexp.MustCompile("(^|[\\s\"'`(\\[=,:])/[^/\\s\"'`:,;)\\]][^\\s\"'`:,;)\\]]*")
	asked    = regexp.MustCompile("(://[^\\s\"'?]*)\\?[^\\s\"']*")
)

// pathless is a sentence without absolute paths and queries.
func pathless(text string) string {
	return absolute.ReplaceAllString(asked.ReplaceAllString(text, "$1"), "$1<absolute>")
}

// relative keeps a path that leads nowhere but into the lease.
func relative(path string) string {
	if strings.HasPrefix(path, "/") {
		return "<absolute>"
	}
	return path
}

var (
	plainID   = regexp.MustCompile(`^(stn|lse)_[a-z2-7]{26}$`)
	plainWord = regexp.MustCompile(`^[a-zA-Z_]{1,32}$`)
	plainHash = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// fallback is the minimal document: numbers, and words that can hold nothing.
func fallback(f Facts) []byte {
	keep := func(form *regexp.Regexp, s string) string {
		if form.MatchString(s) && utf8.ValidString(s) {
			return s
		}
		return ""
	}
	m := minimal{
		Schema: Schema, Version: Version,
		StationID: keep(plainID, f.StationID), Attempt: f.Attempt, LeaseID: keep(plainID, f.LeaseID), Times: f.Times,
		Exit:   Exit{Code: f.Process.Exit.Code, Signal: keep(plainWord, f.Process.Exit.Signal), Source: keep(plainWord, f.Process.Exit.Source)},
		Reason: keep(plainWord, f.Stop.Reason), Cleanup: keep(plainWord, f.Stop.Cleanup.Result),
		Events:          Events{Count: f.Events.Count, HeadHash: keep(plainHash, f.Events.HeadHash)},
		RedactionPolicy: redact.Policy, RedactionFailed: true,
	}
	data, err := encode(m)
	if err != nil { // a time beyond what RFC 3339 can say
		m.Times = Times{}
		data, _ = encode(m)
	}
	return data
}

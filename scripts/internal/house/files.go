package house

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// maxLines bounds a Go file: past it the file is two nouns.
const maxLines = 700

// A word that has no place in the repository. The patterns are put together
// from parts, or this file would break its own rule.
type word struct {
	pattern *regexp.Regexp
	why     string
	only    string // suffix of the files that it concerns, "" for all
}

var words = []word{
	{regexp.MustCompile(`(?i)registry\.` + `npmjs|proxy\.` + `golang\.org|sum\.` + `golang\.org|deb\.` + `debian\.org|registry\.` + `yarnpkg`), "names a package registry; packages are named by name and version", ""},
	{regexp.MustCompile(`(?:^|[\s"'=(` + "`" + `])/(?:work|ro` + `ot)/[a-z.]`), "holds a path of one machine", ""},
	{regexp.MustCompile(`\b(?:TO` + `DO|FIX` + `ME|XX` + `X)\b`), "marks unfinished work; finish it, or file an issue", ".go"},
	{regexp.MustCompile(`(?i)not (?:yet )?imple` + `mented|unimple` + `mented\b`), "speaks of unwritten code", ".go"},
}

// printing is what only main packages and commands may do.
var printing = regexp.MustCompile(`\bfmt\.Print(?:f|ln)?\(|\bos\.Stdout\b`)

// Files checks the text of each file. Packages of support, by import path, may
// print: they stand in for other programs in tests.
func Files(root string, files []string, support map[string]bool) ([]Finding, error) {
	var findings []Finding
	for _, name := range files {
		if skipped(name) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		if bytes.IndexByte(data, 0) >= 0 {
			continue
		}
		findings = append(findings, text(name, data, support)...)
	}
	return findings, nil
}

// skipped are files whose words are not ours: recordings, checksums, licences.
func skipped(name string) bool {
	return strings.Contains(name, "/testdata/") || strings.HasSuffix(name, ".sum") || filepath.Base(name) == "LICENSE"
}

func text(name string, data []byte, support map[string]bool) []Finding {
	var findings []Finding
	rows := strings.Split(string(data), "\n")
	isGo, isTest := strings.HasSuffix(name, ".go"), strings.HasSuffix(name, "_test.go")
	if isGo && len(rows) > maxLines {
		findings = append(findings, Finding{name, fmt.Sprintf("%d lines, more than %d: it is two nouns", len(rows), maxLines)})
	}
	silent := isGo && !isTest && filepath.Base(name) != "main.go" && !strings.HasPrefix(name, "scripts/") &&
		!support["drawbridge/"+filepath.ToSlash(filepath.Dir(name))]
	for i, row := range rows {
		place := fmt.Sprintf("%s:%d", name, i+1)
		for _, w := range words {
			if strings.HasSuffix(name, w.only) && w.pattern.MatchString(row) {
				findings = append(findings, Finding{place, w.why})
			}
		}
		if silent && printing.MatchString(row) {
			findings = append(findings, Finding{place, "prints; stdout belongs to the protocol, and is passed in from main"})
		}
	}
	return findings
}

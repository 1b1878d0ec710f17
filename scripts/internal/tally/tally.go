// Package tally turns the event stream of `go test -json` into what a person
// wants to read (one line a package, the output of what failed) and counts.
// It also says which tests were skipped and why: a skip that nobody notices is a
// test that nobody has.
package tally

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
)

// LongMark begins the reason of a skip that is right without -long.
const LongMark = "long: "

// Counts of tests and subtests. A package that fails outside of its tests
// counts as one failed test.
type Counts struct {
	Passed, Failed, Skipped int
}

// Add sums up.
func (c Counts) Add(o Counts) Counts {
	return Counts{c.Passed + o.Passed, c.Failed + o.Failed, c.Skipped + o.Skipped}
}

// String is the closing line.
func (c Counts) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", c.Passed, c.Failed, c.Skipped)
}

// event is one line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events
	Test       string
	Elapsed    float64
	Output     string
}

type key struct{ pkg, test string }

// Read prints the stream to w and counts it. With strict a skip without the
// mark of a long test is counted as failed.
func Read(r io.Reader, w io.Writer, strict bool) (Counts, error) {
	t := &reader{w: w, strict: strict, output: map[key][]string{}, failed: map[string]bool{}}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Action == "" {
			fmt.Fprintln(w, lines.Text()) // a complaint of the go command itself
			continue
		}
		t.take(e)
	}
	if err := lines.Err(); err != nil {
		return t.counts, fmt.Errorf("read the events of go test: %w", err)
	}
	sort.Strings(t.skips)
	for _, s := range t.skips {
		fmt.Fprintln(w, s)
	}
	return t.counts, nil
}

type reader struct {
	w      io.Writer
	strict bool
	counts Counts
	output map[key][]string
	failed map[string]bool // packages with a failed test
	skips  []string
}

func (t *reader) take(e event) {
	k := key{e.Package, e.Test}
	switch e.Action {
	case "build-output":
		fmt.Fprint(t.w, e.Output)
	case "output":
		t.output[k] = append(t.output[k], e.Output)
	case "pass":
		if e.Test != "" {
			t.counts.Passed++
		} else {
			fmt.Fprintf(t.w, "ok  \t%s\t%.3fs\n", e.Package, e.Elapsed)
		}
		delete(t.output, k)
	case "skip":
		t.skip(k)
		delete(t.output, k)
	case "fail":
		t.fail(k, e.Elapsed)
		delete(t.output, k)
	}
}

func (t *reader) fail(k key, elapsed float64) {
	switch {
	case k.test != "":
		t.counts.Failed++
		t.failed[k.pkg] = true
		t.print(k)
	default:
		if !t.failed[k.pkg] {
			t.counts.Failed++ // did not build, TestMain, a leak, a panic
		}
		// A test that was running when the process ended has no verdict.
		for other := range t.output {
			if other.pkg == k.pkg && other.test != "" {
				t.print(other)
			}
		}
		t.print(k)
		fmt.Fprintf(t.w, "FAIL\t%s\t%.3fs\n", k.pkg, elapsed)
	}
}

func (t *reader) skip(k key) {
	if k.test == "" {
		return // a package without tests
	}
	reason := "no reason given"
	for _, line := range t.output[k] {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			reason = line
			// "file_test.go:12: reason"
			if _, after, ok := strings.Cut(line, ".go:"); ok {
				if _, text, ok := strings.Cut(after, ": "); ok {
					reason = text
				}
			}
			break
		}
	}
	if t.strict && !strings.HasPrefix(reason, LongMark) {
		t.counts.Failed++
		t.failed[k.pkg] = true
		t.skips = append(t.skips, fmt.Sprintf("skipped, which is a failure here: %s %s: %s", k.pkg, k.test, reason))
		return
	}
	t.counts.Skipped++
	t.skips = append(t.skips, fmt.Sprintf("skipped: %s %s: %s", k.pkg, k.test, reason))
}

func (t *reader) print(k key) {
	for _, line := range t.output[k] {
		fmt.Fprint(t.w, line)
	}
}

package tally_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/scripts/internal/tally"
)

const stream = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestGood"}
{"Action":"output","Package":"p","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestBad","Output":"=== RUN   TestBad\n"}
{"Action":"output","Package":"p","Test":"TestBad","Output":"    x_test.go:3: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestBad","Elapsed":0.1}
{"Action":"output","Package":"p","Test":"TestSkip","Output":"    x_test.go:9: tmux: is missing\n"}
{"Action":"skip","Package":"p","Test":"TestSkip","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestLong","Output":"    x_test.go:9: long: fifty panes\n"}
{"Action":"skip","Package":"p","Test":"TestLong","Elapsed":0}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"fail","Package":"p","Elapsed":1.5}
{"Action":"pass","Package":"q","Elapsed":0.25}
{"Action":"skip","Package":"no-tests","Elapsed":0}
`

func TestRead(t *testing.T) {
	const printed = "=== RUN   TestBad\n    x_test.go:3: wrong\nFAIL\nFAIL\tp\t1.500s\nok  \tq\t0.250s\n"
	for _, tc := range []struct {
		name   string
		strict bool
		want   tally.Counts
		out    string
	}{
		{"at a desk", false, tally.Counts{Passed: 1, Failed: 1, Skipped: 2},
			printed + "skipped: p TestLong: long: fifty panes\nskipped: p TestSkip: tmux: is missing\n"},
		{"in CI", true, tally.Counts{Passed: 1, Failed: 2, Skipped: 1},
			printed + "skipped, which is a failure here: p TestSkip: tmux: is missing\nskipped: p TestLong: long: fifty panes\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			got, err := tally.Read(strings.NewReader(stream), &out, tc.strict)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("counts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.out, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRead_FailsOutsideOfTests(t *testing.T) {
	for _, tc := range []struct{ name, stream, want string }{
		{"does not build",
			`{"ImportPath":"p","Action":"build-output","Output":"p.go:1: syntax error\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p","Elapsed":0}`,
			"p.go:1: syntax error\nFAIL\tp\t0.000s\n"},
		{"panics in the middle of a test",
			`{"Action":"output","Package":"p","Test":"TestX","Output":"panic: boom\n"}
{"Action":"fail","Package":"p","Elapsed":0}`,
			"panic: boom\nFAIL\tp\t0.000s\n"},
		{"the go command complains", "go: no such module\n", "go: no such module\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			got, err := tally.Read(strings.NewReader(tc.stream), &out, true)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("output (-want +got):\n%s", diff)
			}
			if want := strings.Count(tc.want, "FAIL\t"); got.Failed != want {
				t.Errorf("%d failed, want %d", got.Failed, want)
			}
		})
	}
}

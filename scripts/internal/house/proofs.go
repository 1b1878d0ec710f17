package house

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ProofsPage is the page of what proves what, relative to the root.
const ProofsPage = "docs/proofs.md"

// A chapter is the list of lines of one specification that need a proof.
type chapter struct {
	spec    string
	section int
	lines   []string // "1", "2", … or, by groups, "M1", "M2", …
	first   []int    // the first set (★): no release without a test; none: all are
}

// upTo gives the lines 1 to last, each behind the letter of its group.
func upTo(letter string, last int) []string {
	out := make([]string, last)
	for i := range out {
		out[i] = letter + strconv.Itoa(i+1)
	}
	return out
}

// groups gives the lines of several groups, each a letter and its last number.
func groups(all string) (out []string) {
	for _, g := range strings.Fields(all) {
		last, _ := strconv.Atoi(g[1:])
		out = append(out, upTo(g[:1], last)...)
	}
	return out
}

var chapters = []chapter{
	{
		"core", 19, upTo("", 63),
		[]int{3, 4, 5, 6, 11, 14, 15, 16, 17, 21, 23, 24, 26, 27, 31, 32, 38, 39, 40, 42, 43, 44, 46, 50, 53, 56, 57, 58, 59, 60},
	},
	{
		"tools", 11, upTo("", 40),
		[]int{1, 2, 5, 6, 8, 10, 11, 12, 13, 15, 18, 21, 24, 25, 27, 30, 33, 36, 39},
	},
	{
		"host-profile", 15, upTo("", 38),
		[]int{1, 3, 4, 5, 6, 11, 13, 15, 16, 19, 24, 25, 26, 27, 28, 30, 31, 33, 34},
	},
	{"broker", 18, upTo("", 34), nil},
	{"worker", 17, upTo("", 35), nil},
	{"kit", 17, upTo("", 44), nil},
	{"station", 17, groups("M15 G3 L15 B6 K7 E13 T17 P13 H8 S8 X10 V11 D8 C7 Z7"), nil},
}

// A proof is one test that says it proves a line.
type proof struct{ dir, test string }

var (
	tag    = regexp.MustCompile(`\b(core|tools|host-profile|broker|worker|kit|station) (\d+\.[A-Z]?\d+(?:(?:,|,? and) \d+\.[A-Z]?\d+)*)`)
	number = regexp.MustCompile(`\d+\.[A-Z]?\d+`)
	broken = regexp.MustCompile(`\b(?:core|tools|host-profile|broker|worker|kit|station) \d+(?:[^.\d]|\.(?:[^\dA-Z]|$)|$)`)
)

// Proofs collects which test says that it proves which line, renders the page,
// and finds lines without one.
func Proofs(root string, files []string) (page []byte, findings []Finding, err error) {
	proofs := map[string][]proof{}
	for _, name := range files {
		if !strings.HasSuffix(name, "_test.go") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", name, err)
		}
		if !bytes.Contains(data, []byte("Proves ")) {
			continue
		}
		found, err := read(name, data, proofs)
		if err != nil {
			return nil, nil, err
		}
		findings = append(findings, found...)
	}
	var b bytes.Buffer
	b.WriteString(`# What proves what

<!-- Written by scripts/cmd/house from the comments of the tests; tag a test with "Proves core 19.4" instead. -->

The specifications end with numbered lines that a test must prove. This page says which test does: the
number, and the tests by folder. ★ marks the first set. The journeys in ` + "`scripts/e2e`" + ` use real agents.
`)
	for _, c := range chapters {
		fmt.Fprintf(&b, "\n## %s §%d\n\n| Line | Proven by |\n| --- | --- |\n", c.spec, c.section)
		for i, line := range c.lines {
			id := fmt.Sprintf("%s %d.%s", c.spec, c.section, line)
			if len(proofs[id]) == 0 {
				findings = append(findings, Finding{ProofsPage, "no test proves " + id})
			}
			star := ""
			if slices.Contains(c.first, i+1) {
				star = " ★"
			}
			fmt.Fprintf(&b, "| %d.%s%s | %s |\n", c.section, line, star, cell(proofs[id]))
			delete(proofs, id)
		}
	}
	for id, all := range proofs {
		if !slices.ContainsFunc(chapters, func(c chapter) bool { return strings.HasPrefix(id, c.spec+" ") }) {
			continue // of a specification whose lines are not asked for yet
		}
		findings = append(findings, Finding{all[0].dir, all[0].test + " proves " + id + ", which is no line of a specification"})
	}
	return b.Bytes(), findings, nil
}

// read adds the tags of one file to proofs.
func read(name string, data []byte, proofs map[string][]proof) ([]Finding, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, data, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("read the tags: %w", err)
	}
	var findings []Finding
	for _, group := range file.Comments {
		_, claim, ok := strings.Cut(strings.Join(strings.Fields(group.Text()), " "), "Proves ")
		if !ok {
			continue
		}
		test := testAt(file, group.Pos())
		matches := tag.FindAllStringSubmatch(claim, -1)
		if broken.MatchString(claim) || len(matches) > 0 && test == "" {
			place := fmt.Sprintf("%s:%d", name, fset.Position(group.Pos()).Line)
			findings = append(findings, Finding{place, `"Proves" without the number of a line, as in "core 19.4", or outside a test`})
			continue
		}
		p := proof{filepath.ToSlash(filepath.Dir(name)), test}
		for _, m := range matches {
			for _, n := range number.FindAllString(m[2], -1) {
				if id := m[1] + " " + n; !slices.Contains(proofs[id], p) {
					proofs[id] = append(proofs[id], p)
				}
			}
		}
	}
	return findings, nil
}

// testAt names the test that a comment documents or stands in.
func testAt(file *ast.File, at token.Pos) string {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || !(strings.HasPrefix(f.Name.Name, "Test") || strings.HasPrefix(f.Name.Name, "Fuzz")) {
			continue
		}
		begin := f.Pos()
		if f.Doc != nil {
			begin = f.Doc.Pos()
		}
		if begin <= at && at <= f.End() {
			return f.Name.Name
		}
	}
	return ""
}

// cell renders the tests of a line, folder by folder.
func cell(all []proof) string {
	slices.SortFunc(all, func(a, b proof) int {
		return strings.Compare(a.dir+strconv.Quote(a.test), b.dir+strconv.Quote(b.test))
	})
	var out []string
	for i, p := range all {
		if i > 0 && all[i-1].dir == p.dir {
			out[len(out)-1] += ", `" + p.test + "`"
			continue
		}
		out = append(out, p.dir+" `"+p.test+"`")
	}
	return strings.Join(out, "; ")
}

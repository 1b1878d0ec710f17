package store_test

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The package comment lists every crash point there is.
func TestCrashPoints_AreListed(t *testing.T) {
	src, err := os.ReadFile("store.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(src), "behind the commit they name:")
	text, _, _ = strings.Cut(text, ".\n")
	listed := regexp.MustCompile(`[a-z]+[a-z_]*`).FindAllString(text, -1)
	var used []string
	eachFile(t, func(name string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			at := -1 // place of the name among the arguments
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				switch sel.Sel.Name {
				case "At":
					at = 0
				case "stage", "moveInteraction": // pass their name on
					at = 3
				}
			}
			if at < 0 || len(call.Args) <= at {
				return true
			}
			if lit, ok := call.Args[at].(*ast.BasicLit); ok {
				point, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Fatal(err)
				}
				used = append(used, point)
			}
			return true
		})
	})
	slices.Sort(listed)
	slices.Sort(used)
	if diff := cmp.Diff(listed, used); diff != "" {
		t.Error(diff)
	}
}

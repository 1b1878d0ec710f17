package fault_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/fault"
	"drawbridge/shared/testkit"
)

// The list of codes with their exit statuses. A line that disappears or changes
// breaks users, who match on codes; a new one is added with -update.
func TestCodes_Golden(t *testing.T) {
	var b bytes.Buffer
	for _, e := range fault.Entries() {
		fmt.Fprintf(&b, "%s %d\n", e.Code, e.Exit)
	}
	testkit.Golden(t, "codes.txt", b.Bytes())
}

// Every constant of type Code is registered: docs/errors.md is made of the
// registry, and an unregistered code would exit 70.
func TestCodes_Registered(t *testing.T) {
	constants := 0
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if typ, ok := spec.Type.(*ast.Ident); !ok || typ.Name != "Code" {
				return true
			}
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			constants++
			if !fault.Known(fault.Code(value)) {
				t.Errorf("%s (%s) is not registered", spec.Names[0].Name, value)
			}
			return true
		})
	}
	if constants == 0 || constants != len(fault.Entries()) {
		t.Errorf("%d constants, %d registered codes", constants, len(fault.Entries()))
	}
}

func TestCodes_WellFormed(t *testing.T) {
	form := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	exits := map[int]bool{1: true, 2: true, 69: true, 70: true, 73: true, 75: true}
	last := fault.Code("")
	for _, e := range fault.Entries() {
		if !form.MatchString(string(e.Code)) || !exits[e.Exit] {
			t.Errorf("%s exits %d", e.Code, e.Exit)
		}
		if !strings.HasSuffix(e.Text, ".") || strings.ContainsAny(e.Text, "\n|") {
			t.Errorf("%s: the text is not a sentence of a table: %q", e.Code, e.Text)
		}
		if e.Code <= last {
			t.Errorf("%s comes after %s", e.Code, last)
		}
		last = e.Code
	}
	if fault.Known("no_such_code") || fault.Known("") {
		t.Error("an unknown code is known")
	}
}

func TestError(t *testing.T) {
	cause := errors.New("cause")
	err := fault.New(fault.StoreBusy, "write %s: %w", "row", cause).WithHint("try %s", "again").With("turn_id", "t1")
	if got, want := err.Error(), "write row: cause"; got != want {
		t.Errorf("Error = %q, want %q", got, want)
	}
	if !errors.Is(err, cause) || err.Hint != "try again" || err.Details["turn_id"] != "t1" {
		t.Errorf("%+v", err)
	}
	wrapped := fmt.Errorf("outer: %w", err)
	if got, ok := fault.As(wrapped); !ok || got != err {
		t.Errorf("As = %v, %v", got, ok)
	}
	if plain := fault.New(fault.Internal, "no cause"); plain.Err != nil || errors.Unwrap(plain) != nil {
		t.Errorf("%+v", plain)
	}
}

func TestCodeOf(t *testing.T) {
	busy := fault.New(fault.StoreBusy, "busy")
	for _, tc := range []struct {
		name string
		err  error
		code fault.Code
		exit int
	}{
		{"nil", nil, "", 0},
		{"plain", errors.New("x"), fault.Internal, 70},
		{"fault", busy, fault.StoreBusy, 75},
		{"wrapped", fmt.Errorf("a: %w", fmt.Errorf("b: %w", busy)), fault.StoreBusy, 75},
		{"outermost wins", fault.New(fault.LeaseLost, "lost: %w", busy), fault.LeaseLost, 75},
		{"joined", errors.Join(errors.New("x"), busy), fault.StoreBusy, 75},
		{"usage", fault.New(fault.Usage, "u"), fault.Usage, 2},
		{"unregistered", fault.New("made_up", "m"), "made_up", 70},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := fault.CodeOf(tc.err); got != tc.code {
				t.Errorf("CodeOf = %q, want %q", got, tc.code)
			}
			if got := fault.ExitCode(tc.err); got != tc.exit {
				t.Errorf("ExitCode = %d, want %d", got, tc.exit)
			}
			if got := fault.Is(tc.err, tc.code); got != (tc.err != nil) {
				t.Errorf("Is = %v", got)
			}
		})
	}
}

// Repeating is never called safe once input may have begun, in whatever order
// the two facts are stated.
func TestError_SafeAndInput(t *testing.T) {
	busy := func() *fault.Error { return fault.New(fault.TerminalBusy, "x") }
	got := []bool{
		busy().Retry,
		busy().Safe().Retry,
		busy().WithInput(fault.InputNone).Safe().Retry,
		busy().Safe().WithInput(fault.InputNone).Retry,
		busy().Safe().WithInput(fault.InputPossible).Retry,
		busy().WithInput(fault.InputPossible).Safe().Retry,
		busy().WithInput(fault.InputSent).Safe().Retry,
	}
	if diff := cmp.Diff([]bool{false, true, true, true, false, false, false}, got); diff != "" {
		t.Errorf("retry (-want +got):\n%s", diff)
	}
}

package store_test

import (
	"database/sql"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"drawbridge/shared/store"
)

// scans are the full passes that are meant: tables that hold at most a row for
// each pane, list parameters, and partial indexes of rows that are under way.
var scans = []string{
	"json_each VIRTUAL TABLE INDEX 1:",
	"terminal_fences", "f",
	"USING INDEX dispatch_open",
	"USING COVERING INDEX dispatch_open",
	"USING INDEX binding_live_session",
	"USING INDEX binding_live_process",
	"USING INDEX transition_open",
	"USING INDEX callback_claimed",
	"USING COVERING INDEX approval_once",
	"USING INDEX approval_once",
	"USING INDEX interaction_open",
	"USING COVERING INDEX interaction_open",
	"USING INDEX worker_run_open",
	"USING INDEX kit_run_open",
	"USING INDEX one_live_attempt",
	"USING INDEX workspace_lease_open",
	"USING INDEX broker_grant_open",
	"USING INDEX broker_endpoint_live",
	"USING COVERING INDEX broker_endpoint_live",
	"USING INDEX broker_request_open",
	"USING COVERING INDEX broker_request_open",
	"meta",
}

// wholeTable are statements that have to read everything.
var wholeTable = regexp.MustCompile(`(?s)^SELECT route_profile_id, status, lane, count`)

// Every statement there is must find its rows by an index: a claim that read the
// table took 801 ms at 20,000 rows. Programs never run ANALYZE, so the planner
// knows no more here than there.
func TestPlans_NoScanOfABigTable(t *testing.T) {
	w := newWorld(t)
	db := w.raw()
	params := regexp.MustCompile(`:[a-z_]+`)
	for _, text := range store.Statements() {
		var args []any
		for _, name := range slices.Compact(slices.Sorted(slices.Values(params.FindAllString(text, -1)))) {
			args = append(args, sql.Named(name[1:], "1"))
		}
		rows, err := db.Query("EXPLAIN QUERY PLAN "+text, args...)
		if err != nil {
			t.Errorf("explain: %v\n%s", err, text)
			continue
		}
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(detail, "SCAN ") || wholeTable.MatchString(text) || meantScan(detail) {
				continue
			}
			t.Errorf("%s\nin\n%s", detail, text)
		}
		rows.Close()
	}
	t.Logf("%d statements", len(store.Statements()))
}

var likeParameter = regexp.MustCompile(`:[a-z_]`)

// Parameters are found by their look alone, so no text in a statement may look like one.
func TestPlans_NoParameterInAText(t *testing.T) {
	for _, text := range store.Statements() {
		for i, part := range strings.Split(text, "'") {
			if i%2 == 1 && likeParameter.MatchString(part) {
				t.Errorf("text %q in\n%s", part, text)
			}
		}
	}
}

func meantScan(detail string) bool {
	rest := strings.TrimPrefix(detail, "SCAN ")
	if strings.HasPrefix(rest, "CONSTANT ROW") || strings.HasPrefix(rest, "(subquery") || strings.HasPrefix(rest, "(join") {
		return true
	}
	for _, s := range scans {
		if rest == s || strings.HasSuffix(rest, " "+s) || strings.HasPrefix(rest, s) && strings.HasSuffix(s, ":") {
			return true
		}
	}
	return false
}

// Statements exist only by define, in a package variable: no other text reaches
// SQLite but BEGIN, COMMIT, ROLLBACK, PRAGMA and what opens and migrates.
func TestPlans_EveryStatementIsDefined(t *testing.T) {
	allowed := map[string][]string{
		"tx.go":       {"BEGIN IMMEDIATE", "BEGIN", "COMMIT", "ROLLBACK"},
		"doorbell.go": {"PRAGMA data_version"},
		"open.go":     {"PRAGMA journal_size_limit = "},
	}
	eachFile(t, func(name string, file *ast.File) {
		if name == "migrate.go" {
			return // runs before there is a schema
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Exec", "ExecContext", "Query", "QueryContext", "QueryRow", "QueryRowContext", "Prepare", "PrepareContext"}, sel.Sel.Name) {
				return true
			}
			ok = false
			for _, arg := range call.Args {
				ast.Inspect(arg, func(n ast.Node) bool {
					switch x := n.(type) {
					case *ast.BasicLit:
						if x.Kind == token.STRING {
							text, _ := strconv.Unquote(x.Value)
							ok = ok || slices.Contains(allowed[name], text)
						}
					case *ast.SelectorExpr:
						ok = ok || x.Sel.Name == "sql" // st.sql of a defined statement
					}
					return true
				})
			}
			if !ok {
				t.Errorf("%s: %s runs a statement that was not defined", name, sel.Sel.Name)
			}
			return true
		})
	})
}

func eachFile(t *testing.T, visit func(name string, file *ast.File)) {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, src, 0)
		if err != nil {
			t.Fatal(err)
		}
		visit(name, file)
	}
}

// A claim walks the queue in order and stops at the first row that it may have,
// so a long queue costs no more than a short one.
func TestPlans_ClaimReadsTheQueueInOrder(t *testing.T) {
	w := newWorld(t)
	db := w.raw()
	found := false
	for _, text := range store.Statements() {
		if !strings.Contains(text, "NOT BETWEEN :now + 1") || !strings.Contains(text, "c.route_controller_session_id = :session ||") {
			continue
		}
		found = true
		var plan []string
		rows, err := db.Query("EXPLAIN QUERY PLAN "+text, named("now", "profile", "session", "clock_back")...)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		all := strings.Join(plan, "\n")
		if !strings.Contains(all, "INDEX callback_queue") || !strings.Contains(all, "INDEX callback_open_watch (watch_id=? AND rowid<?)") ||
			strings.Contains(all, "TEMP B-TREE") {
			t.Errorf("got plan\n%s\nwant the order of callback_queue and no sorting", all)
		}
	}
	if !found {
		t.Fatal("no claim statement")
	}
}

func named(names ...string) (args []any) {
	for _, n := range names {
		args = append(args, sql.Named(n, 1))
	}
	return args
}

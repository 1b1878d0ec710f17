package store_test

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"drawbridge/shared/store"
)

var update = flag.Bool("update", false, "rewrite golden files")

// digests holds the shipped migrations. A file that has shipped is never edited:
// add the next one instead. Until the first release the entry follows the file.
const digestsFile = "testdata/migrations.sha256"

func TestMigrations_ShippedFilesAreNotEdited(t *testing.T) {
	var got strings.Builder
	for _, text := range store.Migrations() {
		sum := sha256.Sum256([]byte(text))
		got.WriteString(hex.EncodeToString(sum[:]) + "\n")
	}
	golden(t, digestsFile, got.String())
}

// schema.sql is what a newcomer reads; its diff is reviewed.
func TestMigrations_SchemaIsAsInTheGoldenFile(t *testing.T) {
	w := newWorld(t)
	golden(t, "schema.sql", schema(t, w.raw()))
}

func schema(t *testing.T, db *sql.DB) string {
	t.Helper()
	rows, err := db.Query(`SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out strings.Builder
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		out.WriteString(text + ";\n\n")
	}
	return out.String()
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-update rewrites it):\n%s", name, diff)
	}
}

// Every JSON column is checked, every table strict, every state closed.
func TestMigrations_Conventions(t *testing.T) {
	w := newWorld(t)
	db := w.raw()
	text := schema(t, db)
	for _, table := range regexp.MustCompile(`(?s)CREATE TABLE (\w+) \(.*?\n\)([^;]*);`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(table[2], "STRICT") {
			t.Errorf("table %s is not strict", table[1])
		}
		for _, column := range regexp.MustCompile(`\n  (\w+_json) `).FindAllStringSubmatch(table[0], -1) {
			if !strings.Contains(table[0], "json_valid("+column[1]+")") {
				t.Errorf("%s.%s is not checked", table[1], column[1])
			}
		}
		for _, column := range regexp.MustCompile(`\n  (status|state) +TEXT[^\n]*`).FindAllStringSubmatch(table[0], -1) {
			if !strings.Contains(column[0], "CHECK") {
				t.Errorf("%s.%s is open", table[1], column[1])
			}
		}
	}
	var broken int
	if err := db.QueryRow(`SELECT count(*) FROM pragma_integrity_check WHERE integrity_check <> 'ok'`).Scan(&broken); err != nil || broken != 0 {
		t.Error(broken, err)
	}
}

// Many programs may make the Store at the same time.
func TestMigrations_SimultaneousFirstStarts(t *testing.T) {
	dir := fastDir(t) + "/s"
	procs := make([]*proc, 8)
	for i := range procs {
		procs[i] = start(t, "open", dir)
		procs[i].want("ready")
	}
	for _, p := range procs {
		p.tell()
	}
	ids := map[string]bool{}
	for _, p := range procs {
		ids[p.line()] = true
		p.done()
	}
	if len(ids) != 1 {
		t.Errorf("%d different Stores: %v", len(ids), ids)
	}
}

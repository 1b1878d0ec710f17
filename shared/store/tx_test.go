package store_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mattn/go-sqlite3"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

// Proves core 19.9: nothing but SQL happens inside a write transaction. A move gets
// a tx, which reaches nothing outside the database; files of moves import nothing
// that could; and no function handed to transact touches the Store's own IO.
func TestTx_NoIO(t *testing.T) {
	// only these files may reach the world: they run outside of transactions
	mayIO := []string{"open.go", "malloc.go", "doorbell.go", "migrate.go", "keeper.go"}
	pure := []string{"bytes", "cmp", "context", "crypto/sha256", "encoding/base32", "encoding/hex", "encoding/json", "errors", "maps", "math/rand/v2",
		"regexp", "slices", "strconv", "strings", "sync", "sync/atomic", "time", "database/sql", "github.com/mattn/go-sqlite3",
		"drawbridge/shared/fault", "drawbridge/shared/crashpoint", "drawbridge/shared/strictjson"}
	inside := []string{"transact", "view", "onStation", "changeAttempt", "moveWorkspace"} // run a function in a transaction
	world := []string{"opt", "rdb", "wdb", "bell", "path"}                                // fields of Store that lead out of a transaction
	callers := 0
	eachFile(t, func(name string, file *ast.File) {
		if !slices.Contains(mayIO, name) {
			for _, imp := range file.Imports {
				if path := strings.Trim(imp.Path.Value, `"`); !slices.Contains(pure, path) {
					t.Errorf("%s imports %s", name, path)
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(inside, sel.Sel.Name) {
				return true
			}
			body, ok := call.Args[len(call.Args)-1].(*ast.FuncLit)
			if !ok {
				t.Errorf("%s: transact gets something that is not seen here", name)
				return true
			}
			callers++
			ast.Inspect(body, func(n ast.Node) bool {
				switch x := n.(type) {
				case *ast.SelectorExpr:
					id, ok := x.X.(*ast.Ident)
					if ok && id.Name == "s" && slices.Contains(world, x.Sel.Name) && !(x.Sel.Name == "opt" && name == "lease.go") {
						t.Errorf("%s: s.%s inside a transaction", name, x.Sel.Name)
					}
					if ok && (id.Name == "crashpoint" || id.Name == "os" || id.Name == "exec") {
						t.Errorf("%s: %s.%s inside a transaction", name, id.Name, x.Sel.Name)
					}
				case *ast.GoStmt, *ast.SendStmt, *ast.SelectStmt:
					t.Errorf("%s: concurrency inside a transaction", name)
				}
				return true
			})
			return true
		})
		// a tx has no field that leads out
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "tx" {
				return true
			}
			for _, f := range spec.Type.(*ast.StructType).Fields.List {
				for _, id := range f.Names {
					if !slices.Contains([]string{"conn", "now", "boot", "bootID", "holder", "newID", "silent"}, id.Name) {
						t.Errorf("tx has a field %s", id.Name)
					}
				}
			}
			return true
		})
	})
	if callers < 30 {
		t.Errorf("only %d moves found", callers)
	}
}

// A commit that fails leaves nothing behind, whatever the move.
func TestTx_FailedCommitLeavesNothing(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").accept("t1")
	m := f.monitor()
	before := dump(t, w.raw())
	store.FailCommit(w.Store, errors.New("disk full"))
	for move, err := range everyMonitorMove(w.Store, m) {
		if move == "check" { // writes nothing
			continue
		}
		if got := fault.CodeOf(err); got != fault.StoreUnavailable {
			t.Errorf("%s gives %q (%v)", move, got, err)
		}
	}
	store.FailCommit(w.Store, nil)
	if dump(t, w.raw()) != before {
		t.Error("the Store changed")
	}
	if _, err := w.TouchActivity(ctx, m, store.Activity{At: w.Now() + 1}); err != nil { // the connection is usable
		t.Error(err)
	}
}

// A full disk is told as one, with what to do; what was there stays, and there is
// more as soon as there is room.
func TestTx_FullDisk(t *testing.T) {
	w := newWorld(t)
	l, err := w.Acquire(ctx, store.StationdLease("here"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	add := func(i int) error {
		_, err := w.AddPrincipal(ctx, l, store.NewPrincipal{Org: store.LocalOrg, Name: fmt.Sprintf("%s-%d", strings.Repeat("n", 40), i), PeerUID: int64(i)})
		return err
	}
	free, added := store.FullDisk(w.Store), 0
	for err == nil && added < 1000 {
		if err = add(added); err == nil {
			added++
		}
	}
	f, ok := fault.As(err)
	if !ok || f.Code != fault.StoreUnavailable || f.Message != "write to the Store: database or disk is full" ||
		!strings.Contains(f.Hint, "free space where the Store is (-store-dir)") {
		t.Fatalf("after %d: %+v", added, f)
	}
	if all, err := w.Principals(ctx, store.LocalOrg); err != nil || len(all) != added {
		t.Errorf("%d of %d are left: %v", len(all), added, err)
	}
	free()
	if err := add(added); err != nil {
		t.Error(err)
	}
}

// What SQLite cannot mend has a hint; what is no error of the disk has none.
func TestTx_Hints(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		err  error
		hint string
	}{
		{sqlite3.Error{Code: sqlite3.ErrFull}, "free space"},
		{sqlite3.Error{Code: sqlite3.ErrIoErr}, "kernel's log"},
		{sqlite3.Error{Code: sqlite3.ErrReadonly}, "mounted read-only"},
		{sqlite3.Error{Code: sqlite3.ErrCantOpen}, "cannot be opened"},
		{sqlite3.Error{Code: sqlite3.ErrNomem}, ""},
		{errors.New("something else"), ""},
	} {
		store.FailCommit(w.Store, tc.err)
		_, err := w.Acquire(ctx, "x", time.Hour)
		f, ok := fault.As(err)
		if !ok || f.Code != fault.StoreUnavailable || !strings.Contains(f.Hint, tc.hint) || (tc.hint == "") != (f.Hint == "") {
			t.Errorf("%v: got %+v", tc.err, f)
		}
	}
}

// A panic inside a move gives the write lock back.
func TestTx_Panic(t *testing.T) {
	w := newWorld(t)
	f := w.prepare("1", "a", "t1").enter()
	before := dump(t, w.raw())
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_, _ = w.AcceptDispatch(ctx, f.term, store.Acceptance{MessageID: "msg-1", NativeThreadID: "t1", Evidence: []byte(`{}`),
			Check: func(store.Dispatch, []byte) error { panic("bug") }})
	}()
	if dump(t, w.raw()) != before {
		t.Error("the Store changed")
	}
	w.lease("x")
}

func TestTx_BusyEndsAfterTheWait(t *testing.T) {
	if testing.Short() {
		t.Skip("long: waits 10 s")
	}
	w := newWorld(t)
	db := w.raw()
	conn, err := db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	lock := func(statement string) {
		t.Helper()
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	lock("BEGIN IMMEDIATE")
	cut, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := w.MintOffer(cut, offer("a", "t", `{}`, "f")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	began := time.Now()
	err = w.MintOffer(ctx, offer("a", "t", `{}`, "f"))
	wantCode(t, err, fault.StoreBusy)
	if e, _ := fault.As(err); !e.Retry {
		t.Error("store_busy is not marked as safe")
	}
	if d := time.Since(began); d < store.WriteWait-time.Second || d > store.WriteWait+3*time.Second {
		t.Errorf("waited %s", d)
	}
	lock("ROLLBACK")
	if err := w.MintOffer(ctx, offer("a", "t", `{}`, "f")); err != nil {
		t.Error(err)
	}
}

// Readers go on while somebody writes.
func TestTx_ReadersDoNotWait(t *testing.T) {
	w := newWorld(t)
	w.prepare("1", "a", "t1")
	conn, err := w.raw().Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if turn, err := w.Turn(ctx, "turn-1"); err != nil || turn.ID != "turn-1" {
		t.Error(turn, err)
	}
	if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Readers(w.Store).Exec(`DELETE FROM offers`); err == nil {
		t.Error("a reading connection writes")
	}
}

// Each parameter gets the last value of its name, at whatever place, and none is
// forgotten.
func TestStatement_Values(t *testing.T) {
	got, err := store.Values("SELECT :b, :a, :b", "a", 1, "c", 2, "b", []byte(`{}`), "a", 3)
	if err != nil || !slices.Equal(got, []any{"{}", 3}) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := store.Values("SELECT :a", "b", 1); !fault.Is(err, fault.Internal) {
		t.Errorf("a missing value: %v", err)
	}
}

package store_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"drawbridge/shared/fault"
	"drawbridge/shared/store"
)

func open(dir string) (*store.Store, error) {
	return store.Open(context.Background(), store.Options{Dir: dir, Program: "test"})
}

func mustOpen(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// snapshot is every name, mode and content below dir.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, _ := os.ReadFile(path)
		fmt.Fprintf(&out, "%s %s %x\n", path, info.Mode(), data)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Proves core 19.1: what is refused is refused before any write.
func TestOpen_UnsafeDirectoryIsRefusedUntouched(t *testing.T) {
	write := func(t *testing.T, path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(t *testing.T, target, path string) {
		t.Helper()
		if err := os.Symlink(target, path); err != nil {
			t.Fatal(err)
		}
	}
	foreign := func(t *testing.T, path string) {
		t.Helper()
		db, err := sql.Open("sqlite3", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(`CREATE TABLE theirs(x); INSERT INTO theirs VALUES (1)`); err != nil {
			t.Fatal(err)
		}
	}
	for name, prepare := range map[string]func(t *testing.T, root string) (dir string){
		"others can read a foreign database": func(t *testing.T, root string) string {
			foreign(t, root+"/store.db")
			if err := os.Chmod(root+"/store.db", 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(root, 0o755); err != nil {
				t.Fatal(err)
			}
			return root
		},
		"symlink to an empty directory": func(t *testing.T, root string) string {
			link(t, t.TempDir(), filepath.Join(root, "s"))
			return filepath.Join(root, "s")
		},
		"a file": func(t *testing.T, root string) string {
			write(t, filepath.Join(root, "s"), "x")
			return filepath.Join(root, "s")
		},
		"foreign file": func(t *testing.T, root string) string { write(t, root+"/notes.txt", "x"); return root },
		"foreign file beside ours": func(t *testing.T, root string) string {
			write(t, root+"/store.db", "")
			write(t, root+"/x", "x")
			return root
		},
		"store.db is no database": func(t *testing.T, root string) string {
			write(t, root+"/store.db", strings.Repeat("hello ", 1000))
			return root
		},
		"store.db of another program": func(t *testing.T, root string) string { foreign(t, root+"/store.db"); return root },
		"store.db is a directory": func(t *testing.T, root string) string {
			if err := os.Mkdir(root+"/store.db", 0o700); err != nil {
				t.Fatal(err)
			}
			return root
		},
		"log is a file":       func(t *testing.T, root string) string { write(t, root+"/log", ""); return root },
		"symlink at store.db": func(t *testing.T, root string) string { link(t, "/tmp/nowhere", root+"/store.db"); return root },
		"symlink at -wal":     func(t *testing.T, root string) string { link(t, "/tmp/nowhere", root+"/store.db-wal"); return root },
		"symlink at -shm":     func(t *testing.T, root string) string { link(t, "/tmp/nowhere", root+"/store.db-shm"); return root },
		"symlink at bell":     func(t *testing.T, root string) string { link(t, "/tmp/nowhere", root+"/bell"); return root },
		"symlink at log":      func(t *testing.T, root string) string { link(t, "/tmp", root+"/log"); return root },
		"relative path":       func(t *testing.T, root string) string { return "store" },
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			if err := os.Chmod(root, 0o700); err != nil {
				t.Fatal(err)
			}
			dir := prepare(t, root)
			before := snapshot(t, root)
			s, err := open(dir)
			if err == nil {
				s.Close()
			}
			wantCode(t, err, fault.StoreUnavailable)
			after := snapshot(t, root)
			if after != before {
				t.Errorf("the directory changed\nbefore\n%.2000s\nafter\n%.2000s", before, after)
			}
		})
	}
}

// What somebody laid beside a Store does no harm.
func TestOpen_ForeignFileBesideAStore(t *testing.T) {
	dir := t.TempDir() + "/s"
	id := mustOpen(t, dir).ID()
	if err := os.WriteFile(dir+"/store.db.backup", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := mustOpen(t, dir).ID(); got != id {
		t.Errorf("got Store %q, want %q", got, id)
	}
}

// Proves core 19.1 (what is fixed): a directory of ours that others can read is
// made private.
func TestOpen_ReadableDirectoryIsMadePrivate(t *testing.T) {
	dir := t.TempDir() + "/s"
	mustOpen(t, dir).Close()
	for path, mode := range map[string]os.FileMode{dir: 0o755, dir + "/store.db": 0o644, dir + "/bell": 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	mustOpen(t, dir)
	wantModes(t, dir)
}

// Proves core 19.2.
func TestOpen_FilesArePrivateUnderAnyUmask(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	dir := t.TempDir() + "/a/b/s"
	s := mustOpen(t, dir)
	if _, err := s.Acquire(ctx, "x", store.LeaseTTL); err != nil { // so that the WAL exists
		t.Fatal(err)
	}
	wantModes(t, dir)
	if got := syscall.Umask(0o077); got != 0o077 {
		t.Errorf("umask is %04o, want 0077", got)
	}
}

func wantModes(t *testing.T, dir string) {
	t.Helper()
	for name, want := range map[string]os.FileMode{"": 0o700, "store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600, "bell": 0o600} {
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := st.Mode().Perm(); got != want {
			t.Errorf("%q has mode %04o, want %04o", name, got, want)
		}
	}
}

func TestOpen_StrangePaths(t *testing.T) {
	for _, name := range []string{"a b", "what?mode=memory", "hash#tag", "100%25", "ü&x=1"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			id := mustOpen(t, dir).ID()
			if _, err := os.Stat(filepath.Join(dir, "store.db")); err != nil {
				t.Error(err)
			}
			if got := mustOpen(t, dir).ID(); got != id || id == "" {
				t.Errorf("second open has id %q, want %q", got, id)
			}
		})
	}
}

func TestOpen_Settings(t *testing.T) {
	s := mustOpen(t, t.TempDir()+"/s")
	db := store.Readers(s)
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "query_only": "1",
		"journal_size_limit": "67108864", "busy_timeout": "10000", "user_version": fmt.Sprint(store.SchemaVersion),
	} {
		var got string
		if err := db.QueryRow("PRAGMA " + pragma).Scan(&got); err != nil || got != want {
			t.Errorf("%s is %q (%v), want %q", pragma, got, err, want)
		}
	}
	info, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !info.Writable || info.FormatVersion != 1 || info.WriterProtocol != 1 || info.ID == "" || info.CreatedAt == 0 || info.WALBytes == 0 {
		t.Errorf("got info %+v", info)
	}
	if parts := strings.Split(s.Holder(), "/"); len(parts) != 4 || parts[0] != "test" || parts[2] != fmt.Sprint(os.Getpid()) {
		t.Errorf("holder is %q", s.Holder())
	}
}

// Proves core 19.3.
func TestOpen_OtherVersions(t *testing.T) {
	set := func(statement string) func(t *testing.T, db *sql.DB) {
		return func(t *testing.T, db *sql.DB) {
			t.Helper()
			if _, err := db.Exec(statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		change func(*testing.T, *sql.DB)
		open   fault.Code // of Open
		write  fault.Code // of a mutation
	}{
		"as it is":            {set(`SELECT 1`), "", ""},
		"newer format":        {set(`UPDATE meta SET value='2' WHERE key='format_version'`), fault.StoreIncompatible, ""},
		"no format":           {set(`DELETE FROM meta WHERE key='format_version'`), fault.StoreIncompatible, ""},
		"foreign schema":      {set(`UPDATE meta SET value='other' WHERE key='schema'`), fault.StoreUnavailable, ""},
		"newer protocol":      {set(`UPDATE meta SET value='2' WHERE key='writer_protocol'`), "", fault.StoreIncompatible},
		"unreadable protocol": {set(`UPDATE meta SET value='one' WHERE key='writer_protocol'`), "", fault.StoreIncompatible},
		"newer user_version":  {set(`PRAGMA user_version = 99`), "", fault.StoreIncompatible},
		"older protocol":      {set(`UPDATE meta SET value='0' WHERE key='writer_protocol'`), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.prepare("1", "a", "t")
			w.Store.Close()
			c.change(t, w.raw())
			s, err := open(w.dir)
			if c.open != "" {
				wantCode(t, err, c.open)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if turn, err := s.Turn(ctx, "turn-1"); err != nil || turn.Status != store.TurnWaitingForAgent {
				t.Errorf("reading gives %q, %v", turn.Status, err)
			}
			if c.write == "" {
				if _, err := s.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"}); err != nil {
					t.Error(err)
				}
				info, err := s.Info(ctx)
				if err != nil || info.WriterProtocol != store.WriterProtocol {
					t.Errorf("protocol is %d (%v), want it raised", info.WriterProtocol, err)
				}
				return
			}
			before := dump(t, w.raw())
			for move, err := range everyMove(s) {
				if got := fault.CodeOf(err); got != c.write {
					t.Errorf("%s gives %q (%v), want %q", move, got, err, c.write)
				}
			}
			wantCode(t, s.Writable(), c.write)
			if after := dump(t, w.raw()); after != before {
				t.Errorf("the Store changed:\n%s", after)
			}
		})
	}
}

// everyMove calls every mutation once.
func everyMove(s *store.Store) map[string]error {
	l := &store.Lease{Name: store.TerminalLease("key-a")}
	m := store.Monitor{TurnID: "turn-1", MessageID: "msg-1", Lease: l}
	out := map[string]error{}
	_, out["Acquire"] = s.Acquire(ctx, "x", store.LeaseTTL)
	_, out["Await"] = s.Await(ctx, "x", store.LeaseTTL, 0)
	_, out["Renew"] = s.Renew(ctx, l)
	out["Release"] = s.Release(ctx, l)
	_, out["PrepareDispatch"] = s.PrepareDispatch(ctx, l, dispatch("2", "a", "t"))
	out["Preflight"] = s.Preflight(ctx, dispatch("2", "a", "t"))
	out["MarkInput"] = s.MarkInput(ctx, l, "msg-1")
	out["TextInjected"] = s.TextInjected(ctx, l, "msg-1")
	out["EnterDispatched"] = s.EnterDispatched(ctx, l, "msg-1")
	_, out["AcceptDispatch"] = s.AcceptDispatch(ctx, l, acceptance("msg-1", "t"))
	_, out["SettleDispatch"] = s.SettleDispatch(ctx, l, store.Settlement{MessageID: "msg-1", Status: store.DispatchUncertain})
	_, out["InvalidateAcceptance"] = s.InvalidateAcceptance(ctx, l, store.Settlement{MessageID: "msg-1"})
	_, out["AbortDispatch"] = s.AbortDispatch(ctx, l, "msg-1", "x")
	_, out["CheckMonitor"] = s.CheckMonitor(ctx, m)
	_, out["TurnRunning"] = s.TurnRunning(ctx, m, store.Activity{})
	_, out["TouchActivity"] = s.TouchActivity(ctx, m, store.Activity{})
	_, _, out["ApprovalNotified"] = s.ApprovalNotified(ctx, m, store.NewApproval{})
	_, out["ApprovalCleared"] = s.ApprovalCleared(ctx, m)
	_, _, out["QuestionNotified"] = s.QuestionNotified(ctx, m, store.NewInteraction{})
	_, out["QuestionCleared"] = s.QuestionCleared(ctx, m)
	_, out["ClaimCompletion"] = s.ClaimCompletion(ctx, m, completion("1"))
	_, out["StallTurn"] = s.StallTurn(ctx, m, store.Stall{})
	_, out["RenewTurn"] = s.RenewTurn(ctx, store.TurnRenew{TurnID: "turn-1"})
	_, out["CancelTurn"] = s.CancelTurn(ctx, l, store.TurnCancel{TurnID: "turn-1"})
	_, out["Cancellable"] = s.Cancellable(ctx, l, "turn-1")
	_, out["CloseTurn"] = s.CloseTurn(ctx, store.TurnClose{TurnID: "turn-1"})
	_, out["CloseOrphan"] = s.CloseOrphan(ctx, store.TurnClose{TurnID: "turn-1"}, "msg-1")
	_, out["QuarantineSession"] = s.QuarantineSession(ctx, "session-1", 1, "r")
	_, out["RepairFences"] = s.RepairFences(ctx)
	_, out["CloseRetention"] = s.CloseRetention(ctx, "", 0)
	_, out["ExpireClaims"] = s.ExpireClaims(ctx)
	_, out["CreateWatch"] = s.CreateWatch(ctx, l, store.NewWatch{TerminalKey: "key-a"})
	_, out["ObserveWatch"] = s.ObserveWatch(ctx, store.WatchFence{Lease: l}, store.Observation{})
	_, _, out["NotifyWatchApproval"] = s.NotifyWatchApproval(ctx, store.WatchFence{Lease: l}, store.Observation{}, store.NewNotification{Kind: "approval"})
	_, out["SettleWatch"] = s.SettleWatch(ctx, store.WatchFence{}, store.WatchSettlement{Status: "cancelled", Notification: store.NewNotification{Kind: "cancelled"}})
	_, _, out["ClaimCallback"] = s.ClaimCallback(ctx, l, family, 0)
	out["MarkStarted"] = s.MarkStarted(ctx, l, "d", "a")
	_, out["SettleCallback"] = s.SettleCallback(ctx, store.Outcome{DeliveryID: "d", Disposition: store.Uncertain})
	_, out["AbandonCallback"] = s.AbandonCallback(ctx, "d")
	_, _, out["RetryCallbackNow"] = s.RetryCallbackNow(ctx, "turn-1")
	out["MintOffer"] = s.MintOffer(ctx, store.NewOffer{})
	_, out["ConsumeOffer"] = s.ConsumeOffer(ctx, store.OfferKey{})
	_, out["DeleteOffers"] = s.DeleteOffers(ctx, "o")
	return out
}

// A newer program may raise the protocol while an older one runs.
func TestOpen_ProtocolRaisedWhileOpen(t *testing.T) {
	w := newWorld(t)
	w.lease("x")
	if _, err := w.raw().Exec(`UPDATE meta SET value='2' WHERE key='writer_protocol'`); err != nil {
		t.Fatal(err)
	}
	_, err := w.Acquire(ctx, "y", store.LeaseTTL)
	wantCode(t, err, fault.StoreIncompatible)
	if rows, err := w.Leases(ctx, ""); err != nil || len(rows) != 1 {
		t.Errorf("got %v, %v", rows, err)
	}
}

// Who looks for something makes nothing.
func TestOpenExisting(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	opt := store.Options{Dir: dir, Program: "test"}
	if _, err := store.OpenExisting(t.Context(), opt); !fault.Is(err, fault.StoreUnavailable) {
		t.Errorf("a Store that is not there: %v", err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("it was made")
	}
	made, err := store.Open(t.Context(), opt)
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	for _, opt.ReadOnly = range []bool{true, false} {
		s, err := store.OpenExisting(t.Context(), opt)
		if err != nil {
			t.Fatal(err)
		}
		if (s.Writable() != nil) != opt.ReadOnly || s.ID() != made.ID() {
			t.Errorf("read-only %v: %v", opt.ReadOnly, s.Writable())
		}
		s.Close()
	}
}

func TestOpen_ReadOnly(t *testing.T) {
	dir := t.TempDir() + "/s"
	_, err := store.Open(ctx, store.Options{Dir: dir, Program: "test", ReadOnly: true})
	wantCode(t, err, fault.StoreUnavailable)
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the directory was made")
	}
	mustOpen(t, dir)
	s, err := store.Open(ctx, store.Options{Dir: dir, Program: "test", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for move, err := range everyMove(s) {
		if got := fault.CodeOf(err); got != fault.StoreUnavailable {
			t.Errorf("%s gives %q (%v)", move, got, err)
		}
	}
}

func TestClose_EndsEverything(t *testing.T) {
	w := newWorld(t)
	if err := w.Store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Store.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	_, err := w.Acquire(ctx, "x", store.LeaseTTL)
	wantCode(t, err, fault.StoreUnavailable)
}

// dump is the whole content of a Store as text.
func dump(t testing.TB, db *sql.DB) string {
	t.Helper()
	var out strings.Builder
	tables, err := db.Query(`SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`)
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	var names []string
	for tables.Next() {
		var name string
		if err := tables.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	for _, name := range names {
		rows, err := db.Query(`SELECT * FROM ` + name)
		if err != nil {
			t.Fatal(err)
		}
		cols, _ := rows.Columns()
		for rows.Next() {
			vals := make([]any, len(cols))
			for i := range vals {
				vals[i] = new(any)
			}
			if err := rows.Scan(vals...); err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(&out, name)
			for i, v := range vals {
				fmt.Fprintf(&out, " %s=%v", cols[i], *v.(*any))
			}
			fmt.Fprintln(&out)
		}
		rows.Close()
	}
	return out.String()
}

// An opened Store holds its POSIX locks: whatever Open does with the files
// besides must not close a descriptor of them. Without the locks another program
// that closes the Store takes itself for the last one.
func TestOpen_KeepsSQLitesLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	mustOpen(t, dir).Close()
	mustOpen(t, dir)
	for _, name := range []string{"store.db", "store.db-shm"} {
		if !locked(t, filepath.Join(dir, name)) {
			t.Errorf("%s: no lock of this process", name)
		}
	}
}

// locked reports whether this process holds a lock through a descriptor of path.
func locked(t *testing.T, path string) bool {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err != nil || to != path {
			continue
		}
		info, err := os.ReadFile("/proc/self/fdinfo/" + fd.Name())
		if err == nil && strings.Contains(string(info), "lock:\t") {
			return true
		}
	}
	return false
}
